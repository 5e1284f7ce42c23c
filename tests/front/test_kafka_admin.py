"""Administration over the Kafka front of one core: configs, partitions, records, refusals."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from uuid import UUID

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from front.test_kafka_front import compressed
from wire.kafka.kio_values import kio_class
from worlds.kafka import (
    KafkaWire,
    KafkaWorld,
    batch,
    fetch_fields,
    plain_fields,
    play,
    produce_fields,
)

from polynya.base.limits import APPEND_BYTES_MAX
from polynya.base.names import group_of, partition_name
from polynya.front.kafka.admin.quorum_members import Quorum, QuorumMember
from polynya.front.kafka.configs import (
    CONFIGS,
    InvalidConfig,
    check_change,
    check_replicas,
    checked,
)
from polynya.front.kafka.context import TopicDefaults
from polynya.front.kafka.errors import Error
from polynya.front.kafka.topic_frames import response_of, topic_of
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.topics.commands import TopicChange
from polynya.stream.features.topics.state import Topic
from polynya.stream.parts import Encoding
from polynya.wire.kafka import batches
from polynya.wire.kafka.messages import APIS, encode_response

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


async def ask(wire: KafkaWire, name: str, version: int, **fields: Any) -> Any:
    return await wire.ask(name, version, **fields)


def part(api: str, version: int, name: str, /, **fields: Any) -> Any:
    """One struct of a request of kio."""
    key = next(each for each in APIS.values() if each.name == api)
    module = __import__(kio_class(key, version, "request").__module__, fromlist=[name])
    return getattr(module, name)(**fields)


async def described(wire: KafkaWire, name: str, kind: int = TOPIC) -> tuple[int, dict[str, str]]:
    """Return (error, {config: value and source})."""
    resource = part(
        "DescribeConfigs",
        4,
        "DescribeConfigsResource",
        resource_type=kind,
        resource_name=name,
        configuration_keys=None,
    )
    message = await ask(
        wire,
        "DescribeConfigs",
        4,
        resources=(resource,),
        include_synonyms=True,
        include_documentation=False,
    )
    (result,) = message.results
    return result.error_code.value, {
        each.name: f"{each.value} {each.config_source}" for each in result.configs
    }


async def altered(wire: KafkaWire, name: str, *steps: tuple[str, int, str | None]) -> int:
    """Alter configs one by one, and return the error."""
    configs = tuple(
        part(
            "IncrementalAlterConfigs",
            1,
            "AlterableConfig",
            name=config,
            config_operation=operation,
            value=value,
        )
        for config, operation, value in steps
    )
    resource = part(
        "IncrementalAlterConfigs",
        1,
        "AlterConfigsResource",
        resource_type=TOPIC,
        resource_name=name,
        configs=configs,
    )
    message = await ask(
        wire, "IncrementalAlterConfigs", 1, resources=(resource,), validate_only=False
    )
    return int(message.responses[0].error_code.value)


async def created(wire: KafkaWire, name: str, *, dry: bool = False, **fields: Any) -> Any:
    """Create a topic, and return its result."""
    given = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    topic = part("CreateTopics", 5, "CreatableTopic", name=name, **given | fields)
    message = await ask(wire, "CreateTopics", 5, topics=(topic,), validate_only=dry)
    return message.topics[0]


async def grown(wire: KafkaWire, name: str, count: int) -> int:
    topic = part(
        "CreatePartitions", 3, "CreatePartitionsTopic", name=name, count=count, assignments=None
    )
    message = await ask(
        wire,
        "CreatePartitions",
        3,
        topics=(topic,),
        timeout=kio_timeout(),
        validate_only=False,
    )
    return int(message.results[0].error_code.value)


def kio_timeout() -> Any:
    from datetime import timedelta

    return timedelta(seconds=5)


async def produced(wire: KafkaWire, topic: str, *sent: bytes, partition: int = 0) -> Any:
    fields = produce_fields(topic, *sent, partition=partition)
    message = await wire.ask("Produce", 9, **fields)
    (answer,) = message.responses[0].partition_responses
    return answer


def test_configs_are_described_set_deleted_and_edited() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        error, found = await described(wire, "t")
        assert (error, set(found)) == (0, set(CONFIGS))
        assert found["retention.ms"] == "-1 5"
        assert (
            await altered(
                wire, "t", ("retention.ms", SET, "1000"), ("cleanup.policy", APPEND, "compact")
            )
            == 0
        )
        _, found = await described(wire, "t")
        assert found["retention.ms"] == "1000 1"
        assert found["cleanup.policy"] == "delete,compact 1"
        assert (
            await altered(
                wire, "t", ("retention.ms", DELETE, None), ("cleanup.policy", SUBTRACT, "delete")
            )
            == 0
        )
        _, found = await described(wire, "t")
        assert found["retention.ms"] == "-1 5"
        assert found["cleanup.policy"] == "compact 1"
        assert await described(wire, "none") == (Error.UNKNOWN_TOPIC_OR_PARTITION, {})
        _, broker = await described(wire, "0", BROKER)
        assert broker["num.partitions"] == "1 4"

    play(story)


def test_wrong_configs_change_nothing() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        for wrong in (
            ("retention.ms", SET, "soon"),
            ("retention.ms", SET, None),
            ("retention.ms", APPEND, "1"),
            ("none.such", SET, "1"),
            ("none.such", DELETE, None),
            ("content.type", SET, "text/plain"),
            ("cleanup.policy", SET, "keep"),
        ):
            right = ("retention.bytes", SET, "9")
            assert await altered(wire, "t", right, wrong) == Error.INVALID_CONFIG, wrong
        assert (await described(wire, "t"))[1]["retention.bytes"] == "-1 5"
        assert await altered(wire, "none", ("retention.ms", SET, "1")) == (
            Error.UNKNOWN_TOPIC_OR_PARTITION
        )

    play(story)


def test_the_older_request_replaces_all_configs() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.front.context.topics.create(
            "t", 1, [("retention.ms", "5"), ("content.type", "a/b")]
        )
        wire = await world.wire()

        async def replaced(**configs: str) -> int:
            listed = tuple(
                part("AlterConfigs", 1, "AlterableConfig", name=name, value=value)
                for name, value in configs.items()
            )
            resource = part(
                "AlterConfigs",
                1,
                "AlterConfigsResource",
                resource_type=TOPIC,
                resource_name="t",
                configs=listed,
            )
            message = await ask(wire, "AlterConfigs", 1, resources=(resource,), validate_only=False)
            return int(message.responses[0].error_code.value)

        assert await replaced(preallocate="true") == Error.INVALID_CONFIG, "the content type stays"
        assert await replaced(preallocate="true", **{"content.type": "a/b"}) == 0
        assert dict(world.front.context.topics.names["t"].configs) == {
            "content.type": "a/b",
            "preallocate": "true",
        }

    play(story)


def test_concurrent_changes_of_configs_all_count() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        names = ("segment.ms", "flush.ms", "segment.bytes", "retention.ms")
        wires = [await world.wire() for _ in names]
        asked = [
            altered(wire, "t", (name, SET, "77")) for wire, name in zip(wires, names, strict=True)
        ]
        assert await asyncio.gather(*asked) == [0, 0, 0, 0]
        assert dict(world.front.context.topics.names["t"].configs) == dict.fromkeys(names, "77")

    play(story)


def test_a_topic_grows_and_its_new_partitions_take_records() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        wire = await world.wire()
        assert (await produced(wire, "t", batch(b"a"), partition=2)).error_code.value == 3
        assert await grown(wire, "t", 4) == 0
        assert (await produced(wire, "t", batch(b"a"), partition=3)).error_code.value == 0
        assert await grown(wire, "t", 4) == Error.INVALID_PARTITIONS
        assert await grown(wire, "none", 4) == Error.UNKNOWN_TOPIC_OR_PARTITION

    play(story)


def test_a_growth_that_a_crash_interrupted_is_finished() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 1)
        topic = world.front.context.topics.names["t"]
        await world.core.service.call(0, TopicChange("t", topic.id, topic.revision, 3, []))
        wire = await world.wire()
        assert await altered(wire, "t", ("segment.ms", SET, "9")) == 0
        assert world.front.context.topics.names["t"].partitions == 3
        assert (await produced(wire, "t", batch(b"a"), partition=2)).error_code.value == 0

    play(story)


def test_a_topic_does_not_grow_over_a_stream_of_another_kind() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 1)
        name = partition_name("t", 2)
        service = world.core.service
        await service.call(service.group_of(name), Create(name, 1, "text/plain", Encoding.BYTES))
        wire = await world.wire()
        assert await grown(wire, "t", 4) == Error.INVALID_PARTITIONS
        await world.front.context.topics.refresh()
        topic = world.front.context.topics.names["t"]
        assert (topic.partitions, topic.growing) == (1, 0)
        assert await grown(wire, "t", 2) == 0

    play(story)


def test_a_batch_over_the_limit_of_its_topic_is_refused() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        large = batch(bytes(3000))
        assert (await produced(wire, "t", large)).error_code.value == 0
        assert await altered(wire, "t", ("max.message.bytes", SET, "2000")) == 0
        refused = await produced(wire, "t", large)
        assert refused.error_code.value == Error.MESSAGE_TOO_LARGE
        assert (await produced(wire, "t", batch(b"small"))).error_code.value == 0

    play(story)


def test_a_config_that_cannot_be_kept_is_refused_with_what_to_do() -> None:
    refused = (
        ("max.message.bytes", str(APPEND_BYTES_MAX + 1), "a number from 0 to 33554432"),
        ("compression.type", "zstd", "expected producer: .* of the producers"),
        ("min.insync.replicas", "2", "expected a number from 1 to 1: .* add nodes"),
        ("remote.storage.enable", "true", "tiered storage is disabled"),
    )

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        for name, value, why in refused:
            assert await altered(wire, "t", (name, SET, value)) == Error.INVALID_CONFIG, name
            config = part("CreateTopics", 5, "CreatableTopicConfig", name=name, value=value)
            made = await created(wire, "new", configs=(config,))
            assert made.error_code.value == Error.INVALID_CONFIG, name
            assert re.search(f"'{value}' for config {name}: .*{why}", made.error_message)
            assert await altered(wire, "t", (name, SET, CONFIGS[name].default)) == 0
        assert world.front.context.topics.known("new") is None

    play(story)


def test_no_more_replicas_are_promised_than_an_acknowledgement_waits_for() -> None:
    check_replicas({}, {"min.insync.replicas": "2"}, 2)
    check_replicas({"min.insync.replicas": "3"}, {"min.insync.replicas": "3"}, 2)
    with pytest.raises(InvalidConfig, match=r"min.insync.replicas: expected a number from 1 to 2"):
        check_replicas({}, {"min.insync.replicas": "3"}, 2)


def test_what_an_older_release_allowed_stands_in_no_change_s_way() -> None:
    async def story(world: KafkaWorld) -> None:
        kept = ("compression.type", "zstd")
        await world.front.context.topics.create("t", 1, [kept])
        wire = await world.wire()
        assert await altered(wire, "t", ("retention.ms", SET, "5")) == 0
        assert dict(world.front.context.topics.names["t"].configs) == dict(
            [kept, ("retention.ms", "5")]
        )
        assert await altered(wire, "t", ("compression.type", SET, "lz4")) == Error.INVALID_CONFIG

    play(story)


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_times_too_far_from_the_servers_are_refused(codec: str) -> None:
    """The oldest and the newest record of a batch count, also where the header does not show it."""

    async def story(world: KafkaWorld) -> None:
        now = world.core.clock.ms = 1_800_000_000_000
        bounds = [
            ("message.timestamp.after.max.ms", "10"),
            ("message.timestamp.before.max.ms", "20"),
        ]
        await world.front.context.topics.create("t", 1, bounds)
        stamped = [*bounds, ("message.timestamp.type", "LogAppendTime")]
        await world.front.context.topics.create("stamped", 1, stamped)
        wire = await world.wire()
        for times, config in (
            ([now - 20, now, now + 10], ""),
            ([-1, -1], ""),
            ([now, now - 21, now], "message.timestamp.before.max.ms"),
            ([now, now + 11, now], "message.timestamp.after.max.ms"),
        ):
            sent = compressed(codec, times)
            answer = await produced(wire, "t", sent)
            assert answer.error_code.value == (Error.INVALID_TIMESTAMP if config else 0), times
            assert config in (answer.error_message or "")
            assert (await produced(wire, "stamped", sent)).error_code.value == 0

    play(story)


def test_a_topic_that_a_request_names_twice_is_refused() -> None:
    """Kafka could not say which of them is meant. The other topics of the request are served."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        await world.topic("u")
        wire = await world.wire()

        def codes(results: Any) -> list[tuple[str, int]]:
            return sorted((each.name, each.error_code.value) for each in results)

        given = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        new = [
            part("CreateTopics", 5, "CreatableTopic", name=name, **given)
            for name in ("a", "b", "a", "a")
        ]
        made = await ask(wire, "CreateTopics", 5, topics=tuple(new), validate_only=False)
        assert codes(made.topics) == [("a", Error.INVALID_REQUEST), ("b", 0)]
        assert world.front.context.topics.known("a") is None
        more = [
            part(
                "CreatePartitions",
                3,
                "CreatePartitionsTopic",
                name=name,
                count=count,
                assignments=None,
            )
            for name, count in (("t", 2), ("t", 3), ("u", 2))
        ]
        fields = {"topics": tuple(more), "timeout": kio_timeout(), "validate_only": False}
        answer = await ask(wire, "CreatePartitions", 3, **fields)
        assert codes(answer.results) == [("t", Error.INVALID_REQUEST), ("u", 0)]
        assert world.front.context.topics.names["t"].partitions == 1
        gone = await ask(
            wire, "DeleteTopics", 4, topic_names=("t", "u", "t"), timeout=kio_timeout()
        )
        assert codes(gone.responses) == [("t", Error.INVALID_REQUEST), ("u", 0)]
        topic = world.front.context.topics.known("t")
        assert topic is not None
        both = [
            part("DeleteTopics", 6, "DeleteTopicState", name=None, topic_id=UUID(bytes=topic.id)),
            part("DeleteTopics", 6, "DeleteTopicState", name="t", topic_id=None),
        ]
        gone = await ask(wire, "DeleteTopics", 6, topics=tuple(both), timeout=kio_timeout())
        assert [each.error_code.value for each in gone.responses] == [Error.INVALID_REQUEST]
        assert world.front.context.topics.known("t") is not None

    play(story)


