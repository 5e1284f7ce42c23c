"""Changes of the profile of streams, on the core that leads their groups (docs/decisions/0027), and
streams that are not ready for a commit.

A change to diskless waits until nothing of the stream is hot. Its appends are held meanwhile, each
for a second at most, and then judged again. A change that takes too long is taken back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.limits import PROFILE_WAITING_BYTES_MAX
from polynya.local.dependencies import LedGroups
from polynya.local.hooks import after_applied
from polynya.local.waiting import size_of
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.features.profiles.commands import (
    CommitSlices,
    Profile,
    SealProfileEpoch,
    SetProfile,
)
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Done, Reply
from polynya.stream.state.model import Stream
from polynya.stream.state.profile_epochs import profile_epoch_of

HOLD_SECONDS = 1.0  # for which an append waits; then the client repeats it
CHANGE_MS_MAX = 5000  # of log time; then the change is taken back
_BUSY = "the profile of the stream changes; retry"


class _Held(msgspec.Struct):
    until: float
    command: Append | Produce
    done: Done


class _Change(msgspec.Struct):
    """The change of one stream."""

    group: int
    begins: bool = False  # its `SetProfile` is in flight
    ends: bool = False  # a `SealProfileEpoch` or the `SetProfile` back is in flight
    callers: list[Done] = []
    appends: deque[_Held] = msgspec.field(default_factory=deque)


class ProfileChanges:
    """The changes of one core. `flush_soon` begins to flush a stream. Call `look` after commands
    of a group with changing streams, and `sweep` every second."""

    def __init__(self, groups: LedGroups, propose: Callable[[int, Command, Done], None]) -> None:
        self.flush_soon: Callable[[str], None] = lambda name: None
        self.changes: dict[str, _Change] = {}  # by name of the stream, whose appends are held
        self._groups = groups
        self._propose = propose
        self._waiting_bytes = 0

    def begin(self, group: int, command: SetProfile, done: Done) -> None:
        """Propose a `SetProfile`. The reply comes when the change ended: OK, or NOT_YET if it was
        taken back."""
        if command.profile != Profile.DISKLESS:
            self._propose(group, command, done)
            return
        name = command.name
        change = self.changes.get(name)
        if change is not None:
            change.callers.append(done)
            return
        change = self.changes[name] = _Change(group, begins=True, callers=[done])

        def begun(reply: Reply | BaseException) -> None:
            change.begins = False
            if isinstance(reply, Reply) and reply.code == Code.OK and reply.detail[2]:
                self.flush_soon(name)
            else:
                self._end(name, reply)

        try:
            self._propose(group, command, begun)
        except Exception:  # the command cannot be encoded
            del self.changes[name]
            raise

    @after_applied(CommitSlices, keeps_judgements=True)
    def note(self, group: int, command: CommitSlices, reply: Reply) -> None:
        """Handle an applied commit. In a group that this core leads, flush the streams that refused
        it because they have hot batches."""
        if group not in self._groups.led:
            return
        replies = iter(reply.detail if reply.code == Code.OK else ())
        for part in command.slices:
            codes = {each.code for _, each in zip(part.appends, replies, strict=False)}
            if Code.NOT_YET in codes:
                self.flush_soon(part.appends[0].command.name)

    def hold(self, group: int, command: Append | Produce, done: Done) -> None:
        """Hold an append to a stream whose profile changes."""
        if group not in self._groups.led:
            self._propose(group, command, done)  # the engine names the leader
            return
        size = size_of(command.batch)
        if self._waiting_bytes + size > PROFILE_WAITING_BYTES_MAX:
            done(Unavailable("too many appends wait for the profile of their stream; retry"))
            return
        name, loop = command.name, asyncio.get_running_loop()
        change = self.changes.get(name)
        if change is None:  # of an earlier leader
            change = self.changes[name] = _Change(group)
        self._waiting_bytes += size
        change.appends.append(_Held(loop.time() + HOLD_SECONDS, command, done))
        loop.call_later(HOLD_SECONDS, self._expire, change)

    def look(self, group: int) -> None:
        """Seal the changes of a group whose streams have nothing hot, take those back that took too
        long, and end those that are over."""
        machine = self._groups.led.get(group)
        for stream in list(machine.diskless.changing.values()) if machine is not None else ():
            change = self.changes.get(stream.name)
            if change is None:
                change = self.changes[stream.name] = _Change(group)
            if not change.ends:
                self._continue(group, stream, change)
        for name, change in list(self.changes.items()):
            if change.group == group and not change.begins and not _changes(machine, name):
                self._end(name, _result(machine, name))

    def sweep(self) -> None:
        """Look at all groups with changes."""
        groups = {change.group for change in self.changes.values()}
        groups.update(
            group for group, machine in self._groups.led.items() if machine.diskless.changing
        )
        for group in sorted(groups):
            self.look(group)

    def _continue(self, group: int, stream: Stream, change: _Change) -> None:
        now_ms, profile_epoch = self._groups.now_ms(), profile_epoch_of(stream)
        command: Command
        if stream.hot is None:
            command = SealProfileEpoch(stream.name, stream.uid, profile_epoch.epoch, now_ms)
        elif now_ms - profile_epoch.changing_since_ms >= CHANGE_MS_MAX:
            command = SetProfile(
                stream.name, profile_epoch.profile, now_ms, stream.uid, profile_epoch.epoch
            )
        else:
            self.flush_soon(stream.name)
            return
        change.ends = True

        def ended(reply: Reply | BaseException) -> None:
            change.ends = False  # unless it is over, the next look repeats it

        self._propose(group, command, ended)

    def _end(self, name: str, result: Reply | BaseException) -> None:
        """Answer the callers, and judge the appends again, in order."""
        change = self.changes.pop(name)
        for done in change.callers:
            done(result)
        while change.appends:  # nothing stays for the timers
            held = change.appends.popleft()
            self._waiting_bytes -= size_of(held.command.batch)
            self._groups.propose(change.group, self._groups.stamped(held.command), held.done)

    def _expire(self, change: _Change) -> None:
        now = asyncio.get_running_loop().time()
        while change.appends and change.appends[0].until <= now:
            held = change.appends.popleft()
            self._waiting_bytes -= size_of(held.command.batch)
            held.done(Unavailable(_BUSY))


def _changes(machine: Machine | None, name: str) -> bool:
    stream = None if machine is None else machine.directory.streams.get(name)
    return stream is not None and machine is not None and stream.uid in machine.diskless.changing


def _result(machine: Machine | None, name: str) -> Reply | BaseException:
    """Return the outcome of a change for who asked for it."""
    if machine is None:
        return OutcomeUnknown("another node leads the group now; look at the stream's profile")
    stream = machine.directory.streams.get(name)
    if stream is None:
        return machine.directory.absent(name)
    profile_epoch = profile_epoch_of(stream)
    code = Code.OK if profile_epoch.profile == Profile.DISKLESS else Code.NOT_YET
    detail = (profile_epoch.profile, profile_epoch.epoch, False)
    return Reply(code, stream.uid, stream.next_record, stream.next_byte, detail=detail)
