"""The coordinator of the consumer groups whose Raft groups this core leads.

A call from any core is passed to the core that leads the Raft group of the group's id. What a
coordinator remembers beyond the log ends with its term: the next leader loads the log's state, and
begins each session again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeGuard

from polynya.base.errors import NotLeader, UpgradePending
from polynya.base.futures import settle
from polynya.base.levels import CONSUMER_PROTOCOL_LEVEL
from polynya.base.limits import CONSUMER_GROUPS_MAX, OFFSETS_RETENTION_SECONDS
from polynya.jobs import repeat
from polynya.routing import messages
from polynya.service.consumer_groups import consumer_protocol
from polynya.service.consumer_groups.configs import GroupConfigs
from polynya.service.consumer_groups.consumer_protocol import AnyRunning
from polynya.service.consumer_groups.running import RunningGroup, clock_ms
from polynya.service.consumer_groups.topic_source import TopicSource
from polynya.service.node_service import NodeService
from polynya.stream.command import Command
from polynya.stream.features.consumer_groups.calls import (
    Answer,
    Call,
    Commit,
    CommitInTransaction,
    ConsumerHeartbeat,
    Describe,
    Description,
    Drop,
    DropPartitionOffsets,
    FetchOffsets,
    GroupError,
    Heartbeat,
    Join,
    Leave,
    ListAll,
    Listing,
    Offsets,
    Outcomes,
    Sync,
)
from polynya.stream.features.consumer_groups.classic import ClassicGroup, Request, State, described
from polynya.stream.features.consumer_groups.commands import (
    CommitOffsets,
    ConsumerGroupDrop,
    DropOffsets,
    ExpireOffsets,
    TxnOffsets,
)
from polynya.stream.features.consumer_groups.modern import ModernGroup, described_modern
from polynya.stream.features.consumer_groups.modern_members import JOIN_EPOCH
from polynya.stream.features.consumer_groups.rules import old_offsets
from polynya.stream.features.consumer_groups.state import CONSUMER, ConsumerGroup, unpacked_key
from polynya.stream.features.consumer_groups.subscription import topics_of
from polynya.stream.features.consumer_groups.topic_view import TopicView
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Done, Reply

_UNUSED_MS = 600_000  # a group without members and offsets is deleted after this
_LOOK_SECONDS = 0.25  # until calls that wait learn that this core leads no longer
_EXPIRE_SECONDS = 60.0
_EXPIRE_AT_ONCE = 100
_DEAD = "Dead"


def raft_group_of(service: NodeService, id_: str) -> int:
    """Return the Raft group that has a consumer group."""
    return service.group_of(f"consumer-group/{id_}")


class ConsumerGroupCoordinator:
    """The consumer groups of one core."""

    def __init__(
        self,
        service: NodeService,
        term: Callable[[int], int],
        *,
        new_id: Callable[[str], str] | None = None,
    ) -> None:
        """Create it. `term` returns the term of a Raft group."""
        self.retention_ms = round(OFFSETS_RETENTION_SECONDS * 1000)  # of an idle group's offsets
        self._service = service
        self._term = term
        self._new_id = new_id or _new_id
        self._topics = TopicSource(service.meta_group)
        self._configs = GroupConfigs(service.meta_group)
        self._led: dict[int, _Led] = {}
        self._loading: dict[int, asyncio.Task[_Led]] = {}
        self._is_settled = False  # all groups that are led here are loaded, none of another term
        self._expire_at = 0.0
        service.rpc.serve(messages.CONSUMER_GROUPS, Call, Answer, self.handle)

    def group_of(self, id_: str) -> int:
        """Return the Raft group of a consumer group."""
        return raft_group_of(self._service, id_)

    async def call(self, call: Call, *, here: bool = False) -> Answer:
        """Return the answer of the group's coordinator, on whichever node. `here`: raise NotLeader
        unless it is on this one, as a commit that was held up must not come to another node behind
        its client's later ones. Raises PolynyaError."""
        assert not isinstance(call, ListAll)
        raft_group, rpc = self.group_of(call.group), self._service.rpc
        answer: Answer
        if here:
            answer = await rpc.at_own_home(raft_group, messages.CONSUMER_GROUPS, call, self.handle)
            return answer
        changes = not isinstance(call, FetchOffsets | Describe | Heartbeat)
        answer = await rpc.at_home(
            raft_group, messages.CONSUMER_GROUPS, call, self.handle, changes=changes
        )
        return answer

    async def list_groups(self, raft_groups: Iterable[int]) -> list[Description]:
        """Return the consumer groups of some Raft groups, from their coordinators."""
        by_core: dict[int, list[int]] = {}
        for raft_group in raft_groups:
            by_core.setdefault(self._service.rpc.home_of(raft_group), []).append(raft_group)
        found: list[Description] = []
        for core_id, some in by_core.items():
            asked = ListAll(some)
            if core_id == self._service.rpc.core:
                listing = await self.handle(asked)
            else:
                listing = await self._service.rpc.ask(core_id, messages.CONSUMER_GROUPS, asked)
            assert isinstance(listing, Listing)
            found += listing.groups
        return found

    def stored(self) -> Iterator[ConsumerGroup]:
        """Yield the logged groups that this core coordinates."""
        for led in self._led.values():
            yield from led.machine.consumer_groups.by_id.values()

    async def run(self) -> None:
        """Watch the leaderships and delete what expires. Run until cancelled."""
        self._expire_at = asyncio.get_running_loop().time() + _EXPIRE_SECONDS
        try:
            await repeat(self._look, _LOOK_SECONDS)
        finally:
            self.close()

    def leadership_changed(self, raft_group: int) -> None:
        """Look at the leaderships soon."""
        self._is_settled = False

    def close(self) -> None:
        """Answer the calls that wait."""
        self._configs.close()
        for task in self._loading.values():
            task.cancel()
        for raft_group in tuple(self._led):
            self._led.pop(raft_group).close()

    def expire(self) -> None:
        """Delete the offsets of groups that have been idle for the retention."""
        now_ms = self._service.now_ms()
        before_ms = now_ms - self.retention_ms
        for raft_group, led in tuple(self._led.items()):
            for id_ in tuple(led.running):
                led.drop_idle(id_)
            due = (
                group.id
                for group in led.machine.consumer_groups.by_id.values()
                if not (group.members or group.pending)
                and (
                    old_offsets(group, before_ms)
                    or (not group.offsets and group.used_ms < now_ms - _UNUSED_MS)
                )
            )
            for _, id_ in zip(range(_EXPIRE_AT_ONCE), due, strict=False):
                self._service.local.propose(raft_group, ExpireOffsets(id_, before_ms), _ignore)

    # --- leadership -------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Drop what belongs to ended terms; load the groups of new ones, to watch their
        sessions. Delete what expires."""
        if not self._is_settled:
            for raft_group in tuple(self._led):
                self._valid(raft_group)
            missing = [each for each in self._service.local.led if each and each not in self._led]
            for raft_group in missing:
                self._load(raft_group)
            self._is_settled = not missing
        now = asyncio.get_running_loop().time()
        if now >= self._expire_at:
            self._expire_at = now + _EXPIRE_SECONDS
            self.expire()

    def _valid(self, raft_group: int) -> _Led | None:
        """Return the groups of the present term, if they are loaded."""
        led = self._led.get(raft_group)
        machine = self._service.local.led.get(raft_group)
        if led is None:
            return None
        if machine is not led.machine or led.term != self._term(raft_group):
            self._led.pop(raft_group).close()
            self._is_settled = False
            return None
        return led

    def _load(self, raft_group: int) -> asyncio.Task[_Led]:
        task = self._loading.get(raft_group)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._load_now(raft_group))
            self._loading[raft_group] = task
            task.add_done_callback(partial(self._loaded, raft_group))
        return task

    def _loaded(self, raft_group: int, task: asyncio.Task[_Led]) -> None:
        self._loading.pop(raft_group, None)
        if not task.cancelled():
            task.exception()  # callers that wait got it; else the next look tries again

    async def _load_now(self, raft_group: int) -> _Led:
        """Read the log's state, after all that earlier leaders may have committed."""
        service = self._service
        if raft_group not in service.local.led:
            raise NotLeader(service.directory.leader(raft_group))
        term = self._term(raft_group)
        await service.local.linearize(raft_group)
        machine = service.local.led.get(raft_group)
        if machine is None or term != self._term(raft_group):
            raise NotLeader(0)
        stored_groups = machine.consumer_groups.by_id.values()
        if any(stored.kind == CONSUMER and stored.members for stored in stored_groups):
            await self._topics.refresh()
            await self._configs.refresh(waits=True)
        if machine is not service.local.led.get(raft_group) or term != self._term(raft_group):
            raise NotLeader(0)
        propose = partial(self._propose, raft_group)
        led = _Led(machine, term, propose, self._new_id, self._topics.view, self._configs.timeouts)
        self._led[raft_group] = led
        for stored in machine.consumer_groups.by_id.values():
            if stored.members:
                led.resume(stored)
        return led

    def _propose(self, raft_group: int, command: Command, done: Done) -> None:
        """Log a command as the leader of the loaded term, never through another node."""
        if self._valid(raft_group) is None:
            done(NotLeader(0))
        else:
            self._service.local.propose(raft_group, command, done)

    # --- calls ------------------------------------------------------------------------------------

    async def handle(self, call: Call) -> Answer:
        """Answer a call on the core that leads the Raft group."""
        if isinstance(call, ListAll):
            return Listing([each for group in call.raft_groups for each in await self._list(group)])
        if isinstance(call, ConsumerHeartbeat):
            await self._topics.refresh(call.topics or ())
            await self._configs.refresh(waits=call.epoch == JOIN_EPOCH)
        raft_group = self.group_of(call.group)
        led = await self._ready(raft_group)
        if isinstance(call, ConsumerHeartbeat):
            self._check_level(led)
        if isinstance(call, FetchOffsets | Describe):
            await self._service.local.linearize(raft_group)
        answer: Answer = await _HANDLERS[type(call)](led, call)
        return answer

    def _check_level(self, led: _Led) -> None:
        """Raise UpgradePending while the log may not have the consumer protocol."""
        level = led.machine.counters.level
        if self._service.local.agreement is not None and level < CONSUMER_PROTOCOL_LEVEL:
            raise UpgradePending("some nodes run an older release: finish the upgrade")

    async def _ready(self, raft_group: int) -> _Led:
        """Return the groups of the present term. Raises NotLeader and Unavailable."""
        led = self._valid(raft_group)
        return led if led is not None else await asyncio.shield(self._load(raft_group))

    async def _list(self, raft_group: int) -> list[Description]:
        led = await self._ready(raft_group)
        await self._service.local.linearize(raft_group)
        known = led.machine.consumer_groups.by_id
        return [
            Description(found.group, found.state, found.protocol_type, kind=found.kind)
            for id_ in sorted({*known, *led.running})
            if (found := led.describe(id_)).state != _DEAD
        ]