def test_names_and_factors_that_kafka_refuses() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        for name in ("__consumer_offsets", "__transaction_state", "__share_group_state"):
            made = await created(wire, name)
            assert made.error_code.value == Error.INVALID_TOPIC
            assert "reserved" in made.error_message
            assert await named_by_metadata(wire, name) == Error.INVALID_TOPIC
        await world.topic("a.b_c")
        for name in ("a_b_c", "a.b.c", "a_b.c"):
            made = await created(wire, name)
            assert made.error_code.value == Error.INVALID_TOPIC
            assert "collides with existing topic 'a.b_c'" in made.error_message
            assert await named_by_metadata(wire, name) == Error.INVALID_TOPIC
        assert (await created(wire, "a.b_c")).error_code.value == Error.TOPIC_ALREADY_EXISTS
        assert (await created(wire, "_schemas")).error_code.value == 0
        topic = world.front.context.topics.known("a.b_c")
        assert topic is not None
        await world.front.context.topics.drop(topic)
        await world.front.context.topics.refresh()
        assert (await created(wire, "a_b_c")).error_code.value == 0
        for factor in (0, -2):
            made = await created(wire, "t", replication_factor=factor)
            assert made.error_code.value == Error.INVALID_REPLICATION_FACTOR
        assert (await created(wire, "t", replication_factor=-1)).error_code.value == 0

    play(story)


