"""The interface that the cold tier needs from a core, and surveys of its streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from polynya.cold.faults import FaultedStreams
from polynya.stream.command import Command
from polynya.stream.machine import Machine
from polynya.stream.replies import Reply
from polynya.stream.state.model import HotBatch

SURVEY_STREAMS = 4096  # scanned without yielding to the loop

T = TypeVar("T")


class Groups(Protocol):
    """The groups that this core leads."""

    def machines(self) -> Mapping[int, Machine]:
        """Return the state machines by group number."""
        ...

    def turns(self) -> int:
        """Return a counter that grows with every applied entry. While it is unchanged, so is every
        machine."""
        ...

    @property
    def recent(self) -> dict[int, int]:
        """Map of uid to the log time at which an evicted stream was restored. The evictor removes
        old entries."""
        ...

    @property
    def faulted(self) -> FaultedStreams:
        """Streams that are set aside; the flusher adds to them."""
        ...

    def may_log(self, machine: Machine, level: int) -> bool:
        """Report whether the group's log may have what this feature level added."""
        ...

    async def bring(self, group: int, names: list[str]) -> None:
        """Return at most RECALL_STREAMS evicted streams to memory. Raises Unavailable,
        OutcomeUnknown, CorruptData."""
        ...

    async def repair(self, group: int, uid: int, batches: Sequence[HotBatch]) -> bool:
        """Reread damaged batches. Return True if some were damaged and all are intact now."""
        ...

    def term(self, group: int) -> int: ...

    async def propose(self, group: int, command: Command) -> Reply:
        """Propose a command through the log. Raises Unavailable (not applied and never will be) or
        OutcomeUnknown."""
        ...

    def now_ms(self) -> int:
        """Return the log time in ms."""
        ...

    def covered_ms(self) -> int:
        """Return the log time up to which every group's entries are in a snapshot that recovery
        would start from."""
        ...

    def want_snapshots(self) -> None:
        """Request snapshots soon, because releases wait for them."""
        ...


async def survey(streams: Iterable[T]) -> AsyncIterator[list[T]]:
    """Yield streams in chunks and let the loop run between, because there may be a hundred
    thousand."""
    listed = list(streams)
    for begin in range(0, len(listed), SURVEY_STREAMS):
        yield listed[begin : begin + SURVEY_STREAMS]
        await asyncio.sleep(0)
