"""The reducers of a cluster, and the streams on which they are faulted.

The meta group has them, as the scopes `reducers` and `reducer-faults` of its settings. A core reads
them when they are asked for, at most once a second. The number of the scope's change is a reducer's
revision, so none is used twice, whatever was deleted in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import structs

from polynya.base.errors import PolynyaError, Unavailable
from polynya.base.limits import REDUCER_FAULTS_MAX, REDUCERS_MAX
from polynya.reducers.bindings import Binding, Wanted, is_same
from polynya.service.reducers.kept_states import KeptStates
from polynya.service.settings.fresh_reads import FreshReads
from polynya.stream.command import Command
from polynya.stream.features.settings.commands import MetaChange
from polynya.stream.features.settings.rules import values_of, version_of
from polynya.stream.features.subscriptions.globs import compile_pattern
from polynya.stream.replies import Code, Reply

SCOPE = "reducers"
FAULTS = "reducer-faults"
_ATTEMPTS = 5
_RUNS = 4
_REASON_CHARACTERS_MAX = 500
_PLACE = "@"  # between the reducer and the stream of a fault


class TooManyReducers(PolynyaError):
    """The cluster may have no more reducers, or faults of them."""


class MetaSettings(Protocol):
    """The settings of the meta group."""

    async def entries(self, scope: str) -> dict[str, bytes]: ...

    async def call(self, command: Command) -> Reply: ...


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a reducer cannot go on with a stream. `again_ms`: when to try again."""

    reason: str
    revision: int
    since_ms: int
    again_ms: int
    tries: int = 1


class Bound(msgspec.Struct, frozen=True):
    """A reducer with the predicate of its pattern over canonical names."""

    name: str
    binding: Binding
    fits: Callable[[str], bool]


class Counts(msgspec.Struct):
    """The counts of one core since its start."""

    publishes: int = 0
    publish_bytes: int = 0
    states: int = 0  # computed for readers


