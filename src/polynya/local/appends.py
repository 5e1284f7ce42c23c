"""Appends to the groups of one core: judged by committed state, limited by memory, then
proposed."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Protocol

from polynya.base.errors import NotLeader
from polynya.cold import FaultedStreams
from polynya.local.dependencies import Proposer
from polynya.local.hot_memory import HotMemory
from polynya.local.lifetimes.lifecycle import StreamLifecycle
from polynya.local.profile_changes import ProfileChanges
from polynya.local.segments import SegmentWriter
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.features.appends.repeats import adds_nothing
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.features.profiles.rules import profile_of
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Done, Reply


class Waiting(Protocol):
    """The interface of the rehydration for appends."""

    @property
    def racing(self) -> Mapping[str, int]: ...

    def hold(self, group: int, name: str, command: Command, done: Done) -> None: ...


class Groups(Protocol):
    """The interface of the local groups that decides about an append before the log does."""

    lifecycle: StreamLifecycle
    profiles: ProfileChanges

    def readable(self, group: int) -> bool: ...


class Appends:
    """The appends of one core. `epoch` changes whenever the judgement of a stream may change: by
    any applied command other than an append, an eviction in flight, a fault, or a group that comes
    or goes."""

    def __init__(
        self,
        machines: Mapping[int, Machine],
        proposer: Proposer,
        groups: Groups,
        memory: HotMemory,
        faulted: FaultedStreams,
        rehydration: Waiting,
        segments: SegmentWriter,
    ) -> None:
        self.epoch = 0
        self._segments = segments
        self._lifecycle = groups.lifecycle
        self._profiles = groups.profiles
        self._machines = machines
        self._proposer = proposer
        self._groups = groups
        self._memory = memory
        self._faulted = faulted
        self._rehydration = rehydration

    def propose(self, group: int, command: Append | Produce, done: Done) -> bool:
        """Propose an append that was stamped in this pass of the loop, unless committed state
        allows a definite refusal. Return True if the next one to its stream needs no such
        judgement, until the epoch changes."""
        machine = self._machines.get(group)
        if machine is None:  # the group left while the command waited
            done(NotLeader(0))
            return False
        name, racing = command.name, self._rehydration.racing
        stream = machine.directory.streams.get(name)
        plain = False
        if stream is None:
            if name in machine.directory.evicted:
                self._rehydration.hold(group, name, command, done)
                return False
            if self._lifecycle.settled(name) and self._groups.readable(group):
                done(Reply(Code.NOT_FOUND))
                return False
        elif stream.ttl_seconds is not None or stream.expires_at_ms is not None:
            self._lifecycle.judge_time(group, stream)
        elif racing and name in racing:
            self._rehydration.hold(group, name, command, done)
            return False
        else:
            plain = True
        if self._faulted.by_uid and stream is not None and stream.uid in self._faulted:
            plain = False
            if not adds_nothing(stream, command):
                done(Reply(Code.STREAM_FAULTED))
                return False
        if (
            machine.diskless.streams
            and stream is not None
            and stream.uid in machine.diskless.streams
        ):
            plain = False
            if profile_of(stream) == Profile.DISKLESS:  # for the writer of the core that took it
                done(Reply(Code.WRONG_PROFILE))
            else:
                self._profiles.hold(group, command, done)
            return False
        if self._profiles.changes and name in self._profiles.changes:
            self._profiles.hold(group, command, done)
            return False
        if (
            machine.directory.leased
            and stream is not None
            and stream.uid in machine.directory.leased
        ):
            plain = False
            if not self._segments.admit(group, stream, command, done):
                return False
        self.admit(group, command, done)
        return plain

    def admit(self, group: int, command: Append | Produce, done: Done) -> None:
        """Propose an append that is within the limits of memory, or adds nothing; refuse others."""
        batch = command.batch
        size = 0 if batch is None else len(batch.payload)
        proposer, memory, machine = self._proposer, self._memory, self._machines[group]
        more = proposer.inflight_bytes + size
        if (
            (
                memory.bytes + more <= memory.bytes_max
                and machine.directory.hot_bytes + more <= memory.group_bytes_max
            )
            or not size
            or memory.has_room(group, size)
            or adds_nothing(machine.directory.streams.get(command.name), command)
        ):
            proposer.propose(group, command, done)
        else:
            memory.refuse(size, done)


class DisklessAppends(Protocol):
    """The interface of the routes of diskless streams."""

    @property
    def names(self) -> Container[str]: ...

    def append(self, group: int, command: Append | Produce, done: Done) -> None: ...

    def watching(self, group: int, command: Command, done: Done) -> Done: ...


class Appender:
    """The bound appender of one stream of a local group. It judges the stream once in an epoch."""

    __slots__ = ("_appends", "_diskless", "_epoch", "_group")

    def __init__(self, appends: Appends, group: int, diskless: DisklessAppends) -> None:
        self._appends = appends
        self._diskless = diskless
        self._group = group
        self._epoch = -1  # in which the stream needs no judgement

    def append(self, command: Append | Produce, done: Done) -> None:
        """Propose an append to the stream."""
        appends = self._appends
        epoch = appends.epoch
        if self._epoch == epoch:
            appends.admit(self._group, command, done)
        elif command.name in self._diskless.names:
            self._diskless.append(self._group, command, done)
        else:
            done = self._diskless.watching(self._group, command, done)
            self._epoch = epoch if appends.propose(self._group, command, done) else -1