class _Led:
    """The consumer groups of one Raft group in one term."""

    def __init__(
        self,
        machine: Machine,
        term: int,
        propose: Callable[[Command, Done], None],
        new_id: Callable[[str], str],
        topics: TopicView,
        timeouts: Callable[[str], tuple[int, int]],
    ) -> None:
        self._new_id = new_id
        self._topics = topics
        self.timeouts = timeouts  # of a group of the consumer protocol: session, heartbeats
        self.machine = machine
        self.term = term
        self._propose = propose
        self._closed = False
        self.running: dict[str, AnyRunning] = {}

    def start(self, stored: ConsumerGroup) -> RunningGroup[ClassicGroup]:
        """Return a group of the classic protocol that runs from here on."""
        group = ClassicGroup.load(stored, self._new_id, clock_ms())
        running = RunningGroup(group, self.propose, partial(self._fault, stored.id))
        self.running[stored.id] = running
        return running

    def start_modern(self, stored: ConsumerGroup) -> RunningGroup[ModernGroup]:
        """Return a group of the consumer protocol that runs from here on."""
        group = ModernGroup.load(stored, self._topics, clock_ms(), self.timeouts(stored.id))
        running = RunningGroup(group, self.propose, partial(self._fault, stored.id))
        self.running[stored.id] = running
        return running

    def find(self, id_: str) -> AnyRunning | None:
        """Return a group that runs, or one that the log has with members."""
        running = self.running.get(id_)
        if running is None:
            stored = self.machine.consumer_groups.get(id_)
            if stored is not None and stored.members:
                return self.resume(stored)
        return running

    def find_classic(self, id_: str) -> RunningGroup[ClassicGroup] | None:
        """Return a group of the classic protocol as `find` does."""
        running = self.find(id_)
        return running if running is not None and _is_classic(running) else None

    def resume(self, stored: ConsumerGroup) -> AnyRunning:
        """Return a group with logged members that runs from here on."""
        return self.start_modern(stored) if stored.kind == CONSUMER else self.start(stored)

    def propose(self, command: Command, done: Done) -> None:
        """Log a command in this term alone."""
        if self._closed:
            done(NotLeader(0))
        else:
            self._propose(command, done)

    def describe(self, id_: str) -> Description:
        running = self.running.get(id_)
        if running is not None and not running.is_idle:
            group = running.group
            return described_modern(group) if isinstance(group, ModernGroup) else described(group)
        stored = self.machine.consumer_groups.get(id_)
        if stored is None or stored.is_shell:
            return Description(id_, _DEAD)
        return Description(
            id_,
            State.EMPTY.value,
            stored.protocol_type,
            kind=stored.kind,
            epoch=stored.generation if stored.kind == CONSUMER else 0,
        )

    def drop_idle(self, id_: str) -> None:
        """Forget a group of which the log has all."""
        running = self.running.get(id_)
        if running is not None and running.is_idle:
            del self.running[id_]

    def close(self) -> None:
        self._closed = True
        for running in self.running.values():
            running.close(GroupError.NOT_COORDINATOR)
        self.running.clear()

    def _fault(self, id_: str, error: GroupError) -> None:
        """Drop a group whose state could not be logged: the next call loads it again."""
        running = self.running.pop(id_, None)
        if running is not None:
            running.close(error)


