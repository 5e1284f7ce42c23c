"""How many streams a principal may still create: counted where they are, so that no count can drift, but not for each of them."""

from __future__ import annotations

import time

from polynya.access import Principal
from polynya.access.grants import Verb
from polynya.base.limits import CREDENTIALS_KEPT_MAX
from polynya.service.api import Refusal, Service

_COUNT_SECONDS = 10.0  # so long a count is good: others create under the same prefixes too


class StreamQuotas:
    """Half of what was free at the last count may be used up before the next one, shared by the cores: they count for themselves."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._known: dict[str, tuple[float, int]] = {}  # principal id -> until when, how many may be created without a look

    async def has_room(self, service: Service, principal: Principal, name: str) -> bool:
        """Whether the stream may be created. One that exists may always be asked for again."""
        until, free = self._known.get(principal.id, (0.0, 0))
        if free > 0 and time.monotonic() < until:
            self._known[principal.id] = (until, free - 1)
            return True
        most = principal.limits.streams
        found = 0
        for prefix in principal.prefixes(Verb.CREATE):
            found += len(await service.list_streams(prefix, "", most - found + 1))
            if found >= most:
                return not isinstance(await service.facts(name), Refusal)
        if len(self._known) >= CREDENTIALS_KEPT_MAX:
            self._known.clear()
        self._known[principal.id] = (time.monotonic() + _COUNT_SECONDS, (most - found) // (2 * self._cores))
        return True
