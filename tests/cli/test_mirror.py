"""`polynya mirror` between two nodes: kills, logins, and sources and targets that it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from free_ports import refusing_url
from polling import wait_until
from product import CommandProcess, Ran, RunningNode, polynya, running_node

pytestmark = pytest.mark.process

SECONDS = 60.0
QUIET = {"log_level": 0}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("source"), "--cores", "1") as node:
        yield node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("node"), "--cores", "1") as node:
        yield node


def written(node: RunningNode, topic: str, count: int, partitions: int = 1, **more: Any) -> None:
    if "first" not in more:
        made = polynya("topic", "create", topic, "--partitions", str(partitions), server=node.url)
        assert made.code == 0, made.err
    writer = Producer(
        {"bootstrap.servers": node.kafka, "linger.ms": 0, "batch.num.messages": 7, **QUIET}
    )
    for number in range(more.get("first", 0), count):
        writer.produce(
            topic, f"value {number} " * 9, f"k{number}", number % partitions, headers=[("n", b"1")]
        )
    assert writer.flush(SECONDS) == 0


def rows(node: RunningNode, topic: str, partitions: int = 1) -> list[tuple[Any, ...]]:
    consumer = Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": "none",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[tuple[Any, ...]] = []
    ended = 0
    while ended < partitions:
        message = consumer.poll(SECONDS)
        assert message is not None
        if message.error():
            ended += 1
        else:
            found.append(
                (message.partition(), message.offset(), message.key(), message.value(),
                 message.timestamp(), tuple(message.headers() or ()))
            )  # fmt: skip
    consumer.close()
    return sorted(found)


def ends(node: RunningNode, topic: str) -> Any:
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "none", **QUIET})
    found = consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)
    consumer.close()
    return found


def arguments(source: RunningNode | str, *topics: str) -> list[str]:
    address = source if isinstance(source, str) else source.kafka
    return ["mirror", "--from", address, "--topics", ",".join(topics)]


def mirror(
    source: RunningNode | str, node: RunningNode, topic: str, *more: str, **variables: str
) -> Ran:
    return polynya(*arguments(source, topic), *more, server=node.url, **variables)


def test_a_mirror_is_killed_and_goes_on(source: RunningNode, node: RunningNode) -> None:
    written(source, "killed", 300, 2)
    running = CommandProcess(*arguments(source, "kil*"), POLYNYA_SERVER=node.url)
    try:
        for turn in range(1, 4):
            written(source, "killed", 300 + 100 * turn, 2, first=200 + 100 * turn)
            wait_until(
                lambda: (
                    len(polynya("topic", "describe", "killed", server=node.url).out) > 0
                    and rows(node, "killed", 2)
                ),
                what="records are here",
            )
            running.process.kill()
            running.process.wait()
            running.end_reading()
            running = CommandProcess(*arguments(source, "kil*"), POLYNYA_SERVER=node.url)
    finally:
        running.process.kill()
        running.process.wait()
        running.end_reading()
    done = mirror(source, node, "killed", "--once")
    assert done.code == 0, done.err
    assert rows(node, "killed", 2) == rows(source, "killed", 2)
    assert len(rows(node, "killed", 2)) == 600


def test_partitions_and_configs_follow_the_source(source: RunningNode, node: RunningNode) -> None:
    written(source, "follows", 20)
    alter = ("topic", "alter", "follows", "--config")
    polynya(*alter, "retention.ms=86400000", server=source.url)
    assert mirror(source, node, "follows", "--once").code == 0
    polynya(
        *alter,
        "cleanup.policy=compact",
        "--unset",
        "retention.ms",
        "--partitions",
        "3",
        server=source.url,
    )
    assert mirror(source, node, "follows", "--once").code == 0
    shown = polynya("topic", "describe", "follows", server=node.url).out
    assert "cleanup.policy   compact" in shown
    assert "retention.ms" not in shown
    assert "partitions       3" in shown
    assert rows(node, "follows", 3) == rows(source, "follows", 3)


def test_positions_and_the_start_of_the_log(source: RunningNode, node: RunningNode) -> None:
    written(source, "trimmed", 50)
    consumer = Consumer({"bootstrap.servers": source.kafka, "group.id": "readers", **QUIET})
    consumer.commit(offsets=[TopicPartition("trimmed", 0, 33)], asynchronous=False)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": source.kafka, **QUIET})
    for each in admin.delete_records([TopicPartition("trimmed", 0, 21)]).values():
        each.result(SECONDS)
    assert rows(source, "trimmed")[0][1] == 21
    assert mirror(source, node, "trimmed", "--once").code == 0
    assert rows(node, "trimmed") == rows(source, "trimmed")
    shown = polynya("group", "describe", "readers", server=node.url).out
    assert "33" in shown


def test_a_source_without_records_has_its_end(source: RunningNode, node: RunningNode) -> None:
    written(source, "emptied", 40)
    written(source, "shortened", 40)
    assert mirror(source, node, "shortened", "--once").code == 0
    written(source, "shortened", 90, first=40)
    admin = AdminClient({"bootstrap.servers": source.kafka, **QUIET})
    partitions = [TopicPartition("emptied", 0, 40), TopicPartition("shortened", 0, 70)]
    for each in admin.delete_records(partitions).values():
        each.result(SECONDS)
    done = mirror(source, node, "emptied,shortened", "--once")
    assert done.code == 0, done.err
    for topic in ("emptied", "shortened"):
        assert rows(node, topic) == rows(source, topic)
        assert ends(node, topic) == ends(source, topic)
    assert ends(node, "shortened") == (70, 90), "what the source has deleted before is a gap"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("nowhere.invalid:9092", "does not answer"),
        ("HTTP", "no answer in"),
        ("REFUSING", "does not answer"),
    ],
)
def test_a_wrong_address(source: RunningNode, node: RunningNode, address: str, why: str) -> None:
    with refusing_url() as refusing:
        urls = {"HTTP": source.url, "REFUSING": refusing}
        done = mirror(urls.get(address, address).removeprefix("http://"), node, "t")
    assert (done.code, why in done.err) == (3, True), done.err
    assert "--from" in done.err


def test_topics_that_are_refused(source: RunningNode, node: RunningNode) -> None:
    assert "no topic that matches nothing*" in mirror(source, node, "nothing*", "--once").err
    written(source, "taken", 5)
    written(node, "taken", 3)
    done = mirror(source, node, "taken", "--once")
    assert (done.code, "topic taken exists here and is no mirror" in done.err) == (1, True), (
        done.err
    )
    assert len(rows(node, "taken")) == 3, "nothing was copied into it"


def test_a_topic_that_is_deleted_or_made_again(source: RunningNode, node: RunningNode) -> None:
    written(source, "again", 30)
    assert mirror(source, node, "again", "--once").code == 0
    polynya("topic", "rm", "again", server=source.url)
    gone = mirror(source, node, "again", "--once")
    assert (gone.code, "no topic that matches again" in gone.err) == (1, True)
    written(source, "again", 3)
    other = mirror(source, node, "again", "--once")
    assert other.code == 1
    assert "again/0 ends at offset 3 at the source and at 30 here" in other.err
    assert len(rows(node, "again")) == 30


def test_the_cut_over_lets_producers_in(source: RunningNode, node: RunningNode) -> None:
    written(source, "ready", 30)
    assert mirror(source, node, "ready", "--once").code == 0
    failures: list[str] = []
    writer = Producer({"bootstrap.servers": node.kafka, **QUIET})
    writer.produce("ready", b"x", on_delivery=lambda error, _: failures.append(error.name()))
    writer.flush(SECONDS)
    assert failures == ["POLICY_VIOLATION"]
    done = mirror(source, node, "ready", "--cut-over")
    assert (done.code, "bootstrap.servers" in done.err) == (0, True), done.err
    assert "ACLs" in done.err
    written(node, "ready", 33, first=30)
    assert len(rows(node, "ready")) == 33
    again = mirror(source, node, "ready", "--cut-over")
    assert (again.code, "ready is no mirror, or was cut over" in again.err) == (0, True), again.err
    assert mirror(source, node, "ready", "--once").code == 1


def test_a_source_with_logins(node: RunningNode, tmp_path: Path) -> None:
    data = tmp_path / "secured"
    made = polynya("token", "create", "app", "--allow", "all,admin", "--data", str(data))
    token = made.out.strip()
    with running_node(data, "--cores", "1", "--auth-required") as secured:
        sent = polynya("topic", "create", "s", server=secured.url, POLYNYA_TOKEN=token)
        assert sent.code == 0, sent.err
        login = ("--once", "--from-user", "app", "--from-sasl")
        done = mirror(secured, node, "s", *login, "plain", POLYNYA_MIRROR_PASSWORD=token)
        assert done.code == 0, done.err
        for mechanism in ("plain", "scram-sha-256"):
            wrong = mirror(secured, node, "s", *login, mechanism, POLYNYA_MIRROR_PASSWORD="wrong")
            assert (wrong.code, "refused the login of 'app'" in wrong.err) == (1, True), wrong.err
        for more in ((), ("--from-tls",)):
            assert mirror(secured, node, "s", "--once", *more).code == 3


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (("--from-user", "x"), "needs --from-sasl"),
        (("--from-sasl", "plain"), "needs --from-user"),
        (("--from-sasl", "plain", "--from-user", "x"), "POLYNYA_MIRROR_PASSWORD"),
        (("--from-ca", "x"), "need --from-tls"),
        (("--from-tls", "--from-ca", "/none"), "cannot be used"),
        (("--once", "--cut-over"), "leave --once out"),
        (("--force",), "is for --cut-over"),
    ],
)
def test_wrong_options(node: RunningNode, given: tuple[str, ...], why: str) -> None:
    done = mirror("h:1", node, "t", *given)
    assert (done.code, why in done.err) == (2, True), done.err
