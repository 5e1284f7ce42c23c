"""What the streams of a core need of other rooms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from polynya.service.api import Span
from polynya.stream.commands import Command
from polynya.stream.replies import Done
from polynya.stream.state.model import ColdSlice, HotBatch


class Proposer(Protocol):
    """What the turn loop offers."""

    @property
    def inflight_bytes(self) -> int: ...

    def inflight_bytes_of(self, group: int) -> int: ...

    def propose(self, group: int, command: Command, done: Done) -> None: ...


class Agreement(Protocol):
    """What the turn loop offers where groups have other members: reads that see all that was acknowledged anywhere (F13)."""

    def readable(self, group: int) -> bool:
        """Whether the state here may answer at once."""
        ...

    async def linearize(self, group: int) -> None:
        """Until it may. Raises Unavailable."""
        ...

    def fit(self, group: int) -> bool:
        """Whether there is a replica here that follows its group: else it is better to ask elsewhere."""
        ...


class ColdReader(Protocol):
    """What the object tier offers a reader."""

    async def batches(self, cold: ColdSlice) -> Sequence[HotBatch]:
        """The slice's batches, fetched and checked."""
        ...

    async def place_at(self, cold: ColdSlice, time_ms: int) -> tuple[int, int]:
        """Where the slice's first batch of this time or later begins, or the slice's end."""
        ...


class StateReader(Protocol):
    """What the object tier offers whoever needs an evicted stream."""

    async def state(self, where: ColdSlice) -> bytes:
        """The bytes at that place. Raises PackGone, Unavailable, CorruptData."""
        ...


class ParentReader(Protocol):
    """Reads the inherited part of a fork, wherever its source lives."""

    async def read_uid(
        self, uid: int, at: tuple[int, int], until: tuple[int, int], limits: tuple[int, bool], *, local: bool = False
    ) -> tuple[list[Span], tuple[int, int]]: ...

    async def place_of_time(self, uid: int, time_ms: int, until: tuple[int, int]) -> tuple[int, int]: ...
