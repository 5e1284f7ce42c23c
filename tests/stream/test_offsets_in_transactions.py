"""Offsets that transactions commit: pending until the end, then moved or dropped."""

from __future__ import annotations

import pytest
from group_machines import checked, codes, offsets

from polynya.base.limits import ENDED_MS
from polynya.stream.command import Command
from polynya.stream.command_validation import fault_of
from polynya.stream.features.consumer_groups import rules, transactions
from polynya.stream.features.consumer_groups.commands import (
    CommitOffsets,
    ConsumerGroupDrop,
    ConsumerGroupMember,
    ConsumerGroupPut,
    DropOffsets,
    ExpireOffsets,
    ForgetTopic,
    OffsetEntry,
    TxnOffsets,
)
from polynya.stream.features.consumer_groups.state import (
    ConsumerGroup,
    PendingOffsets,
)
from polynya.stream.features.consumer_groups.transactions import settle_offsets
from polynya.stream.machine import Machine
from polynya.stream.replies import Code
from polynya.stream.snapshots import deltas
from polynya.stream.snapshots.encode import decode_image, machine_from, snapshot_of, write_image
from polynya.stream.snapshots.restore_history import Survey, reborn

T, U = bytes([1]) * 16, bytes([2]) * 16
P, Q = 1 << 47, (1 << 47) + 1


def pending(  # noqa: PLR0913
    offset: int,
    number: int = 1,
    *,
    producer: int = P,
    part: int = 0,
    topic: bytes = T,
    now_ms: int = 10,
    member: tuple[int, str] = (-1, ""),
) -> TxnOffsets:
    entries = [OffsetEntry(topic, part, offset, -1, "m")]
    return TxnOffsets("g", now_ms, producer, 0, number, *member, entries)


def commit(offset: int, *, now_ms: int = 10) -> CommitOffsets:
    return CommitOffsets("g", now_ms, -1, "", [OffsetEntry(T, 0, offset, -1, "m")])


def put(generation: int, *ids: str) -> ConsumerGroupPut:
    members = [ConsumerGroupMember(id_, None, "", "", 9, 9, b"s", b"a") for id_ in ids]
    return ConsumerGroupPut("g", 10, generation, "consumer", "range", "", members)


def end(
    machine: Machine, number: int = 1, *, commit: bool = True, producer: int = P, now_ms: int = 20
) -> None:
    settle_offsets(machine, "g", producer, number, commit=commit, now_ms=now_ms)


def group_of(machine: Machine) -> ConsumerGroup:
    group = machine.consumer_groups.get("g")
    assert group is not None
    return group


@pytest.mark.parametrize(("is_commit", "expected"), [(True, {(T, 0): 7, (T, 1): 9}), (False, {})])
def test_offsets_wait_for_the_end_of_their_transaction(
    is_commit: bool, expected: dict[tuple[bytes, int], int]
) -> None:
    machine = Machine(1, 4)
    assert codes(machine, pending(5), pending(7), pending(9, part=1)) == [Code.OK] * 3
    assert machine.counters.level == 4
    assert offsets(machine) == {}
    assert len(group_of(machine).unstable) == 2
    checked(machine)
    end(machine, commit=is_commit)
    assert offsets(machine) == expected
    assert not group_of(machine).pending
    checked(machine)


def test_an_ended_transaction_gets_no_offsets_and_ends_once() -> None:
    machine = Machine(1, 4)
    codes(machine, pending(5))
    end(machine)
    assert codes(machine, commit(8), pending(9)) == [Code.OK, Code.TXN_ENDED]
    end(machine)
    end(machine, commit=False)
    assert offsets(checked(machine)) == {(T, 0): 8}
    assert codes(machine, pending(9, 2), pending(10, 3)) == [Code.OK, Code.NOT_YET]
    end(machine, 2)
    assert offsets(checked(machine)) == {(T, 0): 9}
    assert codes(machine, pending(1, 1), pending(1, 2)) == [Code.TXN_ENDED] * 2


def test_a_transaction_that_ends_before_its_offsets_come_refuses_them() -> None:
    machine = Machine(1, 4)
    end(machine, commit=False)
    assert codes(machine, pending(5)) == [Code.TXN_ENDED]
    assert group_of(checked(machine)).is_shell
    assert codes(machine, ConsumerGroupDrop("g")) == [Code.NOT_FOUND], "nobody sees it"


def test_an_earlier_transaction_that_was_left_open_can_still_end() -> None:
    machine = Machine(1, 4)
    codes(machine, pending(5))
    end(machine, 2)
    assert offsets(machine) == {}
    end(machine, 1)
    assert offsets(checked(machine)) == {(T, 0): 5}
    assert codes(machine, pending(5, 2)) == [Code.TXN_ENDED], "the highest number counts"


