"""Access control of the text protocol: `AUTH TOKEN`, then grants, rates and quotas as over HTTP."""

from __future__ import annotations

import math

from polynya.access import Access, Denied, KeysUnknown, Principal
from polynya.access.grants import Verb
from polynya.front.common.stream_quotas import StreamQuotas
from polynya.front.text.protocol import TextCommand
from polynya.front.text.topics import TextError, topic_name
from polynya.service.api import Service

_NEEDED = {  # GET consumes: it moves the cursor that all readers share
    "REGISTER": (Verb.CREATE,),
    "PUT": (Verb.APPEND,),
    "GET": (Verb.READ, Verb.APPEND),
    "STATE": (Verb.READ,),
}


class Caller:
    """The caller of one connection. Without access control, everything is allowed."""

    def __init__(self, access: Access | None, quotas: StreamQuotas) -> None:
        self._access = access
        self._quotas = quotas
        self._credential = ""
        self._principal: Principal | None = None

    @property
    def is_unknown(self) -> bool:
        """Report whether the caller has to authenticate, and has not."""
        return self._access is not None and self._principal is None

    async def authenticate(self, token: str) -> str:
        """Take over a token and return the response. Raises `TextError`."""
        if self._access is None:
            return "OK"
        self._credential = token
        try:
            self._identify(self._access)
        except KeysUnknown:
            await self._access.refresh()
            self._check(self._access)
        except Denied as denied:
            raise self._denied(self._access, denied) from None
        return "OK"

    def check(self, command: TextCommand, size: int) -> None:
        """Check grants and rates for a request of `size` bytes. Raises `TextError`."""
        access = self._access
        if access is None:
            return
        principal = self._check(access)
        if command.verb == "METRICS":
            if not principal.may_somewhere(Verb.METRICS):
                raise self._forbidden(access, Verb.METRICS, "")
        else:
            name = topic_name(command.argument)
            for verb in _NEEDED[command.verb]:
                if not principal.may(verb, name):
                    raise self._forbidden(access, verb, f" on {command.argument}")
        if principal.meter is not None and (wait := principal.meter.take(access.now(), size)):
            access.counters.limited += 1
            raise TextError(f"ERR rate limit of the token: retry after {max(1, math.ceil(wait))} s")

    async def check_quota(self, service: Service, topic: str) -> None:
        """Check the quota of streams before a REGISTER. Raises `TextError`."""
        principal = self._principal
        if principal is None or not principal.limits.streams:
            return
        if not await self._quotas.has_room(service, principal, topic_name(topic)):
            assert self._access is not None
            self._access.counters.limited += 1
            raise TextError(
                f"ERR the token may have {principal.limits.streams} streams; delete one"
            )

    def charge(self, size: int) -> None:
        """Charge the bytes of a response."""
        if self._principal is not None and self._principal.meter is not None:
            self._principal.meter.charge(size)

    def release(self) -> None:
        """End the connection."""
        if self._principal is not None and self._principal.meter is not None:
            self._principal.meter.connections -= 1
        self._principal = None

    def _check(self, access: Access) -> Principal:
        try:
            return self._identify(access)
        except Denied as denied:
            raise self._denied(access, denied) from None

    def _identify(self, access: Access) -> Principal:
        """Return the principal as it is now. Raises `Denied`, `TextError`."""
        if not self._credential:
            access.counters.denied += 1
            raise TextError("ERR unauthorized: this node needs a token; send AUTH TOKEN first")
        principal = access.identify(self._credential)
        if principal is not self._principal:
            meter, most = principal.meter, principal.limits.connections
            shared = self._principal is not None and self._principal.meter is meter
            if most and meter is not None and meter.connections_everywhere >= most and not shared:
                access.counters.limited += 1
                raise TextError(f"ERR the token may have {most} connections open; close one")
            self.release()
            self._principal = principal
            if meter is not None:
                meter.connections += 1
        return principal

    def _denied(self, access: Access, denied: Denied) -> TextError:
        access.counters.denied += 1
        return TextError(f"ERR unauthorized: {denied}")

    def _forbidden(self, access: Access, verb: str, where: str) -> TextError:
        access.counters.forbidden += 1
        return TextError(f"ERR forbidden: the token does not allow '{verb}'{where}")
