"""The writer of leased streams on one core: it appends only to segments that name this node.

A leader that finds another writer in the open segment logs a `Rollover` to itself first. A leader
whose segment is full logs one to the next replica, and then transfers the group to it. Appends of
the stream wait for the rollover; no append is between two writers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import structs

from polynya.base.errors import NotLeader, OutcomeUnknown, Unavailable
from polynya.base.limits import SEGMENT_BYTES, SEGMENT_RECORDS, SEGMENT_WAITING_BYTES_MAX
from polynya.local.dependencies import LedGroups
from polynya.local.waiting import size_of
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.segments.commands import Rollover
from polynya.stream.features.segments.rules import open_segments, segments_of
from polynya.stream.machine import Machine
from polynya.stream.parts import SegmentLimits
from polynya.stream.replies import Code, Done, Reply
from polynya.stream.state.model import Segments, Stream

# a leased stream keeps its group with the writer of its segment for this long after the segment was
# opened, and only while it gets appends
HOLD_SECONDS = 60.0
IDLE_SECONDS = 10.0
SEGMENT_LIMITS = SegmentLimits(SEGMENT_RECORDS, SEGMENT_BYTES)
_JUDGED = (Code.OK, Code.FENCED, Code.NOT_FOUND, Code.REFUSED)


class Rotation(Protocol):
    """The nodes that may write the segments of a group's streams."""

    node: int  # this one

    def next_writer(self, group: int) -> int:
        """Return the node for the next segment, perhaps this one."""
        ...

    def hand_over(self, group: int, node: int) -> None:
        """Begin to transfer the group to the node."""
        ...


class _Alone:
    """A node without peers."""

    node = 1

    def next_writer(self, group: int) -> int:
        return self.node

    def hand_over(self, group: int, node: int) -> None:
        raise AssertionError("a node without peers keeps its groups")


class RotatingEngine(Protocol):
    """The interface that this module needs of a replicated engine."""

    @property
    def leadership(self) -> NextWriter: ...

    node: int

    def transfer(self, group: int, node: int) -> object: ...


class NextWriter(Protocol):
    def next_writer(self, group: int) -> int: ...


class ClusterRotation:
    """The voters of a group, in the order of their numbers."""

    def __init__(self, engine: RotatingEngine) -> None:
        self.node = engine.node
        self._engine = engine

    def next_writer(self, group: int) -> int:
        return self._engine.leadership.next_writer(group)

    def hand_over(self, group: int, node: int) -> None:
        # refused: the next append finds another writer, and takes the stream back
        self._engine.transfer(group, node)


class Groups(LedGroups, Protocol):
    """The interface of the local groups that this module needs."""

    machines: dict[int, Machine]


class SegmentCounters(msgspec.Struct):
    """The counters of one core's leased streams. They only grow."""

    rollovers: int = 0  # at a limit, or on request
    takeovers: int = 0  # by a leader that the open segment does not name
    refused: int = 0  # appends, because too many waited


class _Waiting(msgspec.Struct):
    group: int
    appends: list[tuple[Append | Produce, Done]]
    rolls: list[Done]  # requests for the rollover itself