class Reducers:
    """The reducers, as one core knows them."""

    def __init__(self, meta_group: MetaSettings) -> None:
        self._meta_group = meta_group
        self._known: dict[str, Bound] | None = None  # None: never read
        self._faults: dict[tuple[str, str], Fault] = {}  # by reducer and canonical stream
        self.counts = Counts()
        self.runs_modules = False  # this node has workers, so it computes states of modules too
        self._reads = FreshReads(self._read)
        self.kept = KeptStates()
        self.runs = asyncio.Semaphore(_RUNS)  # states that the core computes at a time

    @property
    def known(self) -> dict[str, Bound]:
        """The reducers by name, of the last read."""
        return self._known or {}

    @property
    def faults(self) -> dict[tuple[str, str], Fault]:
        """The faults by reducer and canonical stream, of the last read."""
        return self._faults

    async def refresh(self) -> None:
        """Read them unless they are of the last second. While the meta group does not answer, the
        last ones stay in use."""
        await self._reads.refresh()

    async def current(self) -> dict[str, Bound]:
        """Return the reducers by name, read now. Raises Unavailable."""
        await self._reads.now()
        return self.known

    async def of_stream(self, stream: str) -> list[Bound]:
        """Return the reducers of a stream by its canonical name, of the last second. Raises
        Unavailable while they have never been read."""
        await self.refresh()
        if self._known is None:
            await self._reads.now()
        return [each for each in self.known.values() if each.fits(stream)]

    async def bound_of(self, stream: str, *, clients: bool) -> list[str] | None:
        """Return the origins that a trim of the stream to its snapshots waits for; None: no trim.
        `clients`: its retention trims it whatever its reducers are."""
        await self.refresh()
        if self._known is None:
            return None
        own = [each for each in self._known.values() if each.fits(stream)]
        if not clients and not any(each.binding.retain for each in own):
            return None
        if any(each.binding.stopped or (each.name, stream) in self._faults for each in own):
            return None
        return ([""] if clients else []) + [each.name for each in own]

    # --- changes ----------------------------------------------------------------------------------

    async def put(self, name: str, wanted: Wanted) -> tuple[Binding, bool]:
        """Set a reducer. Return it, and whether it is new. Its revision changes with what it computes,
        and when it was stopped. Raises Unavailable, TooManyReducers."""
        for _ in range(_ATTEMPTS):
            version = await self._reads.now()
            old = self.known.get(name)
            if old is None and len(self.known) >= REDUCERS_MAX:
                raise TooManyReducers(f"there are {REDUCERS_MAX} reducers; remove one")
            stays = old is not None and not old.binding.stopped and is_same(old.binding, wanted)
            revision = old.binding.revision if old is not None and stays else version + 1
            made = Binding(**structs.asdict(wanted), revision=revision)
            if old is not None and old.binding == made:
                return made, False
            if await self._change(version, name, made):
                return made, old is None
        raise Unavailable("concurrent changes to the reducers; retry")

    async def remove(self, name: str) -> bool:
        """Remove a reducer and its faults; False: there is none. Raises Unavailable."""
        for _ in range(_ATTEMPTS):
            version = await self._reads.now()
            if name not in self.known:
                return False
            if await self._change(version, name, None):
                await self._forget(name)
                return True
        raise Unavailable("concurrent changes to the reducers; retry")

    async def stop(self, name: str, revision: int, reason: str) -> None:
        """Stop a revision of a reducer: it publishes no more. Raises Unavailable."""
        for _ in range(_ATTEMPTS):
            version = await self._reads.now()
            old = self.known.get(name)
            if old is None or old.binding.revision != revision or old.binding.stopped:
                return
            stopped = structs.replace(old.binding, stopped=reason[:_REASON_CHARACTERS_MAX])
            if await self._change(version, name, stopped):
                return
        raise Unavailable("concurrent changes to the reducers; retry")

    async def _change(self, version: int, name: str, binding: Binding | None) -> bool:
        value = None if binding is None else msgspec.json.encode(binding)
        reply = await self._meta_group.call(MetaChange(SCOPE, version, [(name, value)]))
        if reply.code == Code.OK:
            await self._reads.now()
        return reply.code == Code.OK

    async def set_fault(self, name: str, stream: str, fault: Fault | None) -> None:
        """Note that a reducer is faulted on a stream; None: that it is not. Raises Unavailable,
        TooManyReducers."""
        for _ in range(_ATTEMPTS):
            found = await self._meta_group.entries(FAULTS)
            key = f"{name}{_PLACE}{stream}"
            known = values_of(found, FAULTS)
            if fault is None and key not in known:
                return
            own = sum(each.startswith(f"{name}{_PLACE}") for each in known)
            if fault is not None and key not in known and own >= REDUCER_FAULTS_MAX:
                raise TooManyReducers(
                    f"the reducer is faulted on {REDUCER_FAULTS_MAX} streams, and on others"
                )
            value = None if fault is None else msgspec.json.encode(fault)
            command = MetaChange(FAULTS, version_of(found, FAULTS), [(key, value)])
            if (await self._meta_group.call(command)).code == Code.OK:
                await self._reads.now()
                return
        raise Unavailable("concurrent changes to the faults of reducers; retry")

    async def _forget(self, name: str) -> None:
        """Remove all faults of a reducer."""
        found = await self._meta_group.entries(FAULTS)
        own = [key for key in values_of(found, FAULTS) if key.startswith(f"{name}{_PLACE}")]
        gone: list[tuple[str, bytes | None]] = [(key, None) for key in own]
        if gone:
            await self._meta_group.call(MetaChange(FAULTS, version_of(found, FAULTS), gone))
            await self._reads.now()

    async def _read(self) -> int:
        """Read all, and return the number of the last change of the reducers."""
        meta = await self._meta_group.entries(SCOPE)
        faults = await self._meta_group.entries(FAULTS)
        bindings = {
            name: msgspec.json.decode(value, type=Binding)
            for name, value in values_of(meta, SCOPE).items()
        }
        known = self.known
        self._known = {
            name: known[name]
            if name in known and known[name].binding == binding
            else Bound(name, binding, compile_pattern(binding.pattern))
            for name, binding in sorted(bindings.items())
        }
        self._faults = {}
        for key, value in values_of(faults, FAULTS).items():
            name, _, stream = key.partition(_PLACE)
            self._faults[name, stream] = msgspec.json.decode(value, type=Fault)
        return version_of(meta, SCOPE)
