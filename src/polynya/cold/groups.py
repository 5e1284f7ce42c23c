"""What the cold tier asks of a core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from polynya.cold.faults import FaultedStreams
from polynya.stream.commands import Command
from polynya.stream.machine import Machine
from polynya.stream.replies import Reply
from polynya.stream.state.model import HotBatch


class Groups(Protocol):
    """The groups that this core leads."""

    def machines(self) -> Mapping[int, Machine]:
        """By group number."""
        ...

    def turns(self) -> int:
        """Grows whenever something was applied: no machine has changed since it was the same."""
        ...

    @property
    def recent(self) -> dict[int, int]:
        """uid → log time at which an evicted stream came back. The evictor forgets them."""
        ...

    @property
    def faulted(self) -> FaultedStreams:
        """Streams that are set aside: the flusher adds to them."""
        ...

    async def repair(self, group: int, uid: int, batches: Sequence[HotBatch]) -> bool:
        """Read damaged batches again; whether some were damaged and all are intact now."""
        ...

    def term(self, group: int) -> int: ...

    async def propose(self, group: int, command: Command) -> Reply:
        """Through the log. Raises Unavailable (not applied, nor will it be) or OutcomeUnknown."""
        ...

    def now_ms(self) -> int:
        """Log time."""
        ...

    def covered_ms(self) -> int:
        """Everything that any of the groups logged up to this log time is in a snapshot that recovery would start from."""
        ...

    def want_snapshots(self) -> None:
        """Releases wait for snapshots: take them soon."""
        ...
