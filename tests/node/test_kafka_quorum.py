"""The quorum of the meta group in the form of Kafka's controllers."""

from __future__ import annotations

import asyncio

from worlds.service import World

from polynya.cluster.reconfiguration import GroupStatus
from polynya.cluster.sole_status import SoleStatus
from polynya.front.kafka.admin.quorum_members import Quorum, QuorumMember
from polynya.node.kafka_quorum import MetaQuorum
from polynya.raft import Configuration, PeerStatus


class Leader:
    """Answers for a group of three voters, a learner and a read replica."""

    async def status(self, group: int) -> GroupStatus:
        assert group == 0
        peers = {
            node: PeerStatus(match, "replicate", 0, False)
            for node, match in ((1, 90), (3, 100), (4, 7))
        }
        members = Configuration((1, 2, 3), learners=(4,), readers=(5,))
        return GroupStatus(2, 6, 95, 100, members, True, peers)


def broker_of(node: int, group: int) -> int:
    assert group == 0
    return node * 256


def test_the_leader_tells_the_ends_of_the_logs() -> None:
    found = asyncio.run(MetaQuorum(Leader(), broker_of)())
    assert found == Quorum(
        512,
        6,
        96,
        [QuorumMember(256, 91), QuorumMember(512, 101), QuorumMember(768, 101)],
        [QuorumMember(1024, 8), QuorumMember(1280, 1)],
    )


def test_a_node_without_a_cluster_is_its_own_quorum() -> None:
    async def story() -> None:
        core = World().start()
        engine = core.engine
        sole = SoleStatus(engine.service.rpc, engine.storage.core_replicas.groups, 0)
        status = await sole.status(0)
        assert (status.node, status.configuration.voters, status.peers) == (0, (0,), {})
        assert 0 <= status.commit <= status.last
        await core.stop()

    asyncio.run(story())