class SegmentWriter:
    """The appends to leased streams of one core. `admit` is called for each."""

    def __init__(
        self,
        groups: Groups,
        propose: Callable[[int, Command, Done], None],
        limits: SegmentLimits,
    ) -> None:
        self._groups = groups
        self._limits = limits  # of streams without their own
        self._propose = propose
        self._rotation: Rotation = _Alone()
        self._waiting: dict[int, _Waiting] = {}  # by uid, while a rollover is in flight
        self._waiting_bytes = 0
        self.counters = SegmentCounters()

    def join(self, rotation: Rotation) -> None:
        """Join a cluster, whose nodes write in turn."""
        self._rotation = rotation

    def holds(self, group: int) -> bool:
        """Report whether this node writes a leased stream of the group, whose segment is new. A
        transfer of the group would close it at once. Without a limit, leaderships that moved at a
        failure would stay where they are until segments are full."""
        machine = self._groups.machines.get(group)
        if machine is None or not machine.directory.leased:
            return False
        now_ms, here = self._groups.now_ms(), self._rotation.node
        return any(
            segments.writer == here
            and now_ms - segments.opened_ms < HOLD_SECONDS * 1000
            and now_ms - stream.activity_ms < IDLE_SECONDS * 1000
            for stream, segments in open_segments(machine)
        )

    def stamped(self, command: Create) -> Create:
        """Name this node the writer of a new leased stream's first segment."""
        if command.segments is None:
            return command
        limits = structs.replace(command.segments, writer=self._rotation.node)
        return structs.replace(command, segments=limits)

    def admit(self, group: int, stream: Stream, command: Append | Produce, done: Done) -> bool:
        """Return True if the append may go to the log now. Else it waits for a rollover, or is
        refused because too many wait."""
        segments = segments_of(stream)
        if segments is None or stream.closed or stream.deleted:
            return True  # the log refuses it
        waiting = self._waiting.get(stream.uid)
        if waiting is None:
            here = self._rotation.node
            if segments.writer == here and not self._is_full(stream, segments):
                return True
            if group not in self._groups.led:
                return True  # the engine names the leader
            waiting = self._waiting[stream.uid] = _Waiting(group, [], [])
            self._hold(waiting, command, done)
            self._roll(group, stream, segments)
        else:
            self._hold(waiting, command, done)
        return False

    def roll(self, group: int, stream: Stream, epoch: int, done: Done) -> bool:
        """Close the open segment of a led stream before it is full. `done` gets the reply, or why
        there is none. Return False if nothing is to be closed: another epoch than this one (0: any)
        is open, it has no records, or the stream takes no appends."""
        segments = segments_of(stream)
        if segments is None or stream.closed or stream.deleted:
            return False
        if epoch not in (0, segments.epoch) or stream.next_record == segments.record:
            return False
        waiting = self._waiting.get(stream.uid)
        if waiting is not None:
            waiting.rolls.append(done)
            return True
        self._waiting[stream.uid] = _Waiting(group, [], [done])
        self._roll(group, stream, segments)
        return True

    def _is_full(self, stream: Stream, segments: Segments) -> bool:
        limits = self._limits
        return stream.next_record - segments.record >= (
            segments.records_max or limits.records
        ) or stream.next_byte - segments.byte >= (segments.bytes_max or limits.bytes)

    def _hold(self, waiting: _Waiting, command: Append | Produce, done: Done) -> None:
        size = size_of(command.batch)
        if self._waiting_bytes + size > SEGMENT_WAITING_BYTES_MAX:
            self.counters.refused += 1
            done(Unavailable("too many appends wait for a segment to be rolled over; retry"))
            return
        self._waiting_bytes += size
        waiting.appends.append((command, done))

    def _roll(self, group: int, stream: Stream, segments: Segments) -> None:
        rotation, uid = self._rotation, stream.uid
        takes = segments.writer != rotation.node
        writer = rotation.node if takes else rotation.next_writer(group)

        def rolled(reply: Reply | BaseException) -> None:
            if isinstance(reply, Reply) and reply.code == Code.OK:
                self.counters.takeovers += takes
                self.counters.rollovers += not takes
                if writer != rotation.node:
                    rotation.hand_over(group, writer)
            self._release(uid, reply)

        command = Rollover(stream.name, uid, segments.epoch, writer, self._groups.now_ms())
        self._propose(group, command, rolled)

    def _release(self, uid: int, reply: Reply | BaseException) -> None:
        """Propose what waited for a rollover again, in order; none of it was in the log."""
        waiting = self._waiting.pop(uid)
        for roll in waiting.rolls:
            roll(reply)
        for command, done in waiting.appends:
            self._waiting_bytes -= size_of(command.batch)
            if isinstance(reply, OutcomeUnknown):
                done(NotLeader(0))  # of the rollover alone: an append is safe to repeat
            elif isinstance(reply, BaseException) or reply.code not in _JUDGED:
                done(reply)
            elif waiting.group in self._groups.machines:
                self._groups.propose(waiting.group, self._groups.stamped(command), done)
            else:
                done(NotLeader(0))