async def named_by_metadata(wire: KafkaWire, name: str) -> int:
    """Return the error of a topic that Metadata may create."""
    topic = part("Metadata", 4, "MetadataRequestTopic", name=name)
    found = await ask(wire, "Metadata", 4, topics=(topic,), allow_auto_topic_creation=True)
    return int(found.topics[0].error_code.value)


def test_with_log_append_time_the_server_writes_the_times() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.front.context.topics.create(
            "t", 1, [("message.timestamp.type", "LogAppendTime")]
        )
        wire = await world.wire()
        world.core.clock.ms = 1_800_000_000_000
        answer = await produced(wire, "t", batch(b"a", b"b", time_ms=5))
        assert answer.error_code.value == 0
        assert answer.log_append_time.timestamp() == 1_800_000_000
        message = await wire.ask("Fetch", 11, **fetch_fields("t", 0))
        (stored,) = batches.batches_of(message.responses[0].partitions[0].records)
        assert [
            (record.value, record.timestamp) for record in DefaultRecordBatch(bytes(stored))
        ] == [
            (b"a", 1_800_000_000_000),
            (b"b", 1_800_000_000_000),
        ]
        assert batches.header_of(stored).max_timestamp == 1_800_000_000_000
        assert DefaultRecordBatch(bytes(stored)).validate_crc()
        world.core.clock.ms += 1
        await produced(wire, "t", batch(b"c", time_ms=5))
        page = await wire.ask("Fetch", 11, **fetch_fields("t", 2))
        (stored,) = batches.batches_of(page.responses[0].partitions[0].records)
        assert next(batches.records_of(stored)).timestamp == 1_800_000_000_001

    play(story)