@pytest.mark.parametrize(
    "later",
    [commit(8), DropOffsets("g", [(T, 0)]), ForgetTopic(T)],
    ids=lambda each: type(each).__name__,
)
def test_a_later_change_of_the_partition_wins(later: Command) -> None:
    machine = Machine(1, 4)
    codes(machine, pending(5), pending(6, part=1, topic=U), later)
    end(machine)
    expected = {(T, 0): 8} if isinstance(later, CommitOffsets) else {}
    assert offsets(checked(machine)) == expected | {(U, 1): 6}


def test_of_two_transactions_the_later_offset_counts() -> None:
    for first, second in ((P, Q), (Q, P)):
        machine = Machine(1, 4)
        codes(machine, pending(5, now_ms=10), pending(6, producer=Q, now_ms=11))
        end(machine, producer=first)
        end(machine, producer=second)
        assert offsets(checked(machine)) == {(T, 0): 6}


def test_members_are_judged_as_for_other_commits() -> None:
    machine = Machine(1, 4)
    codes(machine, put(2, "a"))
    assert codes(
        machine,
        pending(5, member=(1, "a")),
        pending(5, member=(2, "b")),
        pending(5, member=(2, "a")),
        pending(6, producer=Q),
    ) == [Code.FENCED, Code.NOT_FOUND, Code.OK, Code.OK]
    checked(machine)


def test_a_group_with_pending_offsets_stays() -> None:
    machine = Machine(1, 4)
    codes(machine, commit(1), pending(5))
    assert codes(machine, ConsumerGroupDrop("g"), ExpireOffsets("g", 10_000)) == [
        Code.HELD,
        Code.ACTIVE,
    ]
    end(machine)
    assert codes(machine, ConsumerGroupDrop("g")) == [Code.OK]
    assert codes(machine, pending(5)) == [Code.TXN_ENDED], "a deleted group remembers the end"
    checked(machine)


def test_ends_are_remembered_for_a_time() -> None:
    machine = Machine(1, 4)
    codes(machine, pending(5), commit(1))
    end(machine, now_ms=20)
    later_ms = 21 + ENDED_MS
    end(machine, producer=Q, now_ms=later_ms)
    assert group_of(checked(machine)).ended == {Q: (1, later_ms)}
    codes(machine, commit(2, now_ms=2 * later_ms), ExpireOffsets("g", 3 * later_ms))
    assert not checked(machine).consumer_groups.by_id


def test_deltas_have_the_pending_offsets() -> None:
    machine = Machine(1, 4)
    codes(machine, commit(1))
    parts = [deltas.SnapshotPart(snapshot_of(machine))]
    machine.take_changes()
    codes(machine, pending(5))
    head = deltas.encode_head(machine, machine.take_changes(), 0, whole=False)
    parts.append(deltas.SnapshotPart(head, delta=True, root=False))
    end(machine)
    head = deltas.encode_head(machine, machine.take_changes(), 0, whole=False)
    parts.append(deltas.SnapshotPart(head, delta=True, root=False))
    assert deltas.merge(parts) == snapshot_of(machine)


def test_limits_refuse_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(1, 4)
    for room in (rules, transactions):
        monkeypatch.setattr(room, "GROUP_OFFSETS_MAX", 2)
    monkeypatch.setattr(transactions, "GROUP_TRANSACTIONS_MAX", 2)
    assert codes(machine, commit(1), pending(5, part=1), pending(6, part=1)) == [Code.OK] * 3
    before = snapshot_of(machine)
    assert codes(machine, pending(5, part=2)) == [Code.TOO_MANY]
    monkeypatch.setattr(transactions, "GROUP_OFFSETS_MAX", 9)
    monkeypatch.setattr(transactions, "GROUP_TRANSACTIONS_MAX", 1)
    assert codes(machine, pending(5, producer=Q)) == [Code.TOO_MANY]
    assert snapshot_of(machine) == before


def test_a_restore_keeps_them_for_the_markers_of_their_coordinator() -> None:
    machine = Machine(1, 4)
    codes(machine, commit(1), pending(5, 3))
    image = decode_image(snapshot_of(machine))
    survey = Survey()
    survey.add(image)
    reborn(image, survey, now_ms=50)
    again = machine_from(write_image(image), lambda position, uid: b"")
    assert again.consumer_groups.undecided.keys() == {"g"}
    end(again, 3)
    assert offsets(again) == {(T, 0): 5}
    assert not again.consumer_groups.undecided


def test_a_group_without_transactions_is_written_as_before() -> None:
    machine = Machine(1, 4)
    codes(machine, commit(1))
    assert len(group_of(machine).as_written().__struct_fields__) == 9
    codes(machine, pending(5))
    assert isinstance(group_of(machine).pending[P], PendingOffsets)
    assert group_of(machine).as_written() is group_of(machine)


def test_impossible_values_are_refused() -> None:
    assert fault_of(TxnOffsets("g", 5, P, 0, 0, -1, "", []))
    assert fault_of(TxnOffsets("g", 5, P, -1, 1, -1, "", []))
    assert fault_of(TxnOffsets("", 5, P, 0, 1, -1, "", []))
    assert fault_of(TxnOffsets("g", 5, P, 0, 1, -1, "", [OffsetEntry(b"x", 0, 1, -1, "")]))
