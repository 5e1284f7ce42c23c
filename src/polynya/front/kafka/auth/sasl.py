"""SASL mechanisms: the messages of a client become a principal, or a refusal."""

from __future__ import annotations

import secrets

from polynya.access import Access, Denied, KeysUnknown, Principal
from polynya.access.scram import HASHES, ScramFailed, ScramServer

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
MECHANISMS = (PLAIN, OAUTHBEARER, *HASHES)
_BEARER = "auth=Bearer "
_HINT = (
    "the user must be the name or the id of an active token. Tokens of older releases have no "
    "SCRAM verifier: create a new one or use PLAIN"
)


class SaslFailed(Exception):
    """The client is not authenticated. The message is for the client, and has no secret."""


class Exchange:
    """One authentication: `step` takes the client's messages in turn."""

    def __init__(self, access: Access, mechanism: str) -> None:
        self.principal: Principal | None = None  # set when the exchange has ended well
        self._access = access
        self._mechanism = mechanism
        self._scram = (
            ScramServer(mechanism, secrets.token_urlsafe(18)) if mechanism in HASHES else None
        )
        self._token = ""  # the id of the token that a SCRAM exchange proves; "": of an unknown user
        self._is_challenged = False

    async def step(self, message: bytes) -> bytes:
        """Return the answer to the client's next message. Raises `SaslFailed`."""
        try:
            if self._scram is not None:
                return self._step_of_scram(self._scram, message)
            credential, user = _bearer(message) if self._is_bearer else _plain(message)
            self.principal = await self._identify(credential, user)
        except Denied as denied:
            self._access.counters.denied += 1
            raise SaslFailed(f"authentication failed: {denied}") from None
        except (ScramFailed, ValueError) as failed:
            self._access.counters.denied += 1
            raise SaslFailed(f"{self._mechanism} authentication failed: {failed}") from None
        return b""

    @property
    def _is_bearer(self) -> bool:
        return self._mechanism == OAUTHBEARER

    async def _identify(self, credential: str, user: str | None) -> Principal:
        try:
            principal = self._access.identify(credential)
        except KeysUnknown:
            await self._access.refresh()
            principal = self._access.identify(credential)
        if user is not None and user not in (principal.id, principal.name):
            raise Denied("the user is not the name or the id of the token that the password is")
        return principal

    def _step_of_scram(self, scram: ScramServer, message: bytes) -> bytes:
        if not self._is_challenged:
            user = scram.read_first(message)
            found = self._access.verifier(user, self._mechanism)
            # an unknown user takes the same steps: the answers do not tell which names exist
            decoy = self._access.decoy(user, self._mechanism)
            self._token, verifier = found or ("", decoy)
            self._is_challenged = True
            return scram.challenge(verifier)
        try:
            answer = scram.finish(message)
        except ScramFailed as failed:
            raise ScramFailed(f"{failed}; {_HINT}") from None
        self.principal = self._access.proven(self._token)
        return answer


def _plain(message: bytes) -> tuple[str, str]:
    """Return password and user of a PLAIN message. Raises ValueError."""
    parts = message.decode().split("\0")
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise ValueError("expected '[identity] NUL user NUL password'")
    if parts[0] not in ("", parts[1]):
        raise ValueError("a user cannot act as another one")
    return parts[2], parts[1]


def _bearer(message: bytes) -> tuple[str, None]:
    """Return the token of an OAUTHBEARER message. Raises ValueError."""
    header, *fields = message.decode().split("\x01")
    found = [field.removeprefix(_BEARER) for field in fields if field.startswith(_BEARER)]
    if not header.startswith(("n,", "y,")) or len(found) != 1:
        raise ValueError("expected 'n,,' and one 'auth=Bearer TOKEN'")
    return found[0], None
