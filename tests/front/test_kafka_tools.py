"""Requests of Kafka's tools and of user interfaces: configs, special times, pages, placement."""

from __future__ import annotations

from typing import Any

import pytest
from front.test_kafka_access import Gate, guarded
from front.test_kafka_admin import produced
from worlds.kafka import KafkaWire, KafkaWorld, batch, plain_fields, play

from polynya.front.kafka.admin.broker_configs import broker_configs, refusal_of
from polynya.front.kafka.admin.config_texts import documentation_of
from polynya.front.kafka.configs import CONFIGS, checked
from polynya.front.kafka.context import TopicDefaults
from polynya.front.kafka.errors import Error
from polynya.wire.kafka.messages import APIS

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
STATIC, DEFAULT = 4, 5
SET = 0


async def ask(wire: KafkaWire, name: str, version: int, **fields: Any) -> Any:
    return await wire.ask(name, version, **plain_fields(name, version, fields))


async def described(
    wire: KafkaWire, kind: int, name: str, *keys: str, documented: bool = False
) -> Any:
    """Describe a resource; no keys are an empty list of them."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    message = await ask(
        wire,
        "DescribeConfigs",
        4,
        resources=[resource],
        include_synonyms=True,
        include_documentation=documented,
    )
    return message.results[0]


async def altered(wire: KafkaWire, kind: int, name: str, **values: str) -> tuple[int, str]:
    """Set configs one by one; return the error and its message."""
    configs = [
        {"name": each.replace("_", "."), "config_operation": SET, "value": value}
        for each, value in values.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    message = await ask(
        wire, "IncrementalAlterConfigs", 1, resources=[resource], validate_only=False
    )
    (answer,) = message.responses
    return answer.error_code.value, answer.error_message or ""


@pytest.mark.parametrize(
    ("special", "since", "found"),
    [
        (-1, 1, (-1, 1, 0)),
        (-2, 1, (-1, 0, 0)),
        (-3, 7, (1000, 0, 0)),
        (-4, 8, (-1, 0, 0)),
        (-5, 9, (-1, -1, -1)),
        (-6, 11, (-1, -1, -1)),
        (-7, 12, (-1, -1, -1)),
    ],
)
def test_a_special_time_is_served_since_its_version(
    special: int, since: int, found: tuple[int, int, int]
) -> None:
    """Answer as Kafka 4.3.1 without tiered storage: nothing is tiered or waits for an upload."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        await produced(wire, "t", batch(b"a"))
        for version in APIS[2].versions:
            partition = {"partition_index": 0, "timestamp": special}
            fields = {"replica_id": -1, "topics": [{"name": "t", "partitions": [partition]}]}
            if version >= 2:
                fields["isolation_level"] = 0
            if version >= 10:
                fields["timeout"] = 1000
            message = await ask(wire, "ListOffsets", version, **fields)
            (answer,) = message.topics[0].partitions
            if version < since:
                assert answer.error_code.value == Error.UNSUPPORTED_VERSION
                continue
            assert answer.error_code.value == 0
            assert (answer.timestamp, answer.offset) == found[:2]
            if version >= 4:
                assert answer.leader_epoch == found[2]

    play(story)


def test_an_empty_list_of_keys_means_all_and_each_config_is_documented() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        for kind, name in ((TOPIC, "t"), (BROKER, "0")):
            result = await described(wire, kind, name)
            assert len(result.configs) > 30
            assert {each.documentation for each in result.configs} == {None}
            result = await described(wire, kind, name, documented=True)
            assert all(each.documentation.endswith(".") for each in result.configs)
        result = await described(wire, TOPIC, "t", "retention.ms", "none.such")
        assert [each.name for each in result.configs] == ["retention.ms"]

    play(story)


def test_a_config_without_an_effect_says_so() -> None:
    for name, config in CONFIGS.items():
        assert ("without an effect" in documentation_of(name)) != config.effect, name


def test_the_default_of_a_topic_has_its_name_among_the_configs_of_brokers() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        assert await altered(wire, TOPIC, "t", retention_ms="5") == (0, "")
        (config,) = (await described(wire, TOPIC, "t", "retention.ms")).configs
        assert [(each.name, each.value) for each in config.synonyms] == [
            ("retention.ms", "5"),
            ("log.retention.ms", "-1"),
        ]
        shown = {each.name for each in (await described(wire, BROKER, "0")).configs}
        assert {"log.retention.ms", "min.insync.replicas", "message.max.bytes"} <= shown

    play(story)


