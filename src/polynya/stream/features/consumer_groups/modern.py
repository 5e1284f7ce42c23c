"""Kafka's consumer protocol (KIP-848) as a state machine: calls and times in, effects out. Pure.

The coordinator assigns. A change of the members, their subscriptions or their topics makes a new
target for each member, under a new epoch of the group. A member comes to its target by heartbeats:
first it gives up what is not in it, and stays at its epoch until it has confirmed that; then it
takes the group's epoch and gets what no other member has. `_owners` has the one member that has, or
has yet to give up, each partition: so a partition never has two.

All calls that come while a command is being logged wait, and are answered together from the next
one: an answer says only what is in the log. Sessions and claims are not in it; the next
coordinator begins each session again, and assumes that a member has all its partitions.
"""

from __future__ import annotations

from collections.abc import Mapping

from polynya.base.limits import GROUP_MEMBERS_MAX
from polynya.stream.features.consumer_groups.assignors import DEFAULT, TopicPartition
from polynya.stream.features.consumer_groups.calls import (
    ConsumerHeartbeat,
    DescribedMember,
    Description,
    GroupError,
    HeartbeatAnswer,
    Leave,
    Outcomes,
)
from polynya.stream.features.consumer_groups.commands import ConsumerGroupPut, ConsumerPut
from polynya.stream.features.consumer_groups.effects import Effect, Log, Reply
from polynya.stream.features.consumer_groups.modern_members import (
    JOIN_EPOCH,
    LEFT_EPOCH,
    ModernMember,
    numbers_by_topic,
    positions_of,
)
from polynya.stream.features.consumer_groups.state import CONSUMER, ConsumerGroup
from polynya.stream.features.consumer_groups.targets import (
    Refusal,
    TargetPlanner,
    preferred_assignor,
)
from polynya.stream.features.consumer_groups.topic_view import TopicView

SESSION_MS, HEARTBEAT_MS = 45_000, 5_000  # Kafka's defaults
PROTOCOL_TYPE = "consumer"