def _is_classic(running: AnyRunning) -> TypeGuard[RunningGroup[ClassicGroup]]:
    return isinstance(running.group, ClassicGroup)


def _is_modern(running: AnyRunning) -> TypeGuard[RunningGroup[ModernGroup]]:
    return isinstance(running.group, ModernGroup)


async def _join(led: _Led, call: Join) -> Answer:
    other = led.find(call.group)
    if other is not None and _is_modern(other):
        if not other.is_idle:
            return Outcomes([GroupError.INCONSISTENT_GROUP_PROTOCOL])
        led.drop_idle(call.group)
    running = led.find_classic(call.group)
    if running is None:
        stored = led.machine.consumer_groups.get(call.group)
        if stored is None and call.member:
            return Outcomes([GroupError.UNKNOWN_MEMBER_ID])
        if stored is None and len(led.running) >= CONSUMER_GROUPS_MAX:
            return Outcomes([GroupError.GROUP_MAX_SIZE_REACHED])
        running = led.start(stored or ConsumerGroup(call.group))
    group = running.group
    answer = await running.ask(lambda ticket: group.join(call, ticket, clock_ms()))
    led.drop_idle(call.group)
    return answer


async def _sync(led: _Led, call: Sync) -> Answer:
    running = led.find_classic(call.group)
    if running is None:
        return Outcomes([GroupError.UNKNOWN_MEMBER_ID])
    group = running.group
    return await running.ask(lambda ticket: group.sync(call, ticket, clock_ms()))


