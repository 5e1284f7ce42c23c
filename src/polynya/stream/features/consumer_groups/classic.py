"""Kafka's classic group protocol as a state machine: calls and times in, effects out. Pure.

A new or returning member makes the group prepare a rebalance: all members join again, until all
did or the rebalance timeout ends. Then the group completes it: one member, the leader, gets the
others' subscriptions and brings the assignments. These are logged; then the group is stable.
`_ACTIONS` has what each request of a member does in each state.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from polynya.base.limits import GROUP_MEMBERS_BYTES_MAX, GROUP_MEMBERS_MAX
from polynya.stream.features.consumer_groups.calls import (
    Answer,
    Commit,
    DescribedMember,
    Description,
    GroupError,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Outcomes,
    Sync,
    Synced,
)
from polynya.stream.features.consumer_groups.commands import ConsumerGroupPut, ConsumerPut
from polynya.stream.features.consumer_groups.effects import Effect, Log, Reply
from polynya.stream.features.consumer_groups.members import Member, Roster
from polynya.stream.features.consumer_groups.state import ConsumerGroup

INITIAL_DELAY_MS = 500  # the first rebalance waits for others that start at the same time …
INITIAL_DELAY_MS_MAX = 3000  # … and begins its wait again with each of them, up to this


class State(enum.Enum):
    """The states of a group, by the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Request(enum.Enum):
    """A member's request to its group."""

    CHANGE = "a join of a new member, or with another subscription"
    REPEAT = "a join again, with the same subscription"
    LEADER_REPEAT = "a join again of the leader, with the same subscription"
    RETURN = "a static member that is back, with the same subscription"
    SYNC = "its assignment"
    HEARTBEAT = "its session"
    COMMIT = "to commit offsets"


class Action(enum.Enum):
    """The group's action on a request."""

    PREPARE = "wait, and begin a rebalance"
    GATHER = "wait for the others in the rebalance that runs"
    WAIT = "wait for the assignments"
    ANSWER = "answer now"
    REFUSE = "refuse: a rebalance is in progress"


_E, _P, _C, _S = State  # the columns; a group without members has none who could repeat
_ACTIONS: dict[Request, dict[State, Action]] = {
    Request.CHANGE: {
        _E: Action.PREPARE,
        _P: Action.GATHER,
        _C: Action.PREPARE,
        _S: Action.PREPARE,
    },
    # in the last two states it did not get the answer to its last join
    Request.REPEAT: {_P: Action.GATHER, _C: Action.ANSWER, _S: Action.ANSWER},
    Request.LEADER_REPEAT: {_P: Action.GATHER, _C: Action.ANSWER, _S: Action.PREPARE},
    Request.RETURN: {_P: Action.GATHER, _C: Action.PREPARE, _S: Action.ANSWER},
    Request.SYNC: {_P: Action.REFUSE, _C: Action.WAIT, _S: Action.ANSWER},
    Request.HEARTBEAT: {_P: Action.REFUSE, _C: Action.ANSWER, _S: Action.ANSWER},
    Request.COMMIT: {_P: Action.ANSWER, _C: Action.REFUSE, _S: Action.ANSWER},
}


