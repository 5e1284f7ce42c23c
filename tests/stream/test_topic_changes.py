"""Topics that change: configs, growth, adopted streams, and changes since a number."""

from __future__ import annotations

import pytest

from polynya.base import limits
from polynya.stream.features.topics import state as topics
from polynya.stream.features.topics.commands import (
    TopicChange,
    TopicDrop,
    TopicGone,
    TopicPut,
    TopicReady,
)
from polynya.stream.features.topics.rules import retention_of_topic
from polynya.stream.features.topics.state import Topic, TopicNews, TopicState
from polynya.stream.machine import Machine
from polynya.stream.parts import Retention
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import machine_from, snapshot_of

ID = bytes(15) + b"1"


def machine_with(name: str = "t", partitions: int = 2, streams: list[str] | None = None) -> Machine:
    machine = Machine(0, 4)
    machine.apply(TopicPut(name, ID, partitions, [], 7, streams or []))
    machine.apply(TopicReady(name, ID, partitions))
    return machine


def change(machine: Machine, partitions: int, *configs: tuple[str, str], behind: int = 0) -> int:
    revision = machine.meta.topics["t"].revision - behind
    return machine.apply(TopicChange("t", ID, revision, partitions, list(configs))).code


def news(machine: Machine, since: int) -> tuple[bool, list[str], list[str]]:
    found: TopicNews = machine.meta.topic_changes.since(since, machine.meta.topics)
    assert found.revision == machine.meta.topic_changes.revision
    return found.whole, sorted(topic.name for topic in found.topics), sorted(found.gone)


def test_a_change_is_refused_if_another_came_first() -> None:
    machine = machine_with()
    assert change(machine, 2, ("a", "1")) == Code.OK
    assert machine.meta.topics["t"].configs == [("a", "1")]
    assert change(machine, 2, ("a", "2"), behind=1) == Code.NOT_YET
    assert machine.meta.topics["t"].configs == [("a", "1")]
    assert machine.apply(TopicChange("t", bytes(16), 0, 2, [])).code == Code.NOT_FOUND
    machine.apply(TopicDrop("t", ID))
    assert change(machine, 2) == Code.NOT_FOUND


def test_further_partitions_count_once_their_streams_exist() -> None:
    machine = machine_with()
    assert change(machine, 5) == Code.OK
    topic = machine.meta.topics["t"]
    assert (topic.state, topic.partitions, topic.growing) == (TopicState.READY, 2, 5)
    assert topic.own_streams(2) == ["kafka/t/2", "kafka/t/3", "kafka/t/4"]
    assert not topic.is_settled
    assert change(machine, 6) == Code.NOT_YET, "one growth after the other"
    machine.apply(TopicReady("t", ID, 2))
    assert topic.partitions == 2, "a late step of the creation"
    machine.apply(TopicReady("t", ID, 5))
    assert (topic.partitions, topic.growing) == (5, 0)
    assert topic.is_settled


def test_a_growth_can_be_given_up_and_a_drop_covers_it() -> None:
    machine = machine_with()
    change(machine, 5)
    assert len(machine.meta.topics["t"].own_streams()) == 5, "a deletion deletes the begun ones too"
    assert change(machine, 2) == Code.OK
    assert machine.meta.topics["t"].growing == 0


def test_an_adopted_stream_is_the_first_partition_and_is_not_the_topics_own() -> None:
    topic = machine_with(streams=["default/orders"]).meta.topics["t"]
    assert [topic.stream(number) for number in (0, 1)] == ["default/orders", "kafka/t/1"]
    assert topic.own_streams() == ["kafka/t/1"]


def test_a_reader_gets_what_changed_since() -> None:
    machine = machine_with("a")
    machine.apply(TopicPut("b", ID, 1, [], 7))
    assert news(machine, -1) == (True, ["a", "b"], [])
    at = machine.meta.topic_changes.revision
    assert news(machine, at) == (False, [], [])
    machine.apply(TopicReady("b", ID))
    assert news(machine, at) == (False, ["b"], [])
    machine.apply(TopicDrop("a", ID))
    machine.apply(TopicGone("a", ID))
    assert news(machine, at) == (False, ["b"], ["a"])
    assert news(machine, at + 10) == (False, [], []), "a reader that is ahead of this replica"


def test_numbers_are_those_of_other_replicas_after_a_restart() -> None:
    machine = machine_with("a")
    at = machine.meta.topic_changes.revision
    machine.apply(TopicPut("b", ID, 1, [], 7))
    machine.apply(TopicDrop("a", ID))
    machine.apply(TopicGone("a", ID))
    again = machine_from(snapshot_of(machine), lambda position, uid: b"")
    assert snapshot_of(again) == snapshot_of(machine)
    assert news(again, at) == (True, ["b"], []), "what was gone by then is not known any more"
    at = machine.meta.topic_changes.revision
    for each in (machine, again):
        each.apply(TopicReady("b", ID))
        assert news(each, at) == (False, ["b"], [])


def test_names_that_are_gone_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TOPICS_GONE_REMEMBERED_MAX", 3)
    machine = machine_with("kept")
    at = machine.meta.topic_changes.revision
    for number in range(5):
        for step in (TopicPut(f"t{number}", ID, 1, [], 7), TopicDrop(f"t{number}", ID)):
            machine.apply(step)
        machine.apply(TopicGone(f"t{number}", ID))
        whole = news(machine, at)[0]
        assert whole == (number >= 3), number
    assert limits.TOPICS_GONE_REMEMBERED_MAX > 1000


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, None),
        ({"retention.ms": "-1", "retention.bytes": "-1"}, None),
        ({"retention.ms": "1500"}, Retention(2)),
        ({"retention.bytes": "10"}, Retention(None, 10)),
        ({"retention.ms": "1500", "cleanup.policy": "compact"}, None),
        ({"retention.ms": "1500", "cleanup.policy": "compact,delete"}, Retention(2)),
        ({"retention.ms": str(2**63 - 1)}, Retention(limits.RETENTION_SECONDS_MAX)),
    ],
)
def test_configs_become_a_retention(configs: dict[str, str], expected: Retention | None) -> None:
    assert retention_of_topic(Topic("t", ID, 1, list(configs.items()), 0)) == expected