async def _heartbeat(led: _Led, call: Heartbeat) -> Answer:
    running = led.find_classic(call.group)
    if running is None:
        return Outcomes([GroupError.UNKNOWN_MEMBER_ID])
    return Outcomes([running.group.check(Request.HEARTBEAT, call, clock_ms())])


async def _leave(led: _Led, call: Leave) -> Answer:
    running = led.find(call.group)
    if running is None:
        return Outcomes([GroupError.UNKNOWN_MEMBER_ID] * len(call.members))
    if _is_modern(running):
        return await consumer_protocol.leave(led, running, call)
    assert _is_classic(running)
    group = running.group
    answer = await running.ask(lambda ticket: group.leave(call, ticket, clock_ms()))
    led.drop_idle(call.group)
    return answer


async def _commit(led: _Led, call: Commit) -> Answer:
    running = led.find(call.group)
    if running is not None and _is_modern(running):
        return await _commit_modern(led, running.group, call)
    assert running is None or _is_classic(running)
    is_member = call.generation >= 0 or call.member
    error = GroupError.NONE
    if running is not None and is_member:
        error = running.group.check(Request.COMMIT, call, clock_ms())
    elif is_member or (running is not None and running.group.members):
        error = GroupError.UNKNOWN_MEMBER_ID
    if error:
        return Outcomes([error])
    command = CommitOffsets(call.group, 0, call.generation, call.member, call.offsets)
    reply = await _logged(led, command)
    return Outcomes([_COMMIT_ERRORS.get(Code(reply.code), GroupError.UNKNOWN)])