def test_records_are_deleted_up_to_an_offset() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        for values in ((b"a",), (b"b", b"c"), (b"d",)):
            await produced(wire, "t", batch(*values))

        async def deleted(offset: int, partition: int = 0) -> tuple[int, int]:
            one = part(
                "DeleteRecords",
                2,
                "DeleteRecordsPartition",
                partition_index=partition,
                offset=offset,
            )
            topic = part("DeleteRecords", 2, "DeleteRecordsTopic", name="t", partitions=(one,))
            message = await ask(wire, "DeleteRecords", 2, topics=(topic,), timeout=kio_timeout())
            (answer,) = message.topics[0].partitions
            return answer.error_code.value, answer.low_watermark

        assert await deleted(1) == (0, 1)
        assert await deleted(2) == (0, 2), "also inside the batch of records 1 and 2"
        assert await deleted(0) == (0, 2), "what is deleted stays so"
        assert await deleted(5) == (Error.OFFSET_OUT_OF_RANGE, -1)
        assert await deleted(0, 7) == (Error.UNKNOWN_TOPIC_OR_PARTITION, -1)
        message = await wire.ask("Fetch", 11, **fetch_fields("t", 0))
        assert message.responses[0].partitions[0].error_code.value == Error.OFFSET_OUT_OF_RANGE
        assert await deleted(-1) == (0, 4)
        assert await altered(wire, "t", ("cleanup.policy", SET, "compact")) == 0
        assert await deleted(-1) == (Error.POLICY_VIOLATION, -1)

    play(story)


