"""A leader that the others have replaced, and that does not know it: over Kafka's protocol it
answers with errors that clients retry, never with old offsets."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from sim.cluster import Node, World
from stories.cluster import led, stories
from worlds.stream import kafka_batch

from polynya.base.names import partition_name
from polynya.front.kafka.admin.partitions import offset_for_leader_epoch
from polynya.front.kafka.auth.caller import EVERYBODY
from polynya.front.kafka.brokers import Broker
from polynya.front.kafka.call import Call
from polynya.front.kafka.errors import Error
from polynya.front.kafka.groups.offsets import offset_commit, offset_fetch
from polynya.front.kafka.offsets import EARLIEST, LATEST, list_offsets
from polynya.front.kafka.server import KafkaFront
from polynya.stream.command import level_of
from polynya.stream.features.appends.commands import Produce
from polynya.stream.replies import Code
from polynya.wire.kafka.generated import list_offsets as listing
from polynya.wire.kafka.generated import offset_commit as commit
from polynya.wire.kafka.generated import offset_fetch as fetched
from polynya.wire.kafka.generated import offset_for_leader_epoch as epochs

RETRIED = {Error.NOT_LEADER, Error.NOT_COORDINATOR, Error.COORDINATOR_NOT_AVAILABLE}
VERSION = 5  # by name, and one group a request


class NodeBrokers:
    """The nodes, as one of them knows them."""

    cluster_id = "c"

    def __init__(self, node: Node) -> None:
        self._service, self.own = node.engine.service, node.number

    def all(self) -> Sequence[Broker]:
        return (Broker(self.own, "", 1),)

    def leader_of(self, group: int) -> int:
        return self._service.directory.leader(group)

    def epoch_of(self, group: int) -> int:
        return self._service.directory.epoch_of(group)

    def replicas_of(self, group: int) -> tuple[list[int], list[int]]:
        return [], []

    async def follow(self) -> None:
        pass


class Asker:
    """The handlers of one node's Kafka front."""

    def __init__(self, node: Node, group: int) -> None:
        engine = node.engine
        # a consumer group that the leader of this Raft group coordinates
        names = (f"g{number}" for number in range(99))
        self.group = next(
            name for name in names if engine.group_coordinator.group_of(name) == group
        )
        self.front = KafkaFront(
            engine.service,
            NodeBrokers(node),
            engine.group_coordinator,
            engine.kafka_transactions,
            new_id=lambda: b"t" * 16,
        )
        self.call = cast(
            Call,
            SimpleNamespace(
                context=self.front.context,
                connection=SimpleNamespace(is_ending=False),
                caller=EVERYBODY,
                version=VERSION,
                worked=0,
            ),
        )

    async def list(self, timestamp: int) -> tuple[int, int]:
        """Return the error and the offset of partition 0."""
        asked = listing.ListOffsetsPartition(0, timestamp=timestamp)
        request = listing.ListOffsetsRequest(topics=[listing.ListOffsetsTopic("t", [asked])])
        answer = await list_offsets(self.call, request)
        (part,) = answer.topics[0].partitions
        return part.error_code, part.offset

    async def epoch_end(self, epoch: int) -> tuple[int, int]:
        asked = epochs.OffsetForLeaderPartition(0, -1, epoch)
        topic = epochs.OffsetForLeaderTopic("t", [asked])
        request = epochs.OffsetForLeaderEpochRequest(topics=[topic])
        answer = await offset_for_leader_epoch(self.call, request)
        (part,) = answer.topics[0].partitions
        return part.error_code, part.end_offset

    async def commit(self, offset: int) -> int:
        part = commit.OffsetCommitRequestPartition(0, offset)
        request = commit.OffsetCommitRequest(
            self.group, -1, topics=[commit.OffsetCommitRequestTopic("t", partitions=[part])]
        )
        answer = await offset_commit(self.call, request)
        return answer.topics[0].partitions[0].error_code

    async def committed(self) -> tuple[int, int]:
        topic = fetched.OffsetFetchRequestTopic("t", [0])
        answer = await offset_fetch(self.call, fetched.OffsetFetchRequest(self.group, [topic]))
        if answer.error_code:
            return answer.error_code, -1
        (part,) = answer.topics[0].partitions
        return part.error_code, part.committed_offset


async def partitioned() -> tuple[World, Node, Asker]:
    """Return a cluster, the node that leads partition 0 of "t", and its front, which knows the
    topic."""
    world, _ = await led(World(seed=1))

    def all_know_kafka() -> bool:
        groups = [
            group for node in world.alive() for group in node.core.core_replicas.groups.values()
        ]
        return all(group.machine.counters.level >= level_of(Produce) for group in groups)

    await world.wait(all_know_kafka)
    group = world.group_of(partition_name("t", 0))
    leader = world.leader(group)
    assert leader is not None
    asker = Asker(leader, group)
    await asker.front.context.topics.create("t", 1, [])
    await produce(leader)
    assert await asker.commit(1) == Error.NONE
    return world, leader, asker


async def produce(node: Node) -> None:
    name = partition_name("t", 0)
    reply = await node.propose(name, Produce(name, node.engine.service.now_ms(), kafka_batch(1)))
    assert reply.code == Code.OK


story = stories(partitioned)


@story
async def test_a_replaced_leader_gives_no_old_offsets_to_kafka_clients(
    world: World, old: Node, asker: Asker
) -> None:
    group = world.group_of(partition_name("t", 0))
    epoch = old.engine.service.directory.epoch_of(group)
    assert await asker.list(LATEST) == (Error.NONE, 1)
    assert await asker.epoch_end(epoch) == (Error.NONE, 1)
    assert await asker.committed() == (Error.NONE, 1)
    world.isolate(old.number)
    others = [node for node in world.alive() if node is not old]
    await world.wait(lambda: any(node.core.replicas.is_leader(group) for node in others))
    new = next(node for node in others if node.core.replicas.is_leader(group))
    await produce(new)
    newer = Asker(new, group)
    assert await newer.front.context.topics.find("t") is not None
    assert await newer.commit(2) == Error.NONE
    assert await newer.list(LATEST) == (Error.NONE, 2)
    assert await newer.committed() == (Error.NONE, 2)
    assert new.engine.service.directory.epoch_of(group) > epoch, "each election begins an epoch"
    assert await newer.epoch_end(epoch) == (Error.NONE, 2), "no election removed a record"
    found: list[Any] = [
        await asker.list(LATEST),
        await asker.list(EARLIEST),
        await asker.epoch_end(epoch),
        await asker.committed(),
    ]
    assert all(error in RETRIED and offset == -1 for error, offset in found), found