async def _commit_modern(led: _Led, group: ModernGroup, call: Commit) -> Answer:
    """Commit the offsets that the member may commit; return the error of each."""
    errors = consumer_protocol.judged(group, call)
    valid = [each for each, error in zip(call.offsets, errors, strict=True) if not error]
    if not valid:
        return Outcomes([int(each) for each in errors] or [0])
    command = CommitOffsets(call.group, 0, call.generation, call.member, valid)
    found = _MEMBER_COMMIT_ERRORS.get(Code((await _logged(led, command)).code), GroupError.UNKNOWN)
    return Outcomes([int(each or found) for each in errors])


async def _commit_in_transaction(led: _Led, call: CommitInTransaction) -> Answer:
    running = led.find(call.group)
    if call.generation >= 0 or call.member:
        error = GroupError.UNKNOWN_MEMBER_ID
        check = Commit(call.group, call.generation, call.member, call.instance, call.offsets)
        if running is not None and _is_modern(running):
            error = next(
                filter(None, consumer_protocol.judged(running.group, check)), GroupError.NONE
            )
        elif running is not None:
            assert _is_classic(running)
            error = running.group.check(Request.COMMIT, check, clock_ms())
        if error == GroupError.STALE_MEMBER_EPOCH:
            error = GroupError.ILLEGAL_GENERATION  # as Kafka does: producers do not know the other
        if error:
            return Outcomes([error])
    command = TxnOffsets(
        call.group,
        0,
        call.producer,
        call.epoch,
        call.number,
        call.generation,
        call.member,
        call.offsets,
    )
    reply = await _logged(led, command)
    found = [int(_TRANSACTION_ERRORS.get(Code(reply.code), GroupError.UNKNOWN))]
    return Outcomes([*found, reply.detail] if reply.code == Code.NOT_YET else found)


