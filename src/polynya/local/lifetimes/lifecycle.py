"""Create, delete and expire the streams of one core, and know which names have not settled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from polynya.base.errors import NotLeader
from polynya.local.dependencies import LedGroups
from polynya.local.hooks import after_applied, proposed
from polynya.local.hot_memory import HotMemory
from polynya.local.lifetimes.ttl import Lifetimes, found_in_grace
from polynya.local.segments import SegmentWriter
from polynya.stream.command import Command
from polynya.stream.features.forks.commands import ConfirmPin, PinSource, Unpin
from polynya.stream.features.lifetimes.commands import (
    Create,
    CreateWithAttributes,
    Delete,
    Expire,
    Touch,
)
from polynya.stream.features.tables.watches import held_from
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Done, Reply
from polynya.stream.state.model import Stream

# creates that wait for a fork attempt on the deleted stream of that name
WAITING_CREATES_MAX = 1024


class Groups(LedGroups, Protocol):
    """The interface of the local groups that this module needs."""

    machines: dict[int, Machine]

    def readable(self, group: int) -> bool: ...

    def propose_again(self, group: int, command: Command, done: Done) -> None: ...


class StreamLifecycle:
    """The creates, deletes and expiries of one core. `propose` sends to the log; the groups judge
    a command that has waited as a new one."""

    def __init__(
        self,
        groups: Groups,
        propose: Callable[[int, Command, Done], None],
        lifetimes: Lifetimes,
        memory: HotMemory,
        segments: SegmentWriter,
    ) -> None:
        self._groups = groups
        self._machines = groups.machines
        self._propose = propose
        self._lifetimes = lifetimes
        self._memory = memory
        self._segments = segments
        self._unsettled: dict[str, int] = {}  # names with a create, delete or expiry in flight
        self._waiting_creates: list[tuple[int, Create, Done]] = []

    def settled(self, name: str) -> bool:
        """Report whether committed state may refuse at once: no create, delete or expiry of `name`
        is in flight."""
        return name not in self._unsettled

    # --- creates ----------------------------------------------------------------------------------

    @proposed(Create, CreateWithAttributes)
    def create(self, group: int, command: Create, done: Done) -> None:
        """Propose a create, unless the memory has no room for its batch."""
        machine = self._machines[group]
        batch = command.batch
        if batch is not None and not self._memory.has_room(group, len(batch.payload)):
            self._memory.refuse(len(batch.payload), done)
            return
        stream = machine.directory.lookup(command.name)
        self.judge_time(group, stream)
        command = self._segments.stamped(command)
        if (
            stream is not None
            and not stream.deleted
            and self._lifetimes.is_in_grace(machine, stream)
        ):
            self._find_in_grace(group, stream, command, done)
            return

        def created(reply: Reply | BaseException) -> None:
            pending = isinstance(reply, Reply) and reply.code == Code.ATTEMPT_PENDING
            if pending and len(self._waiting_creates) < WAITING_CREATES_MAX:
                # retried once the pending fork of the deleted stream is decided
                self._waiting_creates.append((group, command, done))
            else:
                done(reply)

        self._propose_settling(group, command, created)

    def _find_in_grace(self, group: int, stream: Stream, command: Create, done: Done) -> None:
        """Answer a create in the grace period: the log alone would recreate the stream. The reply
        to a no-op linearizes the lookup."""

        def reached(reply: Reply | BaseException) -> None:
            found = found_in_grace(self._machines.get(group), stream.uid, command, reply)
            if found is None:
                self._groups.propose_again(group, command, done)
            else:
                done(found)

        self._propose(
            group, Touch([(stream.uid, stream.activity_ms)], self._groups.now_ms()), reached
        )

    @after_applied(ConfirmPin, Unpin)
    def retry_creates(self, group: int, command: ConfirmPin | Unpin, reply: Reply) -> None:
        """Propose the waiting creates again when a fork attempt is decided."""
        waiting, self._waiting_creates = self._waiting_creates, []
        for waiting_group, create, done in waiting:
            self._groups.propose(waiting_group, create, done)

    def forget(self, group: int) -> None:
        """Refuse the waiting creates of a group that has left: this core may never see the
        decision."""
        for each in [each for each in self._waiting_creates if each[0] == group]:
            self._waiting_creates.remove(each)
            each[2](NotLeader(0))

    # --- deletes and expiry -----------------------------------------------------------------------

    @proposed(Delete)
    def delete(self, group: int, command: Delete, done: Done) -> None:
        """Propose a delete, unless committed state says that there is no such stream."""
        stream = self._machines[group].directory.lookup(command.name)
        if stream is None and command.name not in self._unsettled and self._groups.readable(group):
            done(Reply(Code.NOT_FOUND))
            return
        self.judge_time(group, stream)
        self._propose_settling(group, command, done)

    @proposed(PinSource)
    def pin(self, group: int, command: PinSource, done: Done) -> None:
        """Propose a fork's pin, behind the expiry of its source."""
        self.judge_time(group, self._machines[group].directory.lookup(command.name))
        self._propose(group, command, done)

    def judge_time(self, group: int, stream: Stream | None) -> None:
        """Log unlogged reads and the expiry of the stream before the command that depends on
        them."""
        if (
            stream is not None
            and not stream.deleted
            and (stream.ttl_seconds is not None or stream.expires_at_ms is not None)
        ):
            self._lifetimes.log_before_end(group, stream)
            if self._lifetimes.is_over(self._machines[group], stream):
                self._expire(group, stream)

    def is_over(self, machine: Machine, group: int, stream: Stream) -> bool:
        """Report whether a stream with an end has expired. The first to find it proposes its
        expiry."""
        if not self._lifetimes.is_over(machine, stream):
            return False
        if stream.name not in self._unsettled and group in self._groups.led:
            self._expire(group, stream)
        return True

    def sweep(self) -> None:
        """Expire streams that no request has found. Call this about once a second."""
        for group, stream in self._lifetimes.sweep():
            if group in self._groups.led and stream.name not in self._unsettled:
                self._expire(group, stream)

    def _expire(self, group: int, stream: Stream) -> None:
        if held_from(self._machines[group], stream) is None:
            now_ms = self._groups.now_ms()
            command = Expire(stream.name, stream.uid, stream.activity_ms, now_ms)
            self._propose_settling(group, command, _ignore)

    # --- settling ---------------------------------------------------------------------------------

    def _propose_settling(self, group: int, command: Create | Delete | Expire, done: Done) -> None:
        name = command.name
        self._unsettled[name] = self._unsettled.get(name, 0) + 1

        def settled(reply: Reply | BaseException) -> None:
            self._settle(name)
            done(reply)

        try:
            self._propose(group, command, settled)
        except Exception:  # the command cannot be encoded
            self._settle(name)
            raise

    def _settle(self, name: str) -> None:
        left = self._unsettled[name] - 1
        if left:
            self._unsettled[name] = left
        else:
            del self._unsettled[name]


def _ignore(reply: Reply | BaseException) -> None:
    """Ignore the reply: a command that is still needed is proposed again."""