def test_topics_are_described_in_pages() -> None:
    async def story(world: KafkaWorld) -> None:
        for name, partitions in (("a", 2), ("b", 3), ("c", 1)):
            await world.topic(name, partitions)
        wire = await world.wire()

        async def page(cursor: Any, *names: str, limit: int = 2) -> Any:
            topics = tuple(
                part("DescribeTopicPartitions", 0, "TopicRequest", name=name) for name in names
            )
            message = await ask(
                wire,
                "DescribeTopicPartitions",
                0,
                topics=topics,
                response_partition_limit=limit,
                cursor=cursor,
            )
            found = [
                (topic.name, [each.partition_index for each in topic.partitions])
                for topic in message.topics
            ]
            at = message.next_cursor
            more = at and part(
                "DescribeTopicPartitions",
                0,
                "Cursor",
                topic_name=at.topic_name,
                partition_index=at.partition_index,
            )
            return found, more

        seen, cursor = await page(None)
        assert seen == [("a", [0, 1])]
        seen, cursor = await page(cursor)
        assert seen == [("b", [0, 1])]
        seen, cursor = await page(cursor)
        assert seen == [("b", [2]), ("c", [0])]
        assert cursor is None
        assert (await page(None, "c", "none", limit=9))[0] == [("c", [0]), ("none", [])]

    play(story)


