"""Leader epochs as clients give and get them, and requests at a broker that is not the leader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worlds.kafka import (
    KafkaWire,
    KafkaWorld,
    OneBroker,
    batch,
    fetch_fields,
    plain_fields,
    play,
    produce_fields,
)

from polynya.base.limits import KAFKA_FORWARD_BYTES_MAX
from polynya.front.kafka.brokers import Broker
from polynya.front.kafka.errors import Error
from polynya.stream.snapshots.restore_history import EPOCH_JUMP
from polynya.stream.state.record_gaps import JUMP
from polynya.wire.kafka import batches

EPOCH = EPOCH_JUMP + 7


class TwoBrokers(OneBroker):
    """This broker, and another one that leads."""

    leader = 513

    def all(self) -> Sequence[Broker]:
        return (*super().all(), Broker(self.leader, "two.example", 10_093, "south"))

    def leader_of(self, group: int) -> int:
        return self.leader

    def epoch_of(self, group: int) -> int:
        return EPOCH


class TwoRacks(OneBroker):
    """This broker, which leads, and a follower in another rack."""

    in_sync = (0, 513)

    def all(self) -> Sequence[Broker]:
        return Broker(0, "one.example", 9092, "north"), Broker(513, "two.example", 9092, "south")

    def replicas_of(self, group: int) -> tuple[list[int], list[int]]:
        return [0, 513], list(self.in_sync)


async def epoch_fetch(wire: KafkaWire, version: int, epoch: int, **more: Any) -> Any:
    """Fetch partition 0 of "t" with a leader epoch; return the partition of the answer."""
    fields: dict[str, Any] = {
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "topics": [
            {
                **more,
                "partitions": [
                    {
                        "partition": 0,
                        "current_leader_epoch": epoch,
                        "fetch_offset": 0,
                        "partition_max_bytes": 1 << 20,
                    }
                ],
            }
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    answer = await wire.ask("Fetch", version, **plain_fields("Fetch", version, fields))
    return answer.responses[0].partitions[0], answer


def test_a_client_with_another_leader_epoch_is_told_the_leader() -> None:
    async def tell(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        await wire.ask("Produce", 9, **produce_fields("t", batch(b"a")))
        world.use(TwoBrokers())
        topic = world.front.context.topics.names["t"]
        for version, key in ((12, {"topic": "t"}), (16, {"topic_id": topic.id})):
            part, answer = await epoch_fetch(wire, version, EPOCH - 1, **key)
            assert part.error_code.value == Error.FENCED_LEADER_EPOCH
            assert not part.records
            assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (513, EPOCH)
        (other,) = answer.node_endpoints
        assert (other.node_id, other.host, other.port, other.rack) == (
            513,
            "two.example",
            10_093,
            "south",
        )
        part, answer = await epoch_fetch(wire, 12, EPOCH + 1, topic="t")
        assert part.error_code.value == Error.UNKNOWN_LEADER_EPOCH
        for epoch in (-1, EPOCH):
            part, answer = await epoch_fetch(wire, 12, epoch, topic="t")
            assert part.error_code.value == Error.NONE
            (one,) = batches.batches_of(part.records)
            assert int.from_bytes(one[12:16]) == EPOCH, "the epoch is patched into the batch"

    play(tell)


def test_a_consumer_is_sent_to_an_in_sync_follower_in_its_rack() -> None:
    async def tell(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        await wire.ask("Produce", 9, **produce_fields("t", batch(b"a")))
        brokers = world.use(TwoRacks())

        async def fetched(rack: str) -> tuple[int, bool]:
            fields = fetch_fields("t", 0, max_wait_ms=20_000) | {"rack_id": rack}
            (part,) = (await wire.ask("Fetch", 11, **fields)).responses[0].partitions
            assert part.error_code.value == 0
            return part.preferred_read_replica, bool(part.records)

        assert await fetched("south") == (513, False), "at once, without the records"
        for rack in ("", "north", "west"):
            assert await fetched(rack) == (-1, True)
        brokers.in_sync = (0,)
        assert await fetched("south") == (-1, True), "the follower is not reached"
        world.use(TwoBrokers())
        assert await fetched("south") == (-1, True), "a follower serves, and sends nobody on"

    play(tell)


def test_metadata_and_offsets_name_the_epoch() -> None:
    async def tell(world: KafkaWorld) -> None:
        await world.topic("t")
        world.use(TwoBrokers())
        wire = await world.wire()
        fields = {
            "topics": [{"name": "t"}],
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        answer = await wire.ask("Metadata", 9, **plain_fields("Metadata", 9, fields))
        (part,) = answer.topics[0].partitions
        assert (part.leader_id, part.leader_epoch) == (513, EPOCH)
        for epoch, error in ((EPOCH, 0), (-1, 0), (EPOCH - 1, 74), (EPOCH + 1, 75)):
            partition = {"partition_index": 0, "current_leader_epoch": epoch, "timestamp": -1}
            fields = {
                "replica_id": -1,
                "isolation_level": 0,
                "topics": [{"name": "t", "partitions": [partition]}],
            }
            answer = await wire.ask("ListOffsets", 5, **plain_fields("ListOffsets", 5, fields))
            (part,) = answer.topics[0].partitions
            assert part.error_code.value == error
            assert part.leader_epoch == (-1 if error else EPOCH)

    play(tell)


def test_a_large_request_at_the_wrong_broker_is_sent_to_the_leader_and_a_small_one_forwarded() -> (
    None
):
    async def tell(world: KafkaWorld) -> None:
        await world.topic("t")
        world.use(TwoBrokers())
        wire = await world.wire()
        small, large = batch(b"a"), batch(bytes(KAFKA_FORWARD_BYTES_MAX))
        answer = await wire.ask("Produce", 9, **produce_fields("t", small))
        (part,) = answer.responses[0].partition_responses
        assert (part.error_code.value, part.base_offset) == (0, 0)
        answer = await wire.ask("Produce", 10, **plain_fields("Produce", 10, _plain_produce(large)))
        (part,) = answer.responses[0].partition_responses
        assert (part.error_code.value, part.base_offset) == (Error.NOT_LEADER, -1)
        assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (513, EPOCH)
        assert [each.port for each in answer.node_endpoints] == [10_093]
        world.use(OneBroker())
        answer = await wire.ask("Produce", 9, **produce_fields("t", large))
        (part,) = answer.responses[0].partition_responses
        assert (part.error_code.value, part.base_offset) == (0, 1), "this broker leads"

    play(tell)


def _plain_produce(records: bytes) -> dict[str, Any]:
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": records}]}],
    }


def test_an_epoch_of_before_a_restore_ends_where_its_history_was_cut() -> None:
    async def tell(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        await wire.ask("Produce", 9, **produce_fields("t", batch(b"a", b"b", b"c")))
        machines = world.core.engine.service.local.machines
        stream = next(
            each.directory.lookup("kafka/t/0")
            for each in machines.values()
            if each.directory.lookup("kafka/t/0")
        )
        assert stream is not None
        stream.next_record += JUMP  # a restore does both
        for machine in machines.values():
            machine.counters.epoch_bases = [EPOCH_JUMP]
        await wire.ask("Produce", 9, **produce_fields("t", batch(b"d")))

        async def end(epoch: int, current: int = -1) -> tuple[int, int, int]:
            partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
            fields = {"replica_id": -2, "topics": [{"topic": "t", "partitions": [partition]}]}
            sent = plain_fields("OffsetForLeaderEpoch", 3, fields)
            answer = await wire.ask("OffsetForLeaderEpoch", 3, **sent)
            (part,) = answer.topics[0].partitions
            return part.error_code.value, part.leader_epoch, part.end_offset

        assert [await end(epoch) for epoch in (0, 9)] == [(0, 0, 3), (0, 9, 3)]
        assert await end(EPOCH_JUMP) == (0, EPOCH_JUMP, JUMP + 4)
        assert await end(EPOCH_JUMP + 1) == (0, -1, -1), "it has not begun"
        world.use(TwoBrokers())
        assert (await end(9, current=0))[0] == Error.FENCED_LEADER_EPOCH
        (value,) = (await wire.ask("Fetch", 11, **fetch_fields("t", 3))).responses[0].partitions
        (one,) = batches.batches_of(value.records)
        assert int.from_bytes(one[:8]) == JUMP + 3, "a reader goes on behind the cut"

    play(tell)