class ClassicGroup:
    """One group at its coordinator. Times are milliseconds of any steady clock.

    Each method appends to `effects`. A ticket names a call that is answered later, once."""

    def __init__(self, id_: str, new_id: Callable[[str], str]) -> None:
        self.id = id_
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = self.protocol = self.leader = ""
        self.members = Roster()
        self.effects: list[Effect] = []
        self._new_id = new_id
        self.reserved: dict[str, int] = {}  # member ids that were given out -> until when
        self._deadline_ms = 0  # of the rebalance's present step
        self._hold_ms = self._hold_ms_max = 0  # the first rebalance does not end before

    @classmethod
    def load(cls, stored: ConsumerGroup, new_id: Callable[[str], str], now_ms: int) -> ClassicGroup:
        """Return the group as the log has it. Each session begins now."""
        group = cls(stored.id, new_id)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type
        if stored.members:
            group.state = State.STABLE
            group.protocol, group.leader = stored.protocol, stored.leader
        for each in stored.members:
            member = Member.logged(each, stored.protocol)
            member.touch(now_ms)
            group.members.add(member)
        return group

    @property
    def is_idle(self) -> bool:
        """Report whether the log has all of it."""
        return not self.members and not self.reserved and self.state is State.EMPTY

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call."""
        effects, self.effects = self.effects, []
        return effects

    # --- calls ------------------------------------------------------------------------------------

    def join(self, call: Join, ticket: int, now_ms: int) -> None:
        """Add a member, or take one that joins again. The answer may wait for a rebalance."""
        error = _join_error(self, call)
        if error:
            self._reply(ticket, Joined(error, call.member))
        elif call.member:
            self._join_again(call, ticket, now_ms)
        elif (known := self.members.instance(call.instance)) is not None:
            self._replace(known, call, ticket, now_ms)
        else:
            id_ = self._new_id(call.instance or call.client_id)
            if call.takes_id_first and call.instance is None:
                self.reserved[id_] = now_ms + call.session_timeout_ms
                self._reply(ticket, Joined(GroupError.MEMBER_ID_REQUIRED, id_))
            else:
                self._add(Member.of(id_, call), call, ticket, now_ms)

    def sync(self, call: Sync, ticket: int, now_ms: int) -> None:
        """Answer with the member's assignment, when the leader has brought it and it is logged."""
        member, error = self.members.find(call.member, call.instance)
        if member is not None and call.generation != self.generation:
            error = GroupError.ILLEGAL_GENERATION
        elif member is not None and not (
            call.protocol_type in (None, self.protocol_type)
            and call.protocol in (None, self.protocol)
        ):
            error = GroupError.INCONSISTENT_GROUP_PROTOCOL
        if error or member is None:
            self._reply(ticket, Synced(error))
            return
        action = _ACTIONS[Request.SYNC][self.state]
        if action is Action.REFUSE:
            self._reply(ticket, Synced(GroupError.REBALANCE_IN_PROGRESS))
            return
        member.touch(now_ms)
        if action is Action.ANSWER:
            self._reply(ticket, _synced(self, member))
            return
        self._displace(member, syncing=True)
        member.syncing = ticket
        if member.id == self.leader:
            self._assign(dict(call.assignments), member)

    def check(self, request: Request, call: Heartbeat | Commit, now_ms: int) -> GroupError:
        """Keep the session of a member of this generation; return the error of its request. The
        generation of a commit is judged by the log once more."""
        member, error = self.members.find(call.member, call.instance)
        if member is None:
            return error
        if call.generation != self.generation:
            return GroupError.ILLEGAL_GENERATION
        member.touch(now_ms)
        is_refused = _ACTIONS[request][self.state] is Action.REFUSE
        return GroupError.REBALANCE_IN_PROGRESS if is_refused else GroupError.NONE

    def leave(self, call: Leave, ticket: int, now_ms: int) -> None:
        """Remove members."""
        errors, gone = [], []
        for id_, instance in call.members:
            if id_ in self.reserved and instance is None:
                del self.reserved[id_]
                errors.append(int(GroupError.NONE))
                continue
            if instance is not None and not id_:
                member = self.members.instance(instance)
                error = GroupError.NONE if member else GroupError.UNKNOWN_MEMBER_ID
            else:
                member, error = self.members.find(id_, instance)
            if member is not None and not error and member not in gone:
                gone.append(member)
            errors.append(int(error))
        self._reply(ticket, Outcomes(errors))
        self._remove(gone, now_ms)

    # --- times ------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when `tick` has something to do."""
        times = [
            each.deadline_ms for each in self.members if each.joining is None
        ]  # a member that waits for others is alive
        times += self.reserved.values()
        if self.state is State.PREPARING:
            times.append(self._hold_ms if self._is_complete else self._deadline_ms)
        elif self.state is State.COMPLETING:
            times.append(self._deadline_ms)
        return min(times, default=None)

    def tick(self, now_ms: int) -> None:
        """Remove the members that were not heard in time, and end steps that take too long."""
        for id_ in [id_ for id_, until in self.reserved.items() if until <= now_ms]:
            del self.reserved[id_]
        late = [
            each
            for each in self.members
            if each.joining is None and each.syncing is None and each.deadline_ms <= now_ms
        ]
        if self.state is State.COMPLETING and self._deadline_ms <= now_ms:
            late = [each for each in self.members if each.syncing is None]
        for each in self.members:
            if each.syncing is not None:
                each.touch(now_ms)
        if late:
            self._remove(late, now_ms)
        elif self.state is State.COMPLETING and self._deadline_ms <= now_ms:
            self._prepare(now_ms)  # the leader's assignments could not be logged
        if self.state is State.PREPARING:
            self._complete_if_all(now_ms)
        if self.state is State.PREPARING and self._deadline_ms <= now_ms:
            self._complete(now_ms)

    def logged(self, put: ConsumerGroupPut | ConsumerPut) -> None:
        """Take note that a command of `Log` is applied: the assignments count from here on."""
        assert isinstance(put, ConsumerGroupPut)
        if self.state is not State.COMPLETING or put.generation != self.generation:
            return
        self.state = State.STABLE
        found = {each.id: each.assignment for each in put.members}
        for member in self.members:
            member.assignment = found.get(member.id, b"")
            if member.syncing is not None:
                ticket, member.syncing = member.syncing, None
                self._reply(ticket, _synced(self, member))

    # --- joining ----------------------------------------------------------------------------------

    def _join_again(self, call: Join, ticket: int, now_ms: int) -> None:
        if self.reserved.pop(call.member, None) is not None:
            self._add(Member.of(call.member, call), call, ticket, now_ms)
            return
        member = self.members.get(call.member)
        assert member is not None
        request = Request.CHANGE
        if member.protocols == call.protocols:
            request = Request.LEADER_REPEAT if member.id == self.leader else Request.REPEAT
        if _ACTIONS[request][self.state] is Action.ANSWER:
            member.touch(now_ms)
            self._reply(ticket, _joined(self, member))
            return
        self._wait(member, call, ticket)
        self._rebalance(now_ms)

    def _add(self, member: Member, call: Join, ticket: int, now_ms: int) -> None:
        if not self.members:
            self.protocol_type = call.protocol_type
            self._hold_ms_max = now_ms + INITIAL_DELAY_MS_MAX
        member.touch(now_ms)
        self.members.add(member)
        if now_ms <= self._hold_ms_max:
            self._hold_ms = min(now_ms + INITIAL_DELAY_MS, self._hold_ms_max)
        member.joining = ticket
        self._rebalance(now_ms)

    def _replace(self, member: Member, call: Join, ticket: int, now_ms: int) -> None:
        """Give a static member that comes back a new id; its earlier process is fenced. Without
        a change of its subscription there is no rebalance."""
        old, was_leader = member.id, member.id == self.leader
        for waiting, answer in (
            (member.joining, Joined(GroupError.FENCED_INSTANCE_ID, old)),
            (member.syncing, Synced(GroupError.FENCED_INSTANCE_ID)),
        ):
            if waiting is not None:
                self._reply(waiting, answer)
        member.joining = member.syncing = None
        self.members.rename(member, self._new_id(call.instance or ""))
        self.leader = member.id if was_leader else self.leader
        same = member.metadata(self.protocol) == dict(call.protocols).get(self.protocol)
        request = Request.RETURN if same else Request.CHANGE
        if _ACTIONS[request][self.state] is not Action.ANSWER:
            self._wait(member, call, ticket)
            self._rebalance(now_ms)
            return
        member.update(call)
        member.touch(now_ms)
        joined = _joined(self, member)
        if was_leader and not call.skips_assignment:
            joined.leader, joined.members = old, []  # else it would bring assignments
        joined.skips_assignment = was_leader and call.skips_assignment
        self._log([Reply(ticket, joined)])

    def _wait(self, member: Member, call: Join, ticket: int) -> None:
        """Let a member's join wait for the rebalance."""
        self._displace(member, syncing=False)
        member.update(call)
        member.joining = ticket

    def _displace(self, member: Member, *, syncing: bool) -> None:
        """Answer an earlier call of the member that still waits: it has come again."""
        waiting = member.syncing if syncing else member.joining
        if waiting is not None:
            error = GroupError.REBALANCE_IN_PROGRESS
            self._reply(waiting, Synced(error) if syncing else Joined(error, member.id))

    def _rebalance(self, now_ms: int) -> None:
        """Begin a rebalance with a change, or let the one that runs take it in."""
        if _ACTIONS[Request.CHANGE][self.state] is Action.GATHER:
            self._complete_if_all(now_ms)
        else:
            self._prepare(now_ms)

    def _prepare(self, now_ms: int) -> None:
        """Begin a rebalance. Members that wait for assignments are told to join again."""
        for member in self.members:
            if member.syncing is not None:
                ticket, member.syncing = member.syncing, None
                self._reply(ticket, Synced(GroupError.REBALANCE_IN_PROGRESS))
                member.touch(now_ms)
        self.state = State.PREPARING
        self._deadline_ms = now_ms + self.members.rebalance_timeout_ms
        self._complete_if_all(now_ms)

    @property
    def _is_complete(self) -> bool:
        """Report whether all members have joined again."""
        return not self.reserved and all(each.joining is not None for each in self.members)

    def _complete_if_all(self, now_ms: int) -> None:
        if self._is_complete and (now_ms >= self._hold_ms or not self.members):
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        """End the first half of a rebalance: choose the protocol and the leader."""
        for member in [each for each in self.members if each.joining is None]:
            if member.instance is None:
                self.members.remove(member)
        joined = [each for each in self.members if each.joining is not None]
        if self.members and not joined:  # static members have until the end of their sessions
            self._deadline_ms = now_ms + max(1, self.members.rebalance_timeout_ms)
            return
        self.generation += 1
        if not joined:
            self.state, self.protocol, self.leader = State.EMPTY, "", ""
            self._log([])
            return
        self.protocol = self.members.select_protocol()
        if self.leader not in [each.id for each in joined]:
            self.leader = joined[0].id
        self.state = State.COMPLETING
        self._deadline_ms = now_ms + self.members.rebalance_timeout_ms
        for member in joined:
            ticket, member.joining = member.joining, None
            assert ticket is not None
            member.assignment = b""
            member.touch(now_ms)
            self._reply(ticket, _joined(self, member))

    # --- assignments, members that go, answers ----------------------------------------------------

    def _assign(self, assignments: dict[str, bytes], leader: Member) -> None:
        """Log what the leader has decided."""
        size = sum(len(assignments.get(each.id, b"")) for each in self.members)
        if size + self.members.bytes > GROUP_MEMBERS_BYTES_MAX:
            ticket, leader.syncing = leader.syncing, None
            assert ticket is not None
            self._reply(ticket, Synced(GroupError.INVALID_REQUEST))
            return
        for member in self.members:
            member.assignment = assignments.get(member.id, b"")
        self._log([])

    def _log(self, then: list[Reply]) -> None:
        members = [each.to_log(self.protocol) for each in self.members]
        put = ConsumerGroupPut(
            self.id,
            0,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            members,
        )
        self.effects.append(Log(put, then))

    def _remove(self, gone: Iterable[Member], now_ms: int) -> None:
        """Remove members, and rebalance among the others."""
        removed = False
        for member in gone:
            removed = True
            self.members.remove(member)
            error = GroupError.UNKNOWN_MEMBER_ID
            if member.joining is not None:
                self._reply(member.joining, Joined(error, member.id))
            if member.syncing is not None:
                self._reply(member.syncing, Synced(error))
        if removed:
            self._rebalance(now_ms)

    def _reply(self, ticket: int, answer: Answer) -> None:
        self.effects.append(Reply(ticket, answer))