def test_what_kafka_has_and_a_cluster_here_does_alone() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        await produced(wire, "t", batch(b"abc"))
        cluster = await ask(
            wire,
            "DescribeCluster",
            1,
            include_cluster_authorized_operations=False,
            endpoint_type=1,
        )
        assert [(each.broker_id, each.port) for each in cluster.brokers] == [(0, 9092)]
        controllers = await ask(
            wire,
            "DescribeCluster",
            1,
            include_cluster_authorized_operations=False,
            endpoint_type=2,
        )
        assert controllers.error_code.value == 114
        logs = await ask(wire, "DescribeLogDirs", 4, topics=None)
        (listed,) = logs.results[0].topics
        assert listed.partitions[0].partition_size == len(batch(b"abc"))
        moves = await ask(wire, "ListPartitionReassignments", 0, timeout=kio_timeout(), topics=None)
        assert (moves.error_code.value, moves.topics) == (0, ())
        quotas = await ask(wire, "DescribeClientQuotas", 1, components=(), strict=False)
        assert (quotas.error_code.value, quotas.entries) == (0, ())
        elected = await ask(
            wire,
            "ElectLeaders",
            2,
            election_type=0,
            topic_partitions=(
                part("ElectLeaders", 2, "TopicPartitions", topic="t", partitions=(0,)),
            ),
            timeout=kio_timeout(),
        )
        (result,) = elected.replica_election_results
        assert result.partition_result[0].error_code.value == Error.ELECTION_NOT_NEEDED

    play(story)


def test_topics_of_clients_have_the_default_profile_of_their_bucket() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        await world.front.context.service.bucket_profiles.set("kafka", "diskless")
        topic = part("Metadata", 4, "MetadataRequestTopic", name="auto")
        await ask(wire, "Metadata", 4, topics=(topic,), allow_auto_topic_creation=True)
        named = part(
            *("CreateTopics", 4, "CreatableTopic"),
            name="named",
            num_partitions=1,
            replication_factor=-1,
            assignments=(),
            configs=(),
        )
        made = await ask(
            wire, "CreateTopics", 4, topics=(named,), timeout=kio_timeout(), validate_only=False
        )
        assert made.topics[0].error_code.value == 0
        for name in ("auto", "named"):
            assert (await described(wire, name))[1]["profile"] == "diskless 1"

    play(story)


def test_topics_are_not_created_by_name_where_that_is_off() -> None:
    async def story(world: KafkaWorld) -> None:
        world.front.context.defaults = TopicDefaults(auto_create=False, partitions=3)
        wire = await world.wire()
        topic = part("Metadata", 4, "MetadataRequestTopic", name="t")
        asked = {"topics": (topic,), "allow_auto_topic_creation": True}
        found = await ask(wire, "Metadata", 4, **asked)
        assert found.topics[0].error_code.value == Error.UNKNOWN_TOPIC_OR_PARTITION
        world.front.context.defaults = TopicDefaults(auto_create=True, partitions=3)
        found = await ask(wire, "Metadata", 4, **asked)
        assert len(found.topics[0].partitions) == 3

    play(story)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_default_is_valid_and_nonsense_is_not(name: str) -> None:
    assert checked(
        [
            (name, CONFIGS[name].default),
        ]
    ) == {name: CONFIGS[name].default}
    assert checked([(name, None)]) == {}
    with pytest.raises(InvalidConfig, match=name):
        checked([(name, "\0 nonsense")])


def test_the_storage_switch_of_ursa_is_the_profile() -> None:
    switch = "ursa.storage.enable"
    assert checked([(switch, "true")]) == {"profile": "diskless"}
    assert checked([(switch, "false"), ("profile", "replicated")]) == {"profile": "replicated"}
    assert checked([(switch, None)]) == {}
    for wrong in ("yes", "", "TRUE"):
        with pytest.raises(InvalidConfig, match=switch):
            checked([(switch, wrong)])
    for profile in ("replicated", "leased"):
        with pytest.raises(InvalidConfig, match="leave one of them out"):
            checked([("profile", profile), (switch, "true")])
    with pytest.raises(InvalidConfig, match="twice"):
        checked([(switch, "true"), (switch, "true")])

    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 1)
        wire = await world.wire()
        assert await altered(wire, "t", (switch, SET, "true")) == 0
        assert world.front.context.topics.names["t"].settings == {"profile": "diskless"}
        assert await altered(wire, "t", (switch, SET, "no")) == Error.INVALID_CONFIG
        both = ((switch, SET, "false"), ("profile", SET, "diskless"))
        assert await altered(wire, "t", *both) == Error.INVALID_CONFIG
        agreed = ((switch, SET, "false"), ("profile", SET, "replicated"))
        assert await altered(wire, "t", *agreed) == 0
        assert world.front.context.topics.names["t"].settings == {"profile": "replicated"}
        assert await altered(wire, "t", (switch, 1, None)) == 0
        assert world.front.context.topics.names["t"].settings == {}

    play(story)


