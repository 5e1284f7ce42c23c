"""The offsets that transactions commit: kept aside until the transaction's end, then moved or
dropped.

A group remembers the number of the last transaction of each producer that ended here. So offsets
that come late are refused, and an end that comes again does nothing. Of two commits of a partition
the later one counts, whether it is one of a transaction or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.limits import (
    ENDED_MS,
    GROUP_OFFSETS_MAX,
    GROUP_TRANSACTIONS_MAX,
)
from polynya.stream.command import applies, level_of
from polynya.stream.features.consumer_groups.commands import TxnOffsets
from polynya.stream.features.consumer_groups.rules import (
    changed,
    has_room,
    judge_member,
    pending_count,
)
from polynya.stream.features.consumer_groups.state import (
    ConsumerGroup,
    PendingOffsets,
    packed,
    partition_key,
    time_of,
)
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_NONE = (0, 0)


@applies(TxnOffsets)
def apply_txn_offsets(machine: Machine, command: TxnOffsets, position: int) -> Reply:
    """Keep offsets until the transaction ends. TXN_ENDED: it has. NOT_YET: an earlier one of the
    producer is open, and its number is the detail. NOT_FOUND, FENCED: as of a commit. TOO_MANY: a
    limit."""
    groups = machine.consumer_groups
    group = groups.get(command.id)
    refused = _judge(group, command)
    if refused == Code.NOT_YET:
        assert group is not None
        return Reply(refused, detail=group.pending[command.producer].number)
    if refused is not None:
        return Reply(refused)
    known = None if group is None else group.pending.get(command.producer)
    new = {
        partition_key(each.topic, each.partition): packed(each, command.now_ms)
        for each in command.offsets
    }
    if not _fits(machine, group, known, new):
        return Reply(Code.TOO_MANY)
    if group is None:
        group = ConsumerGroup(command.id)
        groups.add(group)
    since_ms = command.now_ms if known is None else known.since_ms
    offsets = new if known is None else known.offsets | new
    pending = PendingOffsets(command.number, since_ms, offsets)
    groups.set_pending(group, command.producer, pending)
    _changed(machine, group, command.now_ms)
    return Reply(Code.OK)


def _judge(group: ConsumerGroup | None, command: TxnOffsets) -> Code | None:
    """Return the refusal of offsets."""
    if group is not None:
        if command.number <= group.ended.get(command.producer, _NONE)[0]:
            return Code.TXN_ENDED
        known = group.pending.get(command.producer)
        if known is not None and known.number != command.number:
            return Code.NOT_YET
    if command.generation < 0 and not command.member:
        return None  # a client that sends no membership, as of before KIP-447
    return judge_member(group, command)


def _fits(
    machine: Machine,
    group: ConsumerGroup | None,
    known: PendingOffsets | None,
    new: dict[bytes, bytes],
) -> bool:
    """Report whether the group's limits admit more offsets of a transaction."""
    if group is not None:
        count = len(group.offsets) + pending_count(group)
        count += len(new.keys() - (known.offsets.keys() if known is not None else ()))
        open_ = len(group.pending) + (known is None)
    else:
        count, open_ = len(new), 1
    return (
        count <= GROUP_OFFSETS_MAX
        and open_ <= GROUP_TRANSACTIONS_MAX
        and has_room(machine, int(group is None), sum(map(len, new.values())))
    )


def settle_offsets(  # noqa: PLR0913
    machine: Machine, group_id: str, producer: int, number: int, *, commit: bool, now_ms: int
) -> None:
    """End a transaction in a consumer group: its offsets become those of the group, or go. An end
    that comes again, or late, does nothing. A group that is not known remembers the end."""
    groups = machine.consumer_groups
    group = groups.get(group_id)
    if group is None:
        group = ConsumerGroup(group_id)
        groups.add(group)
    pending = group.pending.get(producer)
    last = group.ended.get(producer, _NONE)[0]
    is_open = pending is not None and pending.number == number
    if number <= last and not is_open:
        return
    if is_open:
        groups.take_pending(group, producer)
        if commit:
            assert pending is not None
            _move(machine, group, pending)
    groups.set_ended(group, producer, max(last, number), now_ms)
    groups.drop_ended(group, now_ms - ENDED_MS)
    _changed(machine, group, now_ms)


def _move(machine: Machine, group: ConsumerGroup, pending: PendingOffsets) -> None:
    """Commit the offsets of a transaction. What is older, and yet to come, does not replace
    them."""
    groups = machine.consumer_groups
    for key, value in pending.offsets.items():
        groups.set_offset(group, key, value)
        groups.drop_pending(group, (key,), time_of(value))


def _changed(machine: Machine, group: ConsumerGroup, now_ms: int) -> None:
    group.used_ms = max(group.used_ms, now_ms)
    changed(machine, group.id)
    machine.counters.raise_level(level_of(TxnOffsets))