class ModernGroup:
    """One group at its coordinator. Times are milliseconds of any steady clock.

    Each method adds to the effects. A ticket names a call that is answered later, once."""

    def __init__(self, id_: str, topics: TopicView) -> None:
        self.id = id_
        self.epoch = 0
        self.assignor = DEFAULT
        self.members: dict[str, ModernMember] = {}
        self.session_ms, self.heartbeat_ms = SESSION_MS, HEARTBEAT_MS
        self._planner = TargetPlanner(topics)
        self._effects: list[Effect] = []
        self._instances: dict[str, str] = {}  # -> member id
        self._owners: dict[TopicPartition, str] = {}
        self._calls: list[tuple[ConsumerHeartbeat | Leave, int, int]] = []  # ticket, time
        self._is_logging = False
        self._changed: set[str] = set()  # members to log
        self._gone: set[str] = set()
        self._is_stale = False  # the members changed: the next targets have a new epoch

    @classmethod
    def load(
        cls,
        stored: ConsumerGroup,
        topics: TopicView,
        now_ms: int,
        timeouts: tuple[int, int] = (SESSION_MS, HEARTBEAT_MS),
    ) -> ModernGroup:
        """Return the group as the log has it. Each session begins now. `timeouts`: that of the
        session, and the interval of heartbeats."""
        group = cls(stored.id, topics)
        group.session_ms, group.heartbeat_ms = timeouts
        group.epoch = stored.generation
        for each in stored.members if stored.kind == CONSUMER else ():
            member = ModernMember.logged(each)
            member.deadline_ms = now_ms + group.session_ms
            if member.revoking:
                member.revoke_by_ms = now_ms + member.rebalance_timeout_ms
            group._add(member)
            for partition in (*member.owned, *member.revoking):
                assert partition not in group._owners, "a partition has one owner"
                group._owners[partition] = member.id
        if group.members:
            group.assignor = stored.protocol
        return group

    @property
    def is_idle(self) -> bool:
        """Report whether the log has all of it."""
        return not self.members and not self._is_logging and not self._calls

    @property
    def state(self) -> str:
        """The group's state, by the name that Kafka's tools show."""
        if not self.members:
            return "Empty"
        is_stable = all(
            each.is_stable and each.epoch in (self.epoch, LEFT_EPOCH)
            for each in self.members.values()
        )
        return "Stable" if is_stable else "Reconciling"

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    # --- calls and times --------------------------------------------------------------------------

    def call(self, call: ConsumerHeartbeat | Leave, ticket: int, now_ms: int) -> None:
        """Answer a heartbeat, or remove members for an administrator."""
        if isinstance(call, ConsumerHeartbeat):
            member = self.members.get(call.member)
            if member is not None and call.epoch == member.epoch:
                member.deadline_ms = now_ms + self.session_ms  # it may wait for the log
        self._calls.append((call, ticket, now_ms))
        self._work()

    def logged(self, put: ConsumerGroupPut | ConsumerPut) -> None:
        """Take note that the command is applied: what came meanwhile is next."""
        self._is_logging = False
        self._work()

    def next_deadline(self) -> int | None:
        """Return when `tick` has something to do."""
        if self._is_logging:
            return None
        times = [each.deadline_ms for each in self.members.values()]
        times += [each.revoke_by_ms for each in self.members.values() if each.revoke_by_ms]
        return min(times, default=None)

    def tick(self, now_ms: int) -> None:
        """Remove the members that were not heard in time, or do not give up partitions in time."""
        if self._is_logging:
            return
        for member in tuple(self.members.values()):
            if member.deadline_ms <= now_ms or 0 < member.revoke_by_ms <= now_ms:
                self._remove(member)
        self._work()

    def subscribed(self) -> set[str]:
        """Return the names of the topics that members read."""
        return {
            self._planner.topics.name_of.get(topic, "")
            for member in self.members.values()
            for topic in self._planner.wanted(member.subscription)
        }

    # --- one round: calls, targets, partitions, the log -------------------------------------------

    def _work(self) -> None:
        """Answer the calls that wait, unless a command is being logged."""
        if self._is_logging:
            return
        calls, self._calls = self._calls, []
        answers: list[Reply] = []
        beats: list[tuple[ModernMember, ConsumerHeartbeat, int, int]] = []
        for call, ticket, now_ms in calls:
            if isinstance(call, Leave):
                answers.append(Reply(ticket, Outcomes(self._removed(call))))
                continue
            admitted = self._admit(call, now_ms)
            if isinstance(admitted, ModernMember):
                beats.append((admitted, call, ticket, now_ms))
            else:
                answers.append(Reply(ticket, admitted))
        self._assign()
        for member, call, ticket, now_ms in beats:
            if self.members.get(member.id) is member:
                answers.append(Reply(ticket, self._reconciled(member, call, now_ms)))
            else:  # it left with a later call of this round
                answers.append(Reply(ticket, _refused(call, *_unknown(call))))
        self._log(answers)

    def _log(self, answers: list[Reply]) -> None:
        """Log what changed, with the answers that say so."""
        if not self._changed and not self._gone:
            self._effects += answers
            return
        changed = [self.members[each].to_log() for each in self.members if each in self._changed]
        gone = sorted(self._gone - self.members.keys())
        put = ConsumerPut(self.id, 0, self.epoch, self.assignor, changed, gone)
        self._changed, self._gone, self._is_logging = set(), set(), True
        self._effects.append(Log(put, answers))

    # --- members ----------------------------------------------------------------------------------

    def _admit(self, call: ConsumerHeartbeat, now_ms: int) -> ModernMember | HeartbeatAnswer:
        """Judge a heartbeat and take over what it says. Return its member, or the answer."""
        fault = self._fault(call)
        if fault is not None:
            return _refused(call, *fault)
        member = _member_of(self.members, self._instances, call)
        if call.epoch < JOIN_EPOCH:
            assert member is not None
            return self._left(member, call, now_ms)
        if call.epoch == JOIN_EPOCH:
            member = self._joined(member, call)
        assert member is not None
        member.deadline_ms = now_ms + self.session_ms
        if member.update(call):
            self._is_stale = True
            self._changed.add(member.id)
        return member

    def _fault(self, call: ConsumerHeartbeat) -> Refusal | None:
        """Return the refusal of a heartbeat; None: it is valid."""
        member = _member_of(self.members, self._instances, call)
        if call.epoch == JOIN_EPOCH:
            if member is not None and member.id != call.member and member.epoch != LEFT_EPOCH:
                return GroupError.UNRELEASED_INSTANCE_ID, (
                    f"the instance id '{call.instance}' is in use by member '{member.id}'"
                )
            if member is None and call.member in self.members:
                return GroupError.INVALID_REQUEST, (
                    f"member '{call.member}' has another instance id; leave the group first"
                )
            if member is None and len(self.members) >= GROUP_MEMBERS_MAX:
                return GroupError.GROUP_MAX_SIZE_REACHED, (
                    f"the group has {len(self.members)} members, which is the limit"
                )
            return self._planner.fault(call, self.members.values(), member)
        if member is None:
            return _unknown(call)
        if member.id != call.member:
            return GroupError.FENCED_INSTANCE_ID, (
                f"the instance id '{call.instance}' is now in use by member '{member.id}'"
            )
        if call.epoch < JOIN_EPOCH:
            return None
        if call.epoch != member.epoch and not member.is_repeated_by(call):
            return GroupError.FENCED_MEMBER_EPOCH, (
                f"the member is at epoch {member.epoch}, the heartbeat at {call.epoch}; abandon all "
                "partitions and join again"
            )
        return self._planner.fault(call, self.members.values(), member)

    def _joined(self, known: ModernMember | None, call: ConsumerHeartbeat) -> ModernMember:
        """Return the member of a join: a new one, a static one that is back, or one again."""
        if known is None:
            member = ModernMember(call.member, call.instance)
            self._add(member)
            self._is_stale = True
        elif known.epoch == LEFT_EPOCH:
            member = known  # its former process has said that it reads no more
            if known.id != call.member:
                self._rename(known, call.member)
        else:
            # Its join says that it has nothing. But the join may be an old one that was delayed: so
            # its partitions are free only when it is heard at the epoch of the answer.
            member = known
            member.revoking |= member.owned
            member.owned, member.has_rejoined = {}, True
            self._is_stale = True
        member.epoch, member.previous, member.claim = JOIN_EPOCH, -1, None
        self._changed.add(member.id)
        return member

    def _left(self, member: ModernMember, call: ConsumerHeartbeat, now_ms: int) -> HeartbeatAnswer:
        """Remove a member, or keep the place of a static one until its session ends."""
        if call.epoch == LEFT_EPOCH:
            for partition in member.revoking:
                del self._owners[partition]
            member.revoking, member.revoke_by_ms, member.has_rejoined = {}, 0, False
            member.epoch, member.deadline_ms = LEFT_EPOCH, now_ms + self.session_ms
            self._changed.add(member.id)
        else:
            self._remove(member)
        return HeartbeatAnswer(0, None, call.member, call.epoch)

    def _removed(self, call: Leave) -> list[int]:
        """Remove members by name; return the error of each."""
        errors = []
        for id_, instance in call.members:
            member = self.members.get(
                id_ if instance is None else self._instances.get(instance, "")
            )
            if member is None:
                errors.append(int(GroupError.UNKNOWN_MEMBER_ID))
            elif id_ and member.id != id_:
                errors.append(int(GroupError.FENCED_INSTANCE_ID))
            else:
                self._remove(member)
                errors.append(int(GroupError.NONE))
        return errors

    def _add(self, member: ModernMember) -> None:
        self.members[member.id] = member
        if member.instance is not None:
            self._instances[member.instance] = member.id

    def _remove(self, member: ModernMember) -> None:
        del self.members[member.id]
        if member.instance is not None:
            del self._instances[member.instance]
        for partition in (*member.owned, *member.revoking):
            del self._owners[partition]
        self._changed.discard(member.id)
        self._gone.add(member.id)
        self._is_stale = True

    def _rename(self, member: ModernMember, id_: str) -> None:
        """Give a static member the id of its new process."""
        del self.members[member.id]
        self._changed.discard(member.id)
        self._gone.add(member.id)
        member.id = id_
        self._add(member)
        for partition in member.owned:
            self._owners[partition] = id_

    # --- targets ----------------------------------------------------------------------------------

    def _assign(self) -> None:
        """Make new targets if the members or their topics changed."""
        if not self._is_stale and not self._planner.is_stale:
            return
        is_new, self._is_stale = self._is_stale, False
        assignor = preferred_assignor(self.members.values())
        targets = self._planner.plan(self.members.values(), assignor)
        changed = [each for id_, each in self.members.items() if each.target != targets[id_]]
        if not changed and not is_new:
            return
        self.epoch, self.assignor = self.epoch + 1, assignor
        for member in changed:
            member.target = targets[member.id]
            self._changed.add(member.id)

    # --- partitions -------------------------------------------------------------------------------

    def _reconciled(
        self, member: ModernMember, call: ConsumerHeartbeat, now_ms: int
    ) -> HeartbeatAnswer:
        """Bring a member one step nearer to its target; return the answer."""
        before = set(member.owned)
        claim = None if call.claim is None else positions_of(call.claim)
        if claim is not None:
            member.claim = claim
        if member.revoking and call.epoch != JOIN_EPOCH:
            self._release(member, call)
        if not member.revoking or member.has_rejoined:
            self._advance(member, call, now_ms)
        owned = member.owned.keys()
        is_due = call.is_full or call.epoch != member.epoch or owned != before
        if not is_due and (claim is None or claim == owned):
            return HeartbeatAnswer(0, None, member.id, member.epoch, self.heartbeat_ms)
        assignment = sorted(numbers_by_topic(owned).items())
        return HeartbeatAnswer(0, None, member.id, member.epoch, self.heartbeat_ms, assignment)

    def _release(self, member: ModernMember, call: ConsumerHeartbeat) -> None:
        """Free the partitions that the member has given up since it was told to: all of them. Of
        a part, it could still commit at its epoch."""
        if member.has_rejoined:
            assert call.epoch == member.epoch, "only a join can be repeated until then"
        elif member.claim is None or not member.claim.isdisjoint(member.revoking):
            return
        for partition in member.revoking:
            del self._owners[partition]
        member.revoking, member.has_rejoined, member.revoke_by_ms = {}, False, 0
        self._changed.add(member.id)

    def _advance(self, member: ModernMember, call: ConsumerHeartbeat, now_ms: int) -> None:
        """Tell the member to give up what is not in its target; if there is nothing, take it to
        the group's epoch and give it what is free."""
        self._revoke(member, call)
        if member.revoking and not member.has_rejoined:
            member.revoke_by_ms = now_ms + member.rebalance_timeout_ms
            return
        if member.epoch != self.epoch:
            member.previous, member.epoch = member.epoch, self.epoch
            self._changed.add(member.id)
        for partition in sorted(member.target - member.owned.keys()):
            if self._owners.setdefault(partition, member.id) == member.id:
                member.owned[partition] = member.epoch
                member.revoking.pop(partition, None)  # it has joined again
                member.claim = None  # it was made before
                self._changed.add(member.id)
        if member.has_rejoined:
            member.has_rejoined = bool(member.revoking)
            member.revoke_by_ms = now_ms + member.rebalance_timeout_ms if member.revoking else 0

    def _revoke(self, member: ModernMember, call: ConsumerHeartbeat) -> None:
        """Take what is not in the member's target. What it has not claimed since it was given is
        free at once: the answer with it was lost, or it comes back as a new process."""
        excess = member.owned.keys() - member.target
        if not excess:
            return
        is_current = call.epoch in (JOIN_EPOCH, member.epoch)
        claim = member.claim if is_current and member.claim is not None else excess
        for partition in excess:
            assigned = member.owned.pop(partition)
            if partition in claim:
                member.revoking[partition] = assigned
            else:
                del self._owners[partition]
        self._changed.add(member.id)