def _join_error(group: ClassicGroup, call: Join) -> GroupError:
    known = group.members.get(call.member) or group.members.instance(call.instance)
    if not call.protocol_type or not call.protocols:
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    if call.member:
        if call.member not in group.reserved:
            found, error = group.members.find(call.member, call.instance)
            if error or found is None:
                return error
    elif known is None and len(group.members) + len(group.reserved) >= GROUP_MEMBERS_MAX:
        return GroupError.GROUP_MAX_SIZE_REACHED
    size = group.members.bytes - (known.bytes if known is not None else 0)
    size += sum(len(name) + len(metadata) for name, metadata in call.protocols)
    if size > GROUP_MEMBERS_BYTES_MAX:
        return GroupError.GROUP_MAX_SIZE_REACHED
    if len(group.members) and call.protocol_type != group.protocol_type:
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    if not group.members.supports(call, known):
        return GroupError.INCONSISTENT_GROUP_PROTOCOL
    return GroupError.NONE


def _joined(group: ClassicGroup, member: Member) -> Joined:
    """Return the answer to a join; the leader gets all members."""
    listed = [(each.id, each.instance, each.metadata(group.protocol)) for each in group.members]
    return Joined(
        0,
        member.id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader,
        listed if member.id == group.leader else [],
    )


def _synced(group: ClassicGroup, member: Member) -> Synced:
    return Synced(0, group.protocol_type, group.protocol, member.assignment)


def described(group: ClassicGroup) -> Description:
    """Return the group as administrators see it."""
    stable = group.state is State.STABLE
    members = [
        DescribedMember(
            each.id,
            each.instance,
            each.client_id,
            each.client_host,
            each.metadata(group.protocol) if stable else b"",
            each.assignment if stable else b"",
        )
        for each in group.members
    ]
    protocol = group.protocol if stable else ""
    return Description(group.id, group.state.value, group.protocol_type, protocol, members)
