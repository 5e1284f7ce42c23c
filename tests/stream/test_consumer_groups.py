"""The logged state of consumer groups: who may commit, what expires, what snapshots and deltas
have, and the limits."""

from __future__ import annotations

import pytest
from group_machines import checked, codes, offsets

from polynya.base import limits
from polynya.stream.command import Command
from polynya.stream.command_validation import fault_of
from polynya.stream.features.consumer_groups import rules
from polynya.stream.features.consumer_groups.commands import (
    CommitOffsets,
    ConsumerGroupDrop,
    ConsumerGroupMember,
    ConsumerGroupPut,
    DropOffsets,
    ExpireOffsets,
    ForgetTopic,
    OffsetEntry,
)
from polynya.stream.features.topics.commands import TopicDrop, TopicGone, TopicPut
from polynya.stream.machine import Machine
from polynya.stream.replies import Code
from polynya.stream.snapshots import deltas
from polynya.stream.snapshots.encode import decode_image, machine_from, snapshot_of
from polynya.stream.snapshots.restore_history import Survey, reborn

T, U = bytes([1]) * 16, bytes([2]) * 16


def member(id_: str, data: bytes = b"a") -> ConsumerGroupMember:
    return ConsumerGroupMember(id_, None, "client", "/host", 10_000, 60_000, b"s", data)


def put(generation: int, *ids: str, now_ms: int = 10) -> ConsumerGroupPut:
    members = [member(id_) for id_ in ids]
    return ConsumerGroupPut(
        "g", now_ms, generation, "consumer", "range", ids[0] if ids else "", members
    )


def commit(
    generation: int, id_: str, offset: int, *, topic: bytes = T, now_ms: int = 10, part: int = 0
) -> CommitOffsets:
    return CommitOffsets("g", now_ms, generation, id_, [OffsetEntry(topic, part, offset, -1, "m")])


def test_a_commit_is_judged_by_the_logged_generation() -> None:
    machine = Machine(1, 4)
    assert codes(machine, commit(1, "a", 5)) == [Code.NOT_FOUND], "no such group"
    assert codes(machine, put(1, "a", "b"), commit(1, "a", 5)) == [Code.OK, Code.OK]
    assert codes(machine, put(2, "b", "c")) == [Code.OK]
    assert codes(machine, commit(1, "b", 6), commit(2, "a", 6), commit(-1, "", 6)) == [
        Code.FENCED,
        Code.NOT_FOUND,
        Code.HELD,
    ]
    assert offsets(machine) == {(T, 0): 5}
    assert codes(machine, commit(2, "c", 7), put(1, "x")) == [Code.OK, Code.FENCED]
    assert offsets(checked(machine)) == {(T, 0): 7}


def test_consumers_without_membership_commit_to_an_empty_group() -> None:
    machine = Machine(1, 4)
    assert codes(machine, commit(-1, "", 3), commit(-1, "x", 4)) == [Code.OK, Code.NOT_FOUND]
    assert codes(machine, put(1, "a"), put(2), commit(-1, "", 9)) == [Code.OK] * 3
    assert offsets(checked(machine)) == {(T, 0): 9}


def test_a_group_goes_when_it_is_empty() -> None:
    machine = Machine(1, 4)
    assert codes(machine, ConsumerGroupDrop("g"), put(1, "a"), ConsumerGroupDrop("g")) == [
        Code.NOT_FOUND,
        Code.OK,
        Code.HELD,
    ]
    assert codes(machine, put(2), ConsumerGroupDrop("g"), put(3)) == [Code.OK] * 3
    assert not machine.consumer_groups.by_id
    assert checked(machine).consumer_groups.bytes == 0


def test_offsets_expire_with_an_idle_group() -> None:
    machine = Machine(1, 4)
    codes(machine, put(1, "a"), commit(1, "a", 5, now_ms=20))
    assert codes(machine, ExpireOffsets("g", 1000)) == [Code.ACTIVE]
    codes(machine, put(2, now_ms=500))
    assert codes(machine, ExpireOffsets("g", 500)) == [Code.OK]
    assert offsets(machine) == {(T, 0): 5}, "the retention begins when the last member has left"
    assert codes(machine, ExpireOffsets("g", 501), ExpireOffsets("g", 501)) == [
        Code.OK,
        Code.NOT_FOUND,
    ]
    assert not checked(machine).consumer_groups.by_id