def test_a_broker_shows_the_values_of_its_settings() -> None:
    async def story(world: KafkaWorld) -> None:
        context = world.front.context
        context.defaults = TopicDefaults(auto_create=False, partitions=7)
        wire = await world.wire()
        found = {each.name: each for each in (await described(wire, BROKER, "0")).configs}
        assert len(found) == len(broker_configs(context)), "no name is there twice"
        assert all(each.read_only for each in found.values())
        for name, value, source in (
            ("num.partitions", "7", STATIC),
            ("auto.create.topics.enable", "false", STATIC),
            ("offsets.retention.minutes", "10080", STATIC),
            ("broker.id", "0", DEFAULT),
            ("log.retention.ms", "-1", DEFAULT),
            ("message.max.bytes", "33554432", DEFAULT),
        ):
            config = found[name]
            synonyms = [(each.name, each.value, each.source) for each in config.synonyms]
            assert (config.value, config.config_source) == (value, source)
            assert synonyms == [(name, value, source)]
        everywhere = await described(wire, BROKER, "")
        assert (everywhere.error_code.value, everywhere.configs) == (0, ())
        for wrong in ("1", "x"):
            result = await described(wire, BROKER, wrong)
            assert result.error_code.value == Error.INVALID_REQUEST
            assert f"expected 0 or an empty string, but received {wrong}" in result.error_message
        for kind, error in ((LOGGER, 0), (CLIENT_METRICS, 0), (GROUP, 0), (3, 42)):
            assert (await described(wire, kind, "0")).error_code.value == error

    play(story)


def test_a_change_of_a_broker_is_refused_with_the_setting() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        for name in ("0", ""):
            error, why = await altered(
                wire, BROKER, name, num_partitions="3", log_retention_ms="5", some_name="x"
            )
            assert error == Error.INVALID_REQUEST
            assert why == (
                "broker config num.partitions is the setting kafka.partitions of a node: set it "
                "there and start the node again; broker config log.retention.ms does not change: "
                "set retention.ms of each topic; broker config some.name is unknown or does not "
                "change: see docs/kafka.md"
            )

    play(story)
    assert refusal_of(map(str, range(9))).endswith("; and 4 more")
    assert refusal_of(()).startswith("brokers have no configs")


