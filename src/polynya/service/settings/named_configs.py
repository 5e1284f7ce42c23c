"""The configs of named things, in one scope of the meta group's settings. A thing has none, or is
in the scope with those that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from polynya.base.errors import PolynyaError, Unavailable
from polynya.service.settings.bucket_profiles import MetaSettings
from polynya.service.settings.fresh_reads import FreshReads
from polynya.stream.features.settings.commands import MetaChange
from polynya.stream.features.settings.rules import values_of, version_of
from polynya.stream.replies import Code

_ATTEMPTS = 5
Configs = dict[str, str]


class Limit(NamedTuple):
    """A limit of the things with configs, and the error for one more."""

    things: int
    error: type[PolynyaError]
    message: str


class NamedConfigs:
    """The configs of one scope, as one core knows them.

    `checked` returns valid configs and raises for others. `what` names them all. `on_read` is called
    after a read of `known`, with the number of the last change."""

    def __init__(
        self,
        meta_group: MetaSettings,
        scope: str,
        *,
        checked: Callable[[Configs], Configs],
        limit: Limit,
        what: str,
        on_read: Callable[[int], None] = lambda version: None,
    ) -> None:
        self.known: dict[str, Configs] = {}
        self.reads = FreshReads(self._read)
        self._meta_group, self._scope = meta_group, scope
        self._checked, self._limit, self._what = checked, limit, what
        self._on_read = on_read

    async def all(self) -> dict[str, Configs]:
        """Return the configs of each thing that has some. Raises Unavailable."""
        await self.reads.now()
        return self.known

    async def alter(self, name: str, change: Callable[[Configs], Configs]) -> bool:
        """Change the configs of a thing; `change` gets the present ones. Return False if they stay.
        Raises Unavailable, and what `checked` raises."""
        for _ in range(_ATTEMPTS):
            version = await self.reads.now()
            before = self.known.get(name, {})
            after = self._checked(change(dict(before)))
            if after == before:
                return False
            if not before and len(self.known) >= self._limit.things:
                raise self._limit.error(self._limit.message)
            value = msgspec.json.encode(after) if after else None
            # the key is in hexadecimal digits: a name may have any character
            changes = [(name.encode().hex(), value)]
            reply = await self._meta_group.call(MetaChange(self._scope, version, changes))
            if reply.code == Code.OK:
                return True
        raise Unavailable(f"concurrent changes to {self._what}; retry")

    async def _read(self) -> int:
        meta = await self._meta_group.entries(self._scope)
        self.known = {
            bytes.fromhex(key).decode(): msgspec.json.decode(value, type=Configs)
            for key, value in values_of(meta, self._scope).items()
        }
        version = version_of(meta, self._scope)
        self._on_read(version)
        return version