def test_each_offset_expires_alone_without_members() -> None:
    machine = Machine(1, 4)
    codes(machine, commit(-1, "", 5, now_ms=20), commit(-1, "", 6, now_ms=30, part=1))
    assert codes(machine, ExpireOffsets("g", 25)) == [Code.OK]
    assert offsets(checked(machine)) == {(T, 1): 6}


def test_offsets_are_deleted_by_partition_and_by_topic() -> None:
    machine = Machine(1, 4)
    codes(machine, *(commit(-1, "", n, topic=topic, part=n) for topic in (T, U) for n in (1, 2)))
    assert codes(machine, DropOffsets("g", [(T, 1), (T, 9)]), DropOffsets("x", [])) == [
        Code.OK,
        Code.NOT_FOUND,
    ]
    assert offsets(machine) == {(T, 2): 2, (U, 1): 1, (U, 2): 2}
    assert codes(machine, ForgetTopic(U), ForgetTopic(U)) == [Code.OK, Code.OK]
    assert offsets(checked(machine)) == {(T, 2): 2}


def test_a_deleted_topic_is_told_to_all_groups() -> None:
    meta = Machine(0, 4)
    codes(meta, TopicPut("t", T, 1, [], 5), TopicDrop("t", T))
    assert not meta.outbox.messages
    codes(meta, TopicGone("t", T))
    assert sorted(meta.outbox.messages.values(), key=lambda sent: sent[0]) == [
        (group, ForgetTopic(T)) for group in (1, 2, 3, 4)
    ]
    assert (
        machine_from(snapshot_of(meta), lambda position, uid: b"").outbox.messages
        == meta.outbox.messages
    )


def test_deltas_have_the_groups_that_changed() -> None:
    machine = Machine(1, 4)
    codes(
        machine, put(1, "a"), CommitOffsets("h", 5, -1, "", []), CommitOffsets("i", 5, -1, "", [])
    )
    parts = [deltas.SnapshotPart(snapshot_of(machine))]
    machine.take_changes()
    codes(machine, commit(1, "a", 5), ConsumerGroupDrop("h"))
    changes = machine.take_changes()
    assert bool(changes)
    head = deltas.encode_head(machine, changes, 0, whole=False)
    parts.append(deltas.SnapshotPart(head, delta=True, root=False))
    assert deltas.merge(parts) == snapshot_of(machine)
    changes.put_back(machine.take_changes())
    assert changes.consumer_groups == {"g", "h"}


def test_limits_refuse_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(1, 4)
    monkeypatch.setattr(rules, "CONSUMER_GROUPS_MAX", 1)
    monkeypatch.setattr(rules, "GROUP_OFFSETS_MAX", 2)
    assert codes(machine, *(commit(-1, "", 1, part=part) for part in (1, 2, 3, 2))) == [
        Code.OK,
        Code.OK,
        Code.TOO_MANY,
        Code.OK,
    ]
    before = snapshot_of(machine)
    other = ConsumerGroupPut("other", 1, 1, "consumer", "range", "m", [member("m")])
    assert codes(machine, other, CommitOffsets("other", 1, -1, "", [])) == [Code.TOO_MANY] * 2
    monkeypatch.setattr(rules, "CONSUMER_GROUPS_MAX", limits.CONSUMER_GROUPS_MAX)
    monkeypatch.setattr(rules, "CONSUMER_GROUPS_BYTES_MAX", machine.consumer_groups.bytes)
    assert codes(machine, other, commit(-1, "", 1, part=1)) == [Code.TOO_MANY] * 2
    assert snapshot_of(machine) == before


def test_a_restore_keeps_offsets() -> None:
    machine = Machine(1, 4)
    codes(machine, commit(-1, "", 5))
    image = decode_image(snapshot_of(machine))
    survey = Survey()
    survey.add(image)
    reborn(image, survey, now_ms=50)
    assert [group.id for group in image.consumer_groups] == ["g"]


@pytest.mark.parametrize(
    "command",
    [
        ConsumerGroupDrop(""),
        ConsumerGroupDrop("g" * 2000),
        ConsumerGroupPut("g", 5, -1, "consumer", "range", "m", []),
        CommitOffsets("g", 5, 1, "m", [OffsetEntry(b"short", 0, 1, -1, "")]),
        CommitOffsets("g", 5, 1, "m", [OffsetEntry(T, -1, 1, -1, "")]),
        DropOffsets("g", [(T, -1)]),
        ForgetTopic(b""),
    ],
    ids=lambda command: type(command).__name__,
)
def test_impossible_values_are_refused(command: Command) -> None:
    assert fault_of(command)