def test_a_resource_that_a_request_changes_twice_is_refused() -> None:
    """Kafka could not say which of its configs are meant. Others in the request are changed."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        await world.topic("u")
        wire = await world.wire()
        for api, version in (("AlterConfigs", 2), ("IncrementalAlterConfigs", 1)):
            config: dict[str, Any] = {"name": "retention.ms", "value": str(version)}
            if version == 1:
                config["config_operation"] = SET
            resources = [
                {"resource_type": TOPIC, "resource_name": name, "configs": [config]}
                for name in "tut"
            ]
            message = await ask(wire, api, version, resources=resources, validate_only=False)
            codes = [each.error_code.value for each in message.responses]
            assert codes == [Error.INVALID_REQUEST, 0, Error.INVALID_REQUEST]
            names = world.front.context.topics.names
            assert names["t"].settings == {}
            assert names["u"].settings == {"retention.ms": str(version)}

    play(story)


def test_a_resource_is_described_once() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        named = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None}
        fields = {"include_synonyms": False, "include_documentation": True}
        message = await ask(wire, "DescribeConfigs", 4, resources=[named] * 100, **fields)
        assert [len(each.configs) for each in message.results] == [len(CONFIGS)]

    play(story)


def test_lists_are_kept_without_blanks_and_repeats() -> None:
    assert checked([("cleanup.policy", " compact , delete,compact,")]) == {
        "cleanup.policy": "compact,delete"
    }
    assert checked([("leader.replication.throttled.replicas", "0:1, 1:2")]) == {
        "leader.replication.throttled.replicas": "0:1,1:2"
    }

    async def story(world: KafkaWorld) -> None:
        old = [("cleanup.policy", "delete, compact")]  # as an older release kept it
        await world.front.context.topics.create("t", 1, old)
        wire = await world.wire()
        (config,) = (await described(wire, TOPIC, "t", "cleanup.policy")).configs
        assert config.value == "delete,compact"

    play(story)


def test_a_cursor_that_kafka_refuses() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("a", 2)
        wire = await world.wire()

        async def page(names: str, cursor: tuple[str, int] | None, limit: int = 9) -> Any:
            at = cursor and {"topic_name": cursor[0], "partition_index": cursor[1]}
            return await ask(
                wire,
                "DescribeTopicPartitions",
                0,
                topics=[{"name": name} for name in names.split()],
                response_partition_limit=limit,
                cursor=at,
            )

        for names, cursor in (("a c", ("b", 0)), ("a c", ("a", -1))):
            refused = await page(names, cursor)
            assert [(each.name, each.error_code.value) for each in refused.topics] == [
                ("a", Error.INVALID_REQUEST),
                ("c", Error.INVALID_REQUEST),
            ]
        assert (await page("", ("b", -1))).topics == ()
        gone = await page("", ("0", 1))
        assert [len(each.partitions) for each in gone.topics] == [2], "its topic was deleted"
        message = await page("a b c!", None, limit=2)
        assert [each.name for each in message.topics] == ["a"]
        at = message.next_cursor
        assert (at.topic_name, at.partition_index) == ("b", 0), "an unknown topic too"
        rest = await page("a b c!", (at.topic_name, at.partition_index), limit=2)
        assert [(each.name, each.error_code.value) for each in rest.topics] == [
            ("b", Error.UNKNOWN_TOPIC_OR_PARTITION),
            ("c!", Error.INVALID_TOPIC),
        ]

    play(story)


def test_resources_with_configs_are_listed() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()

        async def listed(*kinds: int) -> tuple[int, set[tuple[str, int]]]:
            message = await ask(wire, "ListConfigResources", 1, resource_types=kinds)
            found = {(each.resource_name, each.resource_type) for each in message.config_resources}
            return message.error_code.value, found

        assert await listed() == (0, {("t", TOPIC), ("0", BROKER), ("0", LOGGER)})
        assert await listed(TOPIC) == (0, {("t", TOPIC)})
        assert await listed(GROUP, CLIENT_METRICS) == (0, set())
        assert await listed(TOPIC, 3) == (Error.UNSUPPORTED_VERSION, set())
        older = await ask(wire, "ListConfigResources", 0)
        assert (older.error_code.value, older.config_resources) == (0, ())

    play(story)


def test_replicas_stay_where_the_cluster_placed_them() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()

        async def moved(topic: str, replicas: list[int] | None) -> tuple[int, str]:
            partition = {"partition_index": 0, "replicas": replicas}
            message = await ask(
                wire,
                "AlterPartitionReassignments",
                0,
                timeout=1000,
                topics=[{"name": topic, "partitions": [partition]}],
            )
            assert message.error_code.value == 0
            (answer,) = message.responses[0].partitions
            return answer.error_code.value, answer.error_message or ""

        assert await moved("t", [0]) == (0, "")
        error, why = await moved("t", [0, 1])
        assert error == Error.INVALID_REPLICA_ASSIGNMENT
        assert why.endswith("this one's are on brokers 0")
        assert (await moved("t", None))[0] == Error.NO_REASSIGNMENT_IN_PROGRESS
        assert (await moved("u", [0]))[0] == Error.UNKNOWN_TOPIC_OR_PARTITION

        dirs = [
            {"path": "/polynya", "topics": [{"name": "t", "partitions": [0, 1]}]},
            {"path": "/else", "topics": [{"name": "t", "partitions": [0]}]},
        ]
        message = await ask(wire, "AlterReplicaLogDirs", 2, dirs=dirs)
        (result,) = message.results
        assert [(each.partition_index, each.error_code.value) for each in result.partitions] == [
            (0, 0),
            (1, Error.REPLICA_NOT_AVAILABLE),
            (0, Error.LOG_DIR_NOT_FOUND),
        ]

    play(story)


def test_features_that_are_not_served_are_not_advertised() -> None:
    """Share and streams groups: clients then say so themselves, as with a Kafka of before them."""
    assert not APIS.keys() & {76, 77, 78, 79, 88, 89}


def test_configs_of_brokers_need_admin(tmp_path: Any) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        gate.token("shop", "all")
        wire = await gate.wire(world, "shop")
        denied = Error.CLUSTER_AUTHORIZATION_FAILED
        assert (await described(wire, BROKER, "0")).error_code.value == denied
        assert (await altered(wire, BROKER, "0", num_partitions="3"))[0] == denied

    guarded(tmp_path, story)
