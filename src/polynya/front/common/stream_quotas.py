"""Quotas of streams per principal. They count the existing streams, so the count cannot drift, but
not at each creation."""

from __future__ import annotations

import time

from polynya.access import Principal
from polynya.access.grants import Verb
from polynya.base.limits import CREDENTIALS_KEPT_MAX
from polynya.local.api import Refusal
from polynya.service.api import Service

_COUNT_SECONDS = 10.0  # validity of a count: others create under the same prefixes too


class StreamQuotas:
    """The quotas of one core. It may use its share of half the free quota before it must count
    again."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._known: dict[
            str, tuple[float, int]
        ] = {}  # principal id → (expiry of the count, creations left until then)

    async def has_room(
        self,
        service: Service,
        principal: Principal,
        name: str,
        count: int = 1,
        prefixes: list[str] | None = None,
    ) -> bool:
        """Report whether the stream may be created, and with `count` as many together. Creating an
        existing stream again is always allowed. `prefixes`: the streams that count; None: those
        that the scopes of the token allow to create."""
        until, free = self._known.get(principal.id, (0.0, 0))
        if free >= count and time.monotonic() < until:
            self._known[principal.id] = (until, free - count)
            return True
        most = principal.limits.streams
        found = 0
        if prefixes is None:  # many short tokens have one quota, that of their minter
            prefixes = (principal.minter or principal).prefixes(Verb.CREATE)
        for prefix in prefixes:
            found += len(await service.list_streams(prefix, "", most - found + 1))
            if found + count > most:
                return not isinstance(await service.open(name).info(), Refusal)
        if len(self._known) >= CREDENTIALS_KEPT_MAX:
            self._known.clear()
        self._known[principal.id] = (
            time.monotonic() + _COUNT_SECONDS,
            (most - found - count + 1) // (2 * self._cores),
        )
        return True
