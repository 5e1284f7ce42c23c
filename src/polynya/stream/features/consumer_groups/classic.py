"""Kafka's classic group protocol as a state machine: calls and times in, effects out. Pure.

A new or returning member makes the group prepare a rebalance: all members join again, until all
did or the rebalance timeout ends. Then the group completes it: one member, the leader, gets the
others' subscriptions and brings the assignments. These are logged; then the group is stable.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

import msgspec

from polynya.base.limits import GROUP_MEMBERS_BYTES_MAX, GROUP_MEMBERS_MAX
from polynya.stream.features.consumer_groups.calls import (
    Answer,
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
from polynya.stream.features.consumer_groups.commands import ConsumerGroupPut
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


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The answer to the call of this ticket."""

    ticket: int
    answer: Answer


class Log(msgspec.Struct, frozen=True, gc=False):
    """A command to log. `then` follows if it is applied; call `logged` too."""

    put: ConsumerGroupPut
    then: list[Reply]


Effect = Reply | Log


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
        self._reserved: dict[str, int] = {}  # member ids that were given out -> until when
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
        return not self.members and not self._reserved and self.state is State.EMPTY

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call."""
        effects, self.effects = self.effects, []
        return effects

    # --- calls ------------------------------------------------------------------------------------

    def join(self, call: Join, ticket: int, now_ms: int) -> None:
        """Add a member, or take one that joins again. The answer may wait for a rebalance."""
        error = self._join_error(call)
        if error:
            self._reply(ticket, Joined(error, call.member))
        elif call.member:
            self._join_again(call, ticket, now_ms)
        elif (known := self.members.instance(call.instance)) is not None:
            self._replace(known, call, ticket, now_ms)
        else:
            id_ = self._new_id(call.instance or call.client_id)
            if call.takes_id_first and call.instance is None:
                self._reserved[id_] = now_ms + call.session_timeout_ms
                self._reply(ticket, Joined(GroupError.MEMBER_ID_REQUIRED, id_))
            else:
                self._add(Member.of(id_, call), call, ticket, now_ms)

    def sync(self, call: Sync, ticket: int, now_ms: int) -> None:
        """Answer with the member's assignment, when the leader has brought it and it is logged."""
        member, error = self._find(call.member, call.instance)
        if member is not None and call.generation != self.generation:
            error = GroupError.ILLEGAL_GENERATION
        elif member is not None and not self._fits(call):
            error = GroupError.INCONSISTENT_GROUP_PROTOCOL
        elif member is not None and self.state is State.PREPARING:
            error = GroupError.REBALANCE_IN_PROGRESS
        if error or member is None:
            self._reply(ticket, Synced(error))
            return
        member.touch(now_ms)
        if self.state is State.STABLE:
            self._reply(ticket, self._synced(member))
            return
        self._displace(member, syncing=True)
        member.syncing = ticket
        if member.id == self.leader:
            self._assign(dict(call.assignments), member)

    def heartbeat(self, call: Heartbeat, now_ms: int) -> GroupError:
        """Keep a member's session; return the error that tells it to join again."""
        error = self.check(call.member, call.instance, call.generation)
        member = self.members.get(call.member)
        if error or member is None:
            return error
        member.touch(now_ms)
        preparing = self.state is State.PREPARING
        return GroupError.REBALANCE_IN_PROGRESS if preparing else GroupError.NONE

    def check(self, id_: str, instance: str | None, generation: int) -> GroupError:
        """Return the error of a call by a member of this generation."""
        member, error = self._find(id_, instance)
        if member is not None and generation != self.generation:
            return GroupError.ILLEGAL_GENERATION
        return error

    def check_commit(
        self, id_: str, instance: str | None, generation: int, now_ms: int
    ) -> GroupError:
        """Return the error of a commit. Its generation is judged by the log once more."""
        error = self.check(id_, instance, generation)
        member = self.members.get(id_)
        if error or member is None:
            return error
        member.touch(now_ms)
        completing = self.state is State.COMPLETING
        return GroupError.REBALANCE_IN_PROGRESS if completing else GroupError.NONE

    def leave(self, call: Leave, ticket: int, now_ms: int) -> None:
        """Remove members."""
        errors, gone = [], []
        for id_, instance in call.members:
            if id_ in self._reserved and instance is None:
                del self._reserved[id_]
                errors.append(int(GroupError.NONE))
                continue
            if instance is not None and not id_:
                member = self.members.instance(instance)
                error = GroupError.NONE if member else GroupError.UNKNOWN_MEMBER_ID
            else:
                member, error = self._find(id_, instance)
            if member is not None and not error and member not in gone:
                gone.append(member)
            errors.append(int(error))
        self._reply(ticket, Outcomes(errors))
        self._remove(gone, now_ms)

    def describe(self) -> Description:
        """Return the group as administrators see it."""
        stable = self.state is State.STABLE
        members = [
            DescribedMember(
                each.id,
                each.instance,
                each.client_id,
                each.client_host,
                each.metadata(self.protocol) if stable else b"",
                each.assignment if stable else b"",
            )
            for each in self.members
        ]
        protocol = self.protocol if stable else ""
        return Description(self.id, self.state.value, self.protocol_type, protocol, members)

    # --- times ------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when `tick` has something to do."""
        times = [
            each.deadline_ms for each in self.members if each.joining is None
        ]  # a member that waits for others is alive
        times += self._reserved.values()
        if self.state is State.PREPARING:
            times.append(self._hold_ms if self._is_complete else self._deadline_ms)
        elif self.state is State.COMPLETING:
            times.append(self._deadline_ms)
        return min(times, default=None)

    def tick(self, now_ms: int) -> None:
        """Remove the members that were not heard in time, and end steps that take too long."""
        for id_ in [id_ for id_, until in self._reserved.items() if until <= now_ms]:
            del self._reserved[id_]
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

    def logged(self, put: ConsumerGroupPut) -> None:
        """Take note that a command of `Log` is applied: the assignments count from here on."""
        if self.state is not State.COMPLETING or put.generation != self.generation:
            return
        self.state = State.STABLE
        found = {each.id: each.assignment for each in put.members}
        for member in self.members:
            member.assignment = found.get(member.id, b"")
            if member.syncing is not None:
                ticket, member.syncing = member.syncing, None
                self._reply(ticket, self._synced(member))

    # --- joining ----------------------------------------------------------------------------------

    def _join_error(self, call: Join) -> GroupError:
        known = self.members.get(call.member) or self.members.instance(call.instance)
        if not call.protocol_type or not call.protocols:
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        if call.member:
            if call.member not in self._reserved:
                found, error = self._find(call.member, call.instance)
                if error or found is None:
                    return error
        elif known is None and len(self.members) + len(self._reserved) >= GROUP_MEMBERS_MAX:
            return GroupError.GROUP_MAX_SIZE_REACHED
        size = self.members.bytes - (known.bytes if known is not None else 0)
        size += sum(len(name) + len(metadata) for name, metadata in call.protocols)
        if size > GROUP_MEMBERS_BYTES_MAX:
            return GroupError.GROUP_MAX_SIZE_REACHED
        if len(self.members) and call.protocol_type != self.protocol_type:
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        if not self.members.supports(call, known):
            return GroupError.INCONSISTENT_GROUP_PROTOCOL
        return GroupError.NONE

    def _join_again(self, call: Join, ticket: int, now_ms: int) -> None:
        if self._reserved.pop(call.member, None) is not None:
            self._add(Member.of(call.member, call), call, ticket, now_ms)
            return
        member = self.members.get(call.member)
        assert member is not None
        same = member.protocols == call.protocols
        is_leader = member.id == self.leader
        if same and (
            self.state is State.COMPLETING or (self.state is State.STABLE and not is_leader)
        ):
            member.touch(now_ms)  # it did not get the answer to its last join
            self._reply(ticket, self._joined(member))
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
        if self.state is not State.STABLE or not same:
            self._wait(member, call, ticket)
            self._rebalance(now_ms)
            return
        member.update(call)
        member.touch(now_ms)
        joined = self._joined(member)
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
        if self.state is State.PREPARING:
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
        return not self._reserved and all(each.joining is not None for each in self.members)

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
            self._reply(ticket, self._joined(member))

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

    def _find(self, id_: str, instance: str | None) -> tuple[Member | None, GroupError]:
        """Return a member, or the error for one that is unknown or replaced."""
        member = self.members.get(id_)
        if instance is not None:
            known = self.members.instance(instance)
            if known is not None and known.id != id_:
                return None, GroupError.FENCED_INSTANCE_ID
            member = known
        return member, GroupError.NONE if member is not None else GroupError.UNKNOWN_MEMBER_ID

    def _fits(self, call: Sync) -> bool:
        return call.protocol_type in (None, self.protocol_type) and call.protocol in (
            None,
            self.protocol,
        )

    def _joined(self, member: Member) -> Joined:
        """Return the answer to a join; the leader gets all members."""
        listed = [(each.id, each.instance, each.metadata(self.protocol)) for each in self.members]
        return Joined(
            0,
            member.id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            listed if member.id == self.leader else [],
        )

    def _synced(self, member: Member) -> Synced:
        return Synced(0, self.protocol_type, self.protocol, member.assignment)

    def _reply(self, ticket: int, answer: Answer) -> None:
        self.effects.append(Reply(ticket, answer))
