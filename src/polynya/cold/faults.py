"""Streams that are set aside because a slice cannot be built: neither the journal nor another node
has the original bytes.

The fault affects only that stream. The flusher skips it, its hot bytes do not count against the
memory limits, and its journal segments stay. The fault is dropped when the stream is deleted or
trimmed past the damage. After a restart the flusher detects it again.

Slices and pages of the object store that readers of one core found damaged or short are recorded
here too. A reader gets an error each time. Health checks and metrics tell of the object until it is
read whole, or is gone: it may be restored from a copy, merged, or deleted with its streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

import msgspec

from polynya.base.errors import CorruptData, Unavailable
from polynya.base.names import spelled_name
from polynya.stream.machine import Machine
from polynya.stream.read_plan import HotPiece, ReadPlan
from polynya.stream.state.model import ColdSlice, Stream
from polynya.wire.slice_building import is_intact

NAMED_MAX = 20  # maximum number of streams named in one message
LOCATIONS_MAX = 1000  # damaged locations; more are counted at their next reads alone
OBJECTS_NAMED_MAX = 5  # in one message
log = logging.getLogger("polynya.tier")


class Fault(msgspec.Struct, frozen=True):
    """The reason why a stream is set aside. `damaged` has the byte range of each hot batch that
    fails its checksum."""

    group: int
    name: str
    reason: str
    end: int  # byte position after the slice that could not be built
    damaged: tuple[tuple[int, int], ...]


class FaultedStreams:
    """The set-aside streams of one core. `changed` is called when `bytes` changes."""

    def __init__(
        self, machines: Mapping[int, Machine], changed: Callable[[], None] = lambda: None
    ) -> None:
        self.bytes = 0  # hot bytes of these streams at the last `look`
        self._changed = changed
        self._machines = machines
        self.by_uid: dict[int, Fault] = {}
        self._group_bytes: dict[int, int] = {}

    def __contains__(self, uid: object) -> bool:
        return uid in self.by_uid

    def __len__(self) -> int:
        return len(self.by_uid)

    @property
    def names(self) -> list[str]:
        """The first NAMED_MAX stream names, as clients spell them."""
        return sorted(spelled_name(fault.name) for fault in self.by_uid.values())[:NAMED_MAX]

    def trouble(self) -> str | None:
        """Return the message for health checks, or None."""
        if not self.by_uid:
            return None
        more = len(self.by_uid) - NAMED_MAX
        named = ", ".join(self.names) + (f" and {more} more" if more > 0 else "")
        count = f"{len(self.by_uid)} streams are" if len(self.by_uid) > 1 else "1 stream is"
        return f"{count} set aside and refused appends, because recent data is damaged: {named}"

    def refuse_any(self, uids: Iterable[int]) -> None:
        """Raise Unavailable if one of the streams is set aside."""
        if any(uid in self.by_uid for uid in uids):
            raise Unavailable(f"hot data cannot be flushed to the object store: {self.trouble()}")

    def bytes_of(self, group: int) -> int:
        """Return the hot bytes of the group's streams that do not count against its limit."""
        return self._group_bytes.get(group, 0)

    def set_aside(self, group: int, uid: int, end: int, reason: str) -> None:
        """Refuse further appends to the stream. `end` is the byte position after the data that
        could not be stored."""
        stream = self._find(group, uid)
        if stream is not None:
            damaged = tuple(
                (batch.byte, batch.byte + len(batch.payload))
                for batch in stream.hot or ()
                if not is_intact(batch)
            )
            last = max((stop for begin, stop in damaged if begin < end), default=end)
            self.by_uid[uid] = Fault(group, stream.name, reason, last, damaged)
            self.look()

    def look(self) -> None:
        """Drop streams that are deleted or trimmed past the damage, and measure the others."""
        sizes: dict[int, int] = {}
        for uid, fault in list(self.by_uid.items()):
            stream = self._find(fault.group, uid)
            if stream is None or not stream.hot or stream.hot[0].byte >= fault.end:
                del self.by_uid[uid]
            else:
                sizes[fault.group] = (
                    sizes.get(fault.group, 0) + stream.next_byte - stream.hot[0].byte
                )
        if sizes != self._group_bytes:
            self._group_bytes, self.bytes = sizes, sum(sizes.values())
            self._changed()

    def forget(self, group: int) -> None:
        """Drop a group whose state was replaced by another node's, or which left this node."""
        self.by_uid = {uid: fault for uid, fault in self.by_uid.items() if fault.group != group}
        self.bytes -= self._group_bytes.pop(group, 0)

    def readable(self, uid: int, plan: ReadPlan) -> ReadPlan:
        """Cut the page before the first batch that fails its checksum. Raises CorruptData if the
        page begins with it."""
        fault = self.by_uid.get(uid)
        if fault is None:
            return plan
        for number, piece in enumerate(plan.pieces):
            if isinstance(piece, HotPiece) and any(
                begin <= piece.byte < end for begin, end in fault.damaged
            ):
                if number == 0:
                    raise CorruptData(
                        f"record {piece.record} of {spelled_name(fault.name)} is damaged: its "
                        "checksum is wrong"
                    )
                return ReadPlan(
                    plan.pieces[:number],
                    plan.begin_record,
                    plan.begin_byte,
                    piece.record,
                    piece.byte,
                    False,
                )
        return plan

    def _find(self, group: int, uid: int) -> Stream | None:
        machine = self._machines.get(group)
        return None if machine is None else machine.directory.by_uid.get(uid)


class DamagedObjects:
    """The locations that could not be read, the oldest first."""

    def __init__(self) -> None:
        self._locations: dict[tuple[str, int], str] = {}  # object and offset -> the reason
        self._reads = 0

    def note(self, cold: ColdSlice, fault: Exception) -> None:
        """Record a read that found damage. A location is logged once."""
        location = (cold.pack, cold.offset)
        self._reads += 1
        if location in self._locations or len(self._locations) >= LOCATIONS_MAX:
            return
        self._locations[location] = str(fault)
        log.error(
            "an object in the object store is damaged: its readers get an error. Run 'polynya "
            "store verify', and restore the object from a copy",
            extra={"object": cold.pack, "offset": cold.offset, "error": str(fault)},
        )

    def clear(self, cold: ColdSlice) -> None:
        """Forget a location that was read whole."""
        if self._locations:
            self._locations.pop((cold.pack, cold.offset), None)

    def gone(self, key: str) -> None:
        """Forget an object that is no longer in the store."""
        if self._locations:
            self._locations = {
                location: why for location, why in self._locations.items() if location[0] != key
            }

    def trouble(self) -> str | None:
        """Return the message for health checks, or None."""
        if not self._locations:
            return None
        names = list(dict.fromkeys(key for key, _ in self._locations))
        more = (
            f" and {len(names) - OBJECTS_NAMED_MAX} more" if len(names) > OBJECTS_NAMED_MAX else ""
        )
        return (
            f"damaged objects in the object store, whose readers get 503 DATA_DAMAGED: "
            f"{', '.join(names[:OBJECTS_NAMED_MAX])}{more}; run 'polynya store verify'"
        )

    def samples(self) -> dict[str, float]:
        """Return the metrics."""
        return {
            "polynya_damaged_places": len(self._locations),
            "polynya_damaged_reads_total": self._reads,
        }
