"""The rules for the commands of consumer groups. A commit is judged here, by the logged generation.

A coordinator that was deposed may still believe in its members; its commits fail here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from polynya.base.limits import (
    CONSUMER_GROUPS_BYTES_MAX,
    CONSUMER_GROUPS_MAX,
    ENDED_MS,
    GROUP_OFFSETS_MAX,
)
from polynya.stream.command import applies, level_of
from polynya.stream.features.consumer_groups.commands import (
    CommitOffsets,
    ConsumerGroupDrop,
    ConsumerGroupPut,
    ConsumerPut,
    DropOffsets,
    ExpireOffsets,
    ForgetTopic,
    OffsetEntry,
    TxnOffsets,
)
from polynya.stream.features.consumer_groups.modern_records import Holdings, may_commit
from polynya.stream.features.consumer_groups.state import (
    CLASSIC,
    CONSUMER,
    ConsumerGroup,
    members_bytes,
    packed,
    partition_key,
    time_of,
    topic_of,
)
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_LEVEL = level_of(ConsumerGroupPut)
_CONSUMER_LEVEL = level_of(ConsumerPut)


@applies(ConsumerGroupPut)
def apply_put(machine: Machine, command: ConsumerGroupPut, position: int) -> Reply:
    """Set the members of a group. FENCED: it has a later generation, or members of the other
    protocol. TOO_MANY: a limit."""
    groups = machine.consumer_groups
    group = groups.get(command.id)
    if group is not None and command.generation < group.generation:
        return Reply(Code.FENCED)
    if group is not None and group.kind != CLASSIC:
        if group.members:
            return Reply(Code.FENCED)
        group.kind = CLASSIC
    if group is None:
        if not command.members:
            return Reply(Code.OK)  # it was deleted, and is empty
        group = ConsumerGroup(command.id)
        if not has_room(machine, 1, members_bytes(command.members)):
            return Reply(Code.TOO_MANY)
        groups.add(group)
    group.generation, group.leader = command.generation, command.leader
    group.protocol_type, group.protocol = command.protocol_type, command.protocol
    groups.set_members(group, command.members)
    group.used_ms = command.now_ms
    changed(machine, command.id)
    return Reply(Code.OK)


@applies(ConsumerPut)
def apply_consumer_put(machine: Machine, command: ConsumerPut, position: int) -> Reply:
    """Set and remove members of a group of the consumer protocol. FENCED: it has a later epoch, or
    members of the classic protocol. TOO_MANY: a limit."""
    groups = machine.consumer_groups
    group = groups.get(command.id)
    if group is not None and command.epoch < group.generation:
        return Reply(Code.FENCED)
    if group is not None and group.kind != CONSUMER and group.members:
        return Reply(Code.FENCED)
    new = {each.id: each for each in command.members}
    left = [] if group is None else [each for each in group.members if each.id not in command.gone]
    members = [new.pop(each.id, each) for each in left] + list(new.values())
    known = [] if group is None else group.members
    more = members_bytes(members) - members_bytes(known)
    if more > 0 and not has_room(machine, int(group is None), more):
        return Reply(Code.TOO_MANY)
    if group is None:
        group = ConsumerGroup(command.id)
        groups.add(group)
    group.kind, group.generation, group.leader = CONSUMER, command.epoch, ""
    group.protocol_type, group.protocol = "consumer", command.assignor
    groups.set_members(group, members)
    group.used_ms = command.now_ms
    changed(machine, command.id)
    machine.counters.raise_level(_CONSUMER_LEVEL)
    return Reply(Code.OK)


@applies(CommitOffsets)
def apply_commit(machine: Machine, command: CommitOffsets, position: int) -> Reply:
    """Commit offsets. FENCED: another generation; NOT_FOUND: no such member; HELD: the group has
    members, and the commit comes from none; TOO_MANY: a limit."""
    groups = machine.consumer_groups
    group = groups.get(command.id)
    refused = _judge(group, command)
    if refused is not None:
        return Reply(refused)
    known: dict[bytes, bytes] = {} if group is None else group.offsets
    new = {partition_key(each.topic, each.partition): each for each in command.offsets}
    count = len(new.keys() | known.keys()) + (0 if group is None else pending_count(group))
    size = sum(len(each.metadata) for each in command.offsets)
    if count > GROUP_OFFSETS_MAX or not has_room(machine, int(group is None), size):
        return Reply(Code.TOO_MANY)
    if group is None:
        group = ConsumerGroup(command.id)
        groups.add(group)
    for key, each in new.items():
        groups.set_offset(group, key, packed(each, command.now_ms))
    groups.drop_pending(group, new)
    group.used_ms = command.now_ms
    changed(machine, command.id)
    return Reply(Code.OK)


def _judge(group: ConsumerGroup | None, command: CommitOffsets) -> Code | None:
    """Return the refusal of a commit."""
    if command.generation < 0 and not command.member:
        return Code.HELD if group is not None and group.members else None
    return judge_member(group, command)


def judge_member(group: ConsumerGroup | None, command: CommitOffsets | TxnOffsets) -> Code | None:
    """Return the refusal of a commit by a member."""
    if group is None:
        return Code.NOT_FOUND
    if group.kind == CONSUMER:
        return judge_consumer(group, command.member, command.generation, command.offsets)
    if not any(member.id == command.member for member in group.members):
        return Code.NOT_FOUND
    return Code.FENCED if command.generation != group.generation else None


def judge_consumer(
    group: ConsumerGroup, member_id: str, epoch: int, offsets: Iterable[OffsetEntry]
) -> Code | None:
    """Return the refusal of a commit by a member of the consumer protocol."""
    member = next((each for each in group.members if each.id == member_id), None)
    if member is None:
        return Code.NOT_FOUND
    holdings = Holdings.unpacked(member.assignment)
    if epoch == holdings.epoch:
        return None
    assigned = holdings.assigned()
    partitions = [(each.topic, each.partition) for each in offsets]
    valid = (may_commit(epoch, holdings.epoch, assigned.get(each)) for each in partitions)
    return None if all(valid) else Code.FENCED


def pending_count(group: ConsumerGroup) -> int:
    """Return the number of offsets in open transactions."""
    return sum(len(each.offsets) for each in group.pending.values())


def has_room(machine: Machine, groups: int, size: int) -> bool:
    """Report whether there is memory for new groups and for more bytes."""
    known = machine.consumer_groups
    return (
        len(known) + groups <= CONSUMER_GROUPS_MAX
        and known.bytes + size <= CONSUMER_GROUPS_BYTES_MAX
    )


@applies(ConsumerGroupDrop)
def apply_drop(machine: Machine, command: ConsumerGroupDrop, position: int) -> Reply:
    """Delete a group. NOT_FOUND; HELD: it has members, or offsets of an open transaction."""
    group = machine.consumer_groups.get(command.id)
    if group is None or group.is_shell:
        return Reply(Code.NOT_FOUND)
    if group.members or group.pending:
        return Reply(Code.HELD)
    _remove(machine, group)
    return Reply(Code.OK)


def _remove(machine: Machine, group: ConsumerGroup) -> None:
    """Delete a group. What it has to remember of transactions that ended lately stays."""
    groups = machine.consumer_groups
    groups.drop_ended(group, machine.counters.log_ms - ENDED_MS)
    groups.remove(group)
    if group.ended:
        groups.add(ConsumerGroup(group.id, used_ms=machine.counters.log_ms, ended=group.ended))
    changed(machine, group.id)


@applies(DropOffsets)
def apply_drop_offsets(machine: Machine, command: DropOffsets, position: int) -> Reply:
    """Delete offsets of a group. NOT_FOUND: there is no such group."""
    group = machine.consumer_groups.get(command.id)
    if group is None:
        return Reply(Code.NOT_FOUND)
    keys = [partition_key(topic, partition) for topic, partition in command.partitions]
    groups = machine.consumer_groups
    if groups.drop_offsets(group, keys) + groups.drop_pending(group, keys):
        changed(machine, command.id)
    return Reply(Code.OK)


@applies(ExpireOffsets)
def apply_expire(machine: Machine, command: ExpireOffsets, position: int) -> Reply:
    """Delete old offsets of a group. NOT_FOUND; ACTIVE: it has members, or offsets of an open
    transaction."""
    groups = machine.consumer_groups
    group = groups.get(command.id)
    if group is None:
        return Reply(Code.NOT_FOUND)
    if group.members or group.pending:
        return Reply(Code.ACTIVE)
    old = old_offsets(group, command.before_ms)
    groups.drop_offsets(group, old)
    if not group.offsets:
        _remove(machine, group)
    elif old:
        changed(machine, command.id)
    return Reply(Code.OK)


def old_offsets(group: ConsumerGroup, before_ms: int) -> list[bytes]:
    """Return the packed partitions whose offsets expire. The offsets of a group that had members
    expire together, counted from the end of the last one."""
    if group.protocol_type:
        return list(group.offsets) if group.used_ms < before_ms else []
    return [key for key, value in group.offsets.items() if time_of(value) < before_ms]


@applies(ForgetTopic)
def apply_forget_topic(machine: Machine, command: ForgetTopic, position: int) -> Reply:
    """Delete the offsets of a deleted topic."""
    groups = machine.consumer_groups
    for group in groups.by_id.values():
        keys = group.offsets.keys() | group.unstable if group.pending else group.offsets
        gone = [key for key in keys if topic_of(key) == command.topic]
        if groups.drop_offsets(group, gone) + groups.drop_pending(group, gone):
            changed(machine, group.id)
    return Reply(Code.OK)


def changed(machine: Machine, id_: str) -> None:
    """Note a change of a group."""
    machine.changes.consumer_groups.add(id_)
    machine.counters.raise_level(_LEVEL)  # a standalone node gets no `SetLevel`
