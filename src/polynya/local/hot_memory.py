"""The memory for records that are not in the object store yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polynya.base.limits import HOT_BYTES_PER_CORE
from polynya.cold import FaultedStreams
from polynya.local.dependencies import Proposer
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Done, Reply


class HotMemory:
    """The limits of unflushed bytes: of one core, and of each of its groups."""

    def __init__(
        self,
        machines: Mapping[int, Machine],
        faulted: FaultedStreams,
        proposer: Proposer,
        group_bytes_max: int,
    ) -> None:
        self.bytes = sum(
            machine.directory.hot_bytes for machine in machines.values()
        )  # after the last turn
        self.bytes_max = max(HOT_BYTES_PER_CORE, group_bytes_max)
        self.group_bytes_max = group_bytes_max
        self.turns = 0  # grows with each measurement; unchanged means nothing to scan
        self.refused = 0
        self.store_is_full: Callable[[], bool] = lambda: False
        self._machines = machines
        self._faulted = faulted
        self._proposer = proposer

    def measure(self) -> None:
        """Update the total. Call this after each turn that applied a command."""
        self.turns += 1
        hot = sum([machine.directory.hot_bytes for machine in self._machines.values()])
        self.bytes = hot - self._faulted.bytes

    def has_room(self, group: int, size: int) -> bool:
        """Report whether this append fits into the limits, with the bytes in flight to the
        journal."""
        inflight = self._proposer.inflight_bytes
        if self.bytes + inflight + size > self.bytes_max:
            return False
        counted = self._machines[group].directory.hot_bytes - self._faulted.bytes_of(group)
        room = self.group_bytes_max - counted - size
        return room >= inflight or (room >= 0 and room >= self._proposer.inflight_bytes_of(group))

    def refuse(self, size: int, done: Done) -> None:
        """Refuse with a retryable code, or for good if no flush can make enough room."""
        bound = min(self.group_bytes_max, self.bytes_max)
        if size > bound:
            done(Reply(Code.APPEND_EXCEEDS_MEMORY_LIMIT, byte=bound))
        else:
            self.refused += 1
            done(Reply(Code.MEMORY_PRESSURE, detail=self.store_is_full() or None))
