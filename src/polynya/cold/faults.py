"""Streams that are set aside: a slice of theirs cannot be built, and neither the journal nor another node has their bytes as they came in.

That is a fault of one stream's data, and it costs this stream alone: the flusher leaves it out, its hot bytes leave the bounds of memory,
its journal segments stay. It is forgotten when the stream is deleted or trimmed behind the damage, and found again after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from polynya.base.errors import CorruptData
from polynya.base.names import spelled_name
from polynya.stream.machine import Machine
from polynya.stream.read_plan import HotPiece, ReadPlan
from polynya.stream.state.model import Stream
from polynya.wire.pack import is_intact

NAMED_MAX = 20  # streams in one message


class Fault(msgspec.Struct, frozen=True):
    """Why a stream is set aside. `damaged`: the byte positions from each hot batch that fails its checksum to its end."""

    group: int
    name: str
    reason: str
    end: int  # byte position behind the slice that could not be built
    damaged: tuple[tuple[int, int], ...]


class FaultedStreams:
    """Of one core. `changed` is called when `bytes` has changed."""

    def __init__(self, machines: Mapping[int, Machine]) -> None:
        self.bytes = 0  # hot bytes of these streams, as of the last look
        self.changed: Callable[[], None] = lambda: None
        self._machines = machines
        self.by_uid: dict[int, Fault] = {}
        self._group_bytes: dict[int, int] = {}

    def __contains__(self, uid: object) -> bool:
        return uid in self.by_uid

    def __len__(self) -> int:
        return len(self.by_uid)

    @property
    def names(self) -> list[str]:
        """The first of them, as clients spell them."""
        return sorted(spelled_name(fault.name) for fault in self.by_uid.values())[:NAMED_MAX]

    def trouble(self) -> str | None:
        """What health checks say."""
        if not self.by_uid:
            return None
        more = len(self.by_uid) - NAMED_MAX
        named = ", ".join(self.names) + (f" and {more} more" if more > 0 else "")
        count = f"{len(self.by_uid)} streams are" if len(self.by_uid) > 1 else "1 stream is"
        return f"{count} set aside and refused appends, because recent data is damaged: {named}"

    def bytes_of(self, group: int) -> int:
        """Hot bytes of the group's streams that do not count against its bound."""
        return self._group_bytes.get(group, 0)

    def set_aside(self, group: int, uid: int, end: int, reason: str) -> None:
        """Refuse appends to the stream from now on. `end`: the byte position behind what could not be stored."""
        stream = self._find(group, uid)
        if stream is not None:
            damaged = tuple((batch.byte, batch.byte + len(batch.payload)) for batch in stream.hot or () if not is_intact(batch))
            last = max((stop for begin, stop in damaged if begin < end), default=end)
            self.by_uid[uid] = Fault(group, stream.name, reason, last, damaged)
            self.look()

    def look(self) -> None:
        """Forget streams that are gone, or trimmed behind the damage, and measure the others."""
        sizes: dict[int, int] = {}
        for uid, fault in list(self.by_uid.items()):
            stream = self._find(fault.group, uid)
            if stream is None or not stream.hot or stream.hot[0].byte >= fault.end:
                del self.by_uid[uid]
            else:
                sizes[fault.group] = sizes.get(fault.group, 0) + stream.next_byte - stream.hot[0].byte
        if sizes != self._group_bytes:
            self._group_bytes, self.bytes = sizes, sum(sizes.values())
            self.changed()

    def forget(self, group: int) -> None:
        """The group's state was replaced by another node's, or has left this node."""
        self.by_uid = {uid: fault for uid, fault in self.by_uid.items() if fault.group != group}
        self.bytes -= self._group_bytes.pop(group, 0)

    def readable(self, uid: int, plan: ReadPlan) -> ReadPlan:
        """The page up to the first batch that fails its checksum. Raises CorruptData where it begins with one."""
        fault = self.by_uid.get(uid)
        if fault is None:
            return plan
        for number, piece in enumerate(plan.pieces):
            if isinstance(piece, HotPiece) and any(begin <= piece.byte < end for begin, end in fault.damaged):
                if number == 0:
                    raise CorruptData(f"record {piece.record} of {spelled_name(fault.name)} is damaged: its checksum is wrong")
                return ReadPlan(plan.pieces[:number], plan.begin_record, plan.begin_byte, piece.record, piece.byte, False)
        return plan

    def _find(self, group: int, uid: int) -> Stream | None:
        machine = self._machines.get(group)
        return None if machine is None else machine.by_uid.get(uid)