def _member_of(
    members: Mapping[str, ModernMember], instances: Mapping[str, str], call: ConsumerHeartbeat
) -> ModernMember | None:
    """Return the member of a call: the static one of its instance, else that of its id."""
    id_ = call.member if call.instance is None else instances.get(call.instance, "")
    return members.get(id_)


def _unknown(call: ConsumerHeartbeat) -> Refusal:
    return GroupError.UNKNOWN_MEMBER_ID, (
        f"member '{call.member[:100]}' is not in the group: join it again"
    )


def _refused(call: ConsumerHeartbeat, error: GroupError, why: str) -> HeartbeatAnswer:
    return HeartbeatAnswer(error, why, call.member)


def described_modern(group: ModernGroup) -> Description:
    """Return the group as administrators see it."""
    members = [
        DescribedMember(
            each.id,
            each.instance,
            each.client_id,
            each.client_host,
            b"",
            b"",
            each.epoch,
            each.subscription.rack,
            each.subscription.topics,
            each.subscription.regex,
            sorted(numbers_by_topic(each.owned).items()),
            sorted(numbers_by_topic(each.target).items()),
        )
        for each in group.members.values()
    ]
    return Description(
        group.id, group.state, PROTOCOL_TYPE, group.assignor, members, CONSUMER, group.epoch
    )
