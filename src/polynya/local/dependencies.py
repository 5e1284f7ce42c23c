"""The interfaces that the streams of a core use from other rooms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from polynya.local.api import ReadLimits, Span
from polynya.stream.command import Command
from polynya.stream.machine import Machine
from polynya.stream.replies import Done
from polynya.stream.state.index import Index
from polynya.stream.state.model import ColdSlice, HotBatch


class Proposer(Protocol):
    """The turn loop's interface for proposals."""

    @property
    def inflight_bytes(self) -> int: ...

    def inflight_bytes_of(self, group: int) -> int: ...

    def propose(self, group: int, command: Command, done: Done) -> None: ...


class LedGroups(Protocol):
    """The groups that this core leads, for changes that take several commands."""

    @property
    def led(self) -> Mapping[int, Machine]: ...

    @property
    def now_ms(self) -> Callable[[], int]: ...

    def propose(self, group: int, command: Command, done: Done) -> None: ...

    def stamped(self, command: Command) -> Command: ...


class LocalMachines(Protocol):
    """The groups of this core, for rooms that read their state. See `LocalGroups`."""

    @property
    def machines(self) -> Mapping[int, Machine]: ...

    @property
    def led(self) -> Mapping[int, Machine]: ...

    @property
    def level(self) -> int: ...

    @property
    def turns(self) -> int: ...

    def here(self, group: int) -> Machine: ...

    async def linearize(self, group: int) -> None: ...

    async def linearize_all(self, groups: Iterable[int]) -> None: ...


class Agreement(Protocol):
    """The turn loop's interface for replicated groups: linearizable reads."""

    def readable(self, group: int) -> bool:
        """Report whether the local state may serve a linearizable read now."""
        ...

    async def linearize(self, group: int) -> None:
        """Wait until `readable`. Raises Unavailable."""
        ...

    def fit(self, group: int) -> bool:
        """Report whether a local replica follows its group; if not, another node should serve the
        read."""
        ...


class ColdReader(Protocol):
    """The object tier's interface for reads."""

    def begin(self, cold: ColdSlice) -> None:
        """Begin to fetch a slice that is read soon."""
        ...

    def kept_page(self, cold: ColdSlice) -> Index | None:
        """Return the entries of a page of an index, if they are in memory."""
        ...

    async def page(self, cold: ColdSlice) -> Index:
        """Return the entries of a page of an index."""
        ...

    async def spread(self, slices: Sequence[ColdSlice], begin: int, end: int) -> list[ColdSlice]:
        """Return the slices with those of pages, from record `begin` to before `end`, instead of
        the pages."""
        ...

    async def batches(self, cold: ColdSlice) -> Sequence[HotBatch]:
        """Fetch and verify the batches of a slice."""
        ...

    async def append_times(self, cold: ColdSlice, begin: int, end: int) -> bytes:
        """Return the append times of the records from `begin` to `end` (exclusive) of a slice; see
        `Span.append_times`."""
        ...

    async def position_at(self, cold: ColdSlice, time_ms: int) -> tuple[int, int]:
        """Return the start of the slice's first batch at or after this time, or the end of the
        slice."""
        ...

    async def position_of_record_time(
        self, cold: ColdSlice, time_ms: int, begin: int
    ) -> tuple[int, int] | None:
        """Return the start of the slice's first batch with a record of this time or later, of those
        that end behind record `begin`."""
        ...

    async def newest_record_time(self, cold: ColdSlice, begin: int) -> int | None:
        """Return the largest record time of the slice's batches that end behind record `begin`."""
        ...


class StateReader(Protocol):
    """The object tier's interface for evicted streams."""

    async def state(self, where: ColdSlice) -> bytes:
        """Return the bytes of that slice. Raises PackGone, Unavailable, CorruptData."""
        ...


class ParentReader(Protocol):
    """Reads of the part that a fork inherits, wherever its source is."""

    async def read_uid(
        self,
        uid: int,
        at: tuple[int, int],
        until: tuple[int, int],
        limits: ReadLimits,
        *,
        local: bool = False,
    ) -> tuple[list[Span], tuple[int, int]]: ...

    async def position_of_time(
        self, uid: int, time_ms: int, until: tuple[int, int], record_from: int = -1
    ) -> tuple[int, int]: ...


class Sources(Protocol):
    """The sources that records outside the memory of this core are read from."""

    cold: ColdReader | None
    parents: ParentReader | None
