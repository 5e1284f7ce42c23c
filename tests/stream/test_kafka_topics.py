"""Topics in the meta group: the order of their steps, their ids, and their state after a
restart."""

from __future__ import annotations

from group_machines import codes

from polynya.stream.features.topics.commands import TopicDrop, TopicGone, TopicPut, TopicReady
from polynya.stream.features.topics.state import TopicState
from polynya.stream.machine import Machine
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import machine_from, snapshot_of

FIRST, SECOND = bytes([1]) * 16, bytes([2]) * 16


def put(id_: bytes, partitions: int = 3) -> TopicPut:
    return TopicPut("t", id_, partitions, [("retention.ms", "5")], 7)


def test_a_topic_goes_through_its_steps_and_each_may_be_repeated() -> None:
    machine = Machine(0, 4)
    assert codes(machine, put(FIRST), put(FIRST)) == [Code.CREATED, Code.EXISTS]
    assert machine.meta.topics["t"].state == TopicState.CREATING
    assert codes(machine, *[TopicReady("t", FIRST)] * 2) == [Code.OK, Code.OK]
    assert machine.meta.topics["t"].state == TopicState.READY
    assert codes(machine, *[TopicDrop("t", FIRST)] * 2) == [Code.OK, Code.OK]
    assert codes(machine, put(SECOND)) == [Code.EXISTS], "its streams may be left"
    assert codes(machine, *[TopicGone("t", FIRST)] * 2) == [Code.OK, Code.NOT_FOUND]
    assert codes(machine, put(SECOND)) == [Code.CREATED]
    assert machine.meta.topics["t"].id == SECOND


def test_late_steps_of_an_earlier_topic_change_nothing() -> None:
    machine = Machine(0, 4)
    codes(machine, put(SECOND))
    before, changes = snapshot_of(machine), machine.meta.topic_changes
    assert (
        codes(
            machine,
            TopicReady("t", FIRST),
            TopicDrop("t", FIRST),
            TopicGone("t", FIRST),
            TopicGone("t", SECOND),
        )
        == [Code.NOT_FOUND] * 4
    )
    assert snapshot_of(machine) == before
    assert machine.meta.topic_changes == changes


def test_a_dropped_topic_does_not_become_ready() -> None:
    machine = Machine(0, 4)
    assert codes(machine, put(FIRST), TopicDrop("t", FIRST), TopicReady("t", FIRST)) == [
        Code.CREATED,
        Code.OK,
        Code.NOT_FOUND,
    ]
    assert machine.meta.topics["t"].state == TopicState.DROPPED


def test_topics_survive_a_restart() -> None:
    machine = Machine(0, 4)
    codes(machine, put(FIRST), TopicReady("t", FIRST))
    again = machine_from(snapshot_of(machine), lambda position, uid: b"")
    assert again.meta.topics == machine.meta.topics
    assert snapshot_of(again) == snapshot_of(machine)