def test_a_config_is_known_and_given_once() -> None:
    with pytest.raises(InvalidConfig, match="twice"):
        checked([("segment.ms", "1"), ("segment.ms", "2")])
    with pytest.raises(InvalidConfig, match="unknown topic config name: x"):
        checked([("x", None)])
    with pytest.raises(InvalidConfig, match="stays"):
        check_change({}, {"content.type": "a/b"})


def test_metadata_of_all_topics_is_what_metadata_of_each_would_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compare in every version, after each kind of change: the bytes are assembled from parts."""

    async def story(world: KafkaWorld) -> None:
        front, api = world.front, APIS[3]
        wire = await world.wire()

        async def check() -> None:
            await front.context.topics.refresh()
            topics = [
                topic_of(front.context.brokers, each, front.context.service.groups, "")
                for each in front.context.topics.names.values()
            ]
            message = response_of(front.context.brokers, topics)
            for version in api.versions:
                whole = b"".join(encode_response(api, version, 0, message))
                body = await front.context.topic_frames.body(version, "")
                assert whole.endswith(body), version
                assert len(whole) - len(body) == 8 + (version >= api.flexible), version

        await check()
        for name in ("a", "b", "c"):
            await world.topic(name, 3)
        await check()
        assert await grown(wire, "b", 5) == 0
        await front.context.topics.drop(front.context.topics.names["a"])
        await check()
        monkeypatch.setattr(front.context.brokers, "leader_of", lambda group: 256 * group)
        monkeypatch.setattr(front.context.brokers, "epoch_of", lambda group: 7 + group)
        monkeypatch.setattr(
            front.context.brokers,
            "replicas_of",
            lambda group: ([256, 256 * group], [256][: group % 2]),
        )
        await check()
        topic = front.context.topics.names["c"]
        topic.configs = [("profile", "diskless")]
        topic.revision += 1
        front.context.topics.version += 1
        await check()
        topic.configs = []
        found = await ask(wire, "Metadata", 12, topics=None, **METADATA_REST)
        assert {each.name: len(each.partitions) for each in found.topics} == {"b": 5, "c": 3}

    play(story)


METADATA_REST = {
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}


def test_the_groups_of_partitions_are_those_of_their_streams() -> None:
    topic = Topic("retention", bytes(16), 9, [], 0, streams=["default/x"])
    assert topic.groups(4) == [group_of(topic.stream(number), 4) for number in range(9)]


def test_the_quorum_is_that_of_the_meta_group() -> None:
    async def asks() -> Quorum:
        return Quorum(256, 7, 42, [QuorumMember(256, 43), QuorumMember(512, 40)])

    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()

        async def described(topic: str, partition: int) -> Any:
            partitions = [{"partition_index": partition}]
            fields = {"topics": [{"topic_name": topic, "partitions": partitions}]}
            answer = await wire.ask(
                "DescribeQuorum", 2, **plain_fields("DescribeQuorum", 2, fields)
            )
            assert answer.error_code.value == 0
            return answer.topics[0].partitions[0]

        metadata = "__cluster_metadata"
        unready = await described(metadata, 0)
        assert unready.error_code.value == Error.NOT_LEADER
        world.front.context.quorum = asks
        found = await described(metadata, 0)
        assert found.error_code.value == 0
        assert (found.leader_id, found.leader_epoch, found.high_watermark) == (256, 7, 42)
        assert [(each.replica_id, each.log_end_offset) for each in found.current_voters] == [
            (256, 43), (512, 40),
        ]  # fmt: skip
        assert [each.last_caught_up_timestamp < 0 for each in found.current_voters] == [
            False, True,
        ]  # fmt: skip
        for topic, partition in ((metadata, 1), ("orders", 0)):
            refused = await described(topic, partition)
            assert refused.error_code.value == Error.UNKNOWN_TOPIC_OR_PARTITION

    play(story)