async def _offsets(led: _Led, call: FetchOffsets) -> Answer:
    running = led.find(call.group) if call.member else None
    if running is not None and _is_modern(running):
        error = consumer_protocol.judged_fetch(running.group, call)
        if error:
            return Outcomes([error])
    stored = led.machine.consumer_groups.get(call.group)
    if stored is None:
        return Offsets([])
    unstable = [unpacked_key(partition) for partition in stored.unstable] if stored.pending else []
    return Offsets([entry for entry, _ in stored.entries()], unstable)


async def _describe(led: _Led, call: Describe) -> Answer:
    return led.describe(call.group)


async def _drop(led: _Led, call: Drop) -> Answer:
    running = led.find(call.group)
    if running is not None and running.group.members:
        return Outcomes([GroupError.NON_EMPTY_GROUP])
    reply = await _logged(led, ConsumerGroupDrop(call.group))
    return Outcomes([_DROP_ERRORS.get(Code(reply.code), GroupError.UNKNOWN)])


async def _drop_offsets(led: _Led, call: DropPartitionOffsets) -> Answer:
    running = led.find(call.group)
    read = set[str]()
    if running is not None and _is_modern(running):
        read = running.group.subscribed()
    elif running is not None and _is_classic(running) and running.group.state is not State.EMPTY:
        read = topics_of(
            metadata for member in running.group.members for _, metadata in member.protocols
        )
    free = [(topic, part) for name, topic, part in call.partitions if name not in read]
    reply = await _logged(led, DropOffsets(call.group, free))
    if reply.code == Code.NOT_FOUND:
        return Outcomes([GroupError.GROUP_ID_NOT_FOUND])
    held = (GroupError.GROUP_SUBSCRIBED_TO_TOPIC * (name in read) for name, *_ in call.partitions)
    return Outcomes([0, *held])


async def _logged(led: _Led, command: Command) -> Reply:
    """Log a command; return the reply. Raises PolynyaError."""
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    led.propose(command, partial(settle, future))
    return await future


def _new_id(hint: str) -> str:
    return f"{hint[:200]}-{secrets.token_hex(16)}"


def _ignore(outcome: Reply | BaseException) -> None:
    pass


_COMMIT_ERRORS = {
    Code.OK: GroupError.NONE,
    Code.FENCED: GroupError.ILLEGAL_GENERATION,
    Code.NOT_FOUND: GroupError.UNKNOWN_MEMBER_ID,
    Code.HELD: GroupError.UNKNOWN_MEMBER_ID,
    Code.TOO_MANY: GroupError.INVALID_COMMIT_OFFSET_SIZE,
    Code.DISK_FULL: GroupError.COORDINATOR_NOT_AVAILABLE,
}
_MEMBER_COMMIT_ERRORS = _COMMIT_ERRORS | {Code.FENCED: GroupError.STALE_MEMBER_EPOCH}
_TRANSACTION_ERRORS = _COMMIT_ERRORS | {
    Code.TXN_ENDED: GroupError.INVALID_TXN_STATE,
    Code.NOT_YET: GroupError.COORDINATOR_LOADING,  # an earlier transaction has yet to end here
}
_DROP_ERRORS = {
    Code.OK: GroupError.NONE,
    Code.NOT_FOUND: GroupError.GROUP_ID_NOT_FOUND,
    Code.HELD: GroupError.NON_EMPTY_GROUP,
    Code.DISK_FULL: GroupError.COORDINATOR_NOT_AVAILABLE,
}
_HANDLERS: dict[type, Any] = {
    Join: _join,
    Sync: _sync,
    Heartbeat: _heartbeat,
    Leave: _leave,
    Commit: _commit,
    CommitInTransaction: _commit_in_transaction,
    ConsumerHeartbeat: consumer_protocol.heartbeat,
    FetchOffsets: _offsets,
    Describe: _describe,
    Drop: _drop,
    DropPartitionOffsets: _drop_offsets,
}
