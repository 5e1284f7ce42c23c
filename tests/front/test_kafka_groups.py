"""The keys of consumer groups over a core in memory: membership, offsets, administration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from polling import turns, wait_for
from worlds.kafka import KafkaWire, KafkaWorld, OneBroker, plain_fields, play
from worlds.service import Node

from polynya.base.errors import NotLeader, Unavailable
from polynya.base.limits import GROUP_ID_BYTES_MAX, OFFSET_METADATA_BYTES_MAX
from polynya.front.kafka.errors import Error
from polynya.service.consumer_groups import coordinator
from polynya.service.consumer_groups.running import RunningGroup
from polynya.service.transactions.coordinator import TransactionService
from polynya.stream.features.consumer_groups.calls import (
    Commit,
    CommitInTransaction,
    GroupError,
    Join,
    Joined,
    Outcomes,
    Sync,
    Synced,
)
from polynya.stream.features.consumer_groups.commands import OffsetEntry
from polynya.stream.features.consumer_groups.transactions import settle_offsets
from polynya.transport.handshake import address


async def ask(wire: KafkaWire, name: str, version: int, **fields: Any) -> Any:
    return await wire.ask(name, version, **plain_fields(name, version, fields))


class Consumer:
    """A member of a group, as a client of middle age speaks."""

    def __init__(self, wire: KafkaWire, group: str = "g") -> None:
        self.wire, self.group = wire, group
        self.id, self.generation = "", -1
        self.assignment = b""

    async def join(self, instance: str | None = None) -> None:
        """Join, twice if the server wants that, and sync. The leader assigns each its own id."""
        while True:
            joined = await ask(
                self.wire, "JoinGroup", 5, group_id=self.group, session_timeout=120_000,
                rebalance_timeout=120_000, member_id=self.id, group_instance_id=instance,
                protocol_type="consumer", protocols=[{"name": "range", "metadata": b"s"}],
            )  # fmt: skip
            self.id, self.generation = joined.member_id, joined.generation_id
            if joined.error_code.value == GroupError.MEMBER_ID_REQUIRED:
                continue
            assert joined.error_code.value == 0
            plan = [
                {"member_id": each.member_id, "assignment": each.member_id.encode()}
                for each in joined.members
            ]
            synced = await ask(
                self.wire, "SyncGroup", 3, group_id=self.group, generation_id=self.generation,
                member_id=self.id, group_instance_id=instance, assignments=plan,
            )  # fmt: skip
            if synced.error_code.value == GroupError.REBALANCE_IN_PROGRESS:
                continue
            assert synced.error_code.value == 0
            self.assignment = synced.assignment
            return

    async def heartbeat(self) -> int:
        answer = await ask(
            self.wire, "Heartbeat", 3, group_id=self.group, generation_id=self.generation,
            member_id=self.id, group_instance_id=None,
        )  # fmt: skip
        return int(answer.error_code.value)

    async def commit(self, topic: str, *offsets: int, metadata: str = "") -> list[int]:
        parts = [
            {
                "partition_index": number,
                "committed_offset": offset,
                "committed_leader_epoch": 0,
                "committed_metadata": metadata,
            }
            for number, offset in enumerate(offsets)
        ]
        answer = await ask(
            self.wire, "OffsetCommit", 7, group_id=self.group,
            generation_id_or_member_epoch=self.generation, member_id=self.id,
            group_instance_id=None, topics=[{"name": topic, "partitions": parts}],
        )  # fmt: skip
        return [part.error_code.value for part in answer.topics[0].partitions]

    async def committed(self, topic: str, *numbers: int) -> list[tuple[int, str]]:
        answer = await ask(
            self.wire, "OffsetFetch", 5, group_id=self.group,
            topics=[{"name": topic, "partition_indexes": numbers}],
        )  # fmt: skip
        assert answer.error_code.value == 0
        return [(part.committed_offset, part.metadata) for part in answer.topics[0].partitions]

    async def leave(self) -> list[int]:
        answer = await ask(
            self.wire, "LeaveGroup", 3, group_id=self.group,
            members=[{"member_id": self.id, "group_instance_id": None}],
        )  # fmt: skip
        return [each.error_code.value for each in answer.members]


def without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first rebalance wait for members until `together` ends it."""
    for name in ("INITIAL_DELAY_MS", "INITIAL_DELAY_MS_MAX"):
        monkeypatch.setattr(f"polynya.stream.features.consumer_groups.classic.{name}", 3_600_000)


async def together(world: KafkaWorld, *joins: Awaitable[None], id_: str = "g") -> None:
    """End the wait of the first rebalance once that many members have joined."""
    coming = asyncio.gather(*joins)
    groups = world.core.engine.group_coordinator
    all_led = groups._led

    def running() -> RunningGroup | None:
        led = all_led.get(groups.group_of(id_))
        found = led.running.get(id_) if led else None
        return found if found and len(found.group.members) == len(joins) else None

    group = await wait_for(running, what="all members")
    group.group._hold_ms = group.group._hold_ms_max = 0
    group._tick()
    await coming


def test_members_join_share_commit_and_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    without_end(monkeypatch)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        a, b = Consumer(await world.wire()), Consumer(await world.wire())
        found = await ask(a.wire, "FindCoordinator", 2, key="g", key_type=0)
        assert (found.error_code.value, found.node_id, found.port) == (0, 0, 9092)
        await together(world, a.join(), b.join())
        assert (a.generation, b.generation) == (1, 1)
        assert (a.assignment, b.assignment) == (a.id.encode(), b.id.encode())
        assert [await a.heartbeat(), await b.heartbeat()] == [0, 0]
        assert await a.commit("t", 5, 6, metadata="m") == [0, 0]
        assert await b.committed("t", 1, 0, 7) == [(6, "m"), (5, "m"), (-1, "")]
        c = Consumer(await world.wire())
        joining = asyncio.ensure_future(c.join())
        await wait_for(a.heartbeat, what="the rebalance")
        assert await a.commit("t", 7) == [0], "of the generation that ends"
        await asyncio.gather(a.join(), b.join(), joining)
        assert {each.generation for each in (a, b, c)} == {2}
        b.generation = 1
        assert await b.commit("t", 9) == [GroupError.ILLEGAL_GENERATION]
        joined_b, b.id = b.id, "nobody"
        assert await b.commit("t", 9) == [GroupError.UNKNOWN_MEMBER_ID]
        assert await b.committed("t", 0) == [(7, "")]
        described = (
            await ask(
                a.wire, "DescribeGroups", 6, groups=["g"], include_authorized_operations=False
            )
        ).groups[0]
        assert (described.group_state, described.protocol_data) == ("Stable", "range")
        assert {each.member_id: each.member_assignment for each in described.members} == {
            id_: id_.encode() for id_ in (a.id, joined_b, c.id)
        }
        assert {each.client_host for each in described.members} == {"/127.0.0.1"}
        assert await a.leave() == [0]
        assert await a.leave() == [GroupError.UNKNOWN_MEMBER_ID]
        assert await c.heartbeat() == GroupError.REBALANCE_IN_PROGRESS

    play(story)


def test_offsets_of_a_group_without_members() -> None:
    """Commit offsets as self-assigned consumers, by name and by id, in one request or for all."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        await world.topic("u", 1)
        alone = Consumer(await world.wire())
        wire = alone.wire
        assert await alone.commit("t", 1, 2, 3) == [0, 0, Error.UNKNOWN_TOPIC_OR_PARTITION]
        assert await alone.commit("none", 1) == [Error.UNKNOWN_TOPIC_OR_PARTITION]
        long = "m" * (OFFSET_METADATA_BYTES_MAX + 1)
        assert await alone.commit("u", 1, metadata=long) == [Error.OFFSET_METADATA_TOO_LARGE]
        id_ = world.front.context.topics.names["u"].id
        part = {
            "partition_index": 0,
            "committed_offset": 8,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        }
        sent = await ask(
            wire, "OffsetCommit", 10, group_id="g", generation_id_or_member_epoch=-1,
            member_id="", group_instance_id=None,
            topics=[
                {"topic_id": id_, "partitions": [part]},
                {"topic_id": bytes([7] * 16), "partitions": [part]},
            ],
        )  # fmt: skip
        assert [topic.partitions[0].error_code.value for topic in sent.topics] == [
            0,
            Error.UNKNOWN_TOPIC_ID,
        ]
        asked = [{"group_id": "g", "topics": None}, {"group_id": "other", "topics": None}]
        both = await ask(wire, "OffsetFetch", 8, groups=asked, require_stable=False)
        found = {
            (topic.name, part.partition_index): part.committed_offset
            for topic in both.groups[0].topics
            for part in topic.partitions
        }
        assert found == {("t", 0): 1, ("t", 1): 2, ("u", 0): 8}
        assert not both.groups[1].topics
        by_id = [{"topic_id": id_, "partition_indexes": [0]}]
        one = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": by_id}
        answer = await ask(wire, "OffsetFetch", 10, groups=[one], require_stable=True)
        assert answer.groups[0].topics[0].partitions[0].committed_offset == 8
        listed = await ask(wire, "ListGroups", 4, states_filter=["empty"])
        assert [(each.group_id, each.group_state) for each in listed.groups] == [("g", "Empty")]
        assert not (await ask(wire, "ListGroups", 4, states_filter=["Stable"])).groups

    play(story)


def test_a_reader_of_stable_offsets_waits_for_open_transactions() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 3)
        one = Consumer(await world.wire())
        assert await one.commit("t", 5, 6) == [0, 0]
        topic = world.front.context.topics.known("t")
        assert topic is not None
        entries = [OffsetEntry(topic.id, part, 9, -1, "") for part in (1, 2)]
        made = CommitInTransaction("g", 1 << 47, 0, 1, -1, "", None, entries)
        groups = world.core.engine.group_coordinator
        assert await groups.call(made) == Outcomes([0])

        async def fetched(*, stable: bool, numbers: list[int] | None = None) -> dict[int, Any]:
            topics = None if numbers is None else [{"name": "t", "partition_indexes": numbers}]
            asked = [{"group_id": "g", "topics": topics}]
            answer = await ask(one.wire, "OffsetFetch", 8, groups=asked, require_stable=stable)
            return {
                part.partition_index: (part.committed_offset, part.error_code.value)
                for part in answer.groups[0].topics[0].partitions
            }

        assert await fetched(stable=False) == {0: (5, 0), 1: (6, 0)}
        unstable = (-1, Error.UNSTABLE_OFFSET_COMMIT)
        assert await fetched(stable=True) == {0: (5, 0), 1: unstable, 2: unstable}
        assert await fetched(stable=True, numbers=[0, 2]) == {0: (5, 0), 2: unstable}
        answer = await ask(one.wire, "DeleteGroups", 1, groups_names=["g"])
        assert answer.results[0].error_code.value == GroupError.NON_EMPTY_GROUP
        machine = world.core.local.machines[groups.group_of("g")]
        settle_offsets(machine, "g", 1 << 47, 1, commit=True, now_ms=5)
        assert await fetched(stable=True) == {0: (5, 0), 1: (9, 0), 2: (9, 0)}
        assert await groups.call(made) == Outcomes([GroupError.INVALID_TXN_STATE])

    play(story)


def test_groups_and_offsets_are_deleted() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        a = Consumer(await world.wire())
        wire = a.wire
        await a.join()
        assert await a.commit("t", 5, 6) == [0, 0]

        async def delete(*ids: str) -> list[int]:
            answer = await ask(wire, "DeleteGroups", 1, groups_names=ids)
            return [each.error_code.value for each in answer.results]

        async def delete_offsets(*numbers: int) -> tuple[int, list[int]]:
            parts = [{"partition_index": number} for number in numbers]
            topics = [{"name": "t", "partitions": parts}]
            answer = await ask(wire, "OffsetDelete", 0, group_id="g", topics=topics)
            errors = [each.error_code.value for each in answer.topics[0].partitions]
            return answer.error_code.value, errors

        assert await delete("g", "none", "") == [
            GroupError.NON_EMPTY_GROUP,
            GroupError.GROUP_ID_NOT_FOUND,
            Error.INVALID_GROUP_ID,
        ]
        assert await delete_offsets(0, 9) == (0, [0, Error.UNKNOWN_TOPIC_OR_PARTITION])
        assert await a.committed("t", 0, 1) == [(-1, ""), (6, "")]
        await a.leave()
        assert await delete("g") == [0]
        assert await a.committed("t", 1) == [(-1, "")]
        assert await delete_offsets(1) == (GroupError.GROUP_ID_NOT_FOUND, [0])
        gone = await ask(
            wire, "DescribeGroups", 6, groups=["g"], include_authorized_operations=False
        )
        assert gone.groups[0].error_code.value == Error.GROUP_ID_NOT_FOUND

    play(story)


def test_offsets_that_a_member_reads_are_not_deleted() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 1)
        wire = await world.wire()
        subscription = bytes.fromhex("0001 00000001 0001 74 ffffffff")
        joined = await ask(
            wire, "JoinGroup", 3, group_id="g", session_timeout=120_000, rebalance_timeout=120_000,
            member_id="", protocol_type="consumer",
            protocols=[{"name": "range", "metadata": subscription}],
        )  # fmt: skip
        assert joined.error_code.value == 0, "an older client gets no id first"
        await ask(
            wire, "SyncGroup", 3, group_id="g", generation_id=1, member_id=joined.member_id,
            group_instance_id=None, assignments=[],
        )  # fmt: skip
        topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
        answer = await ask(wire, "OffsetDelete", 0, group_id="g", topics=topics)
        assert answer.error_code.value == 0
        found = answer.topics[0].partitions[0].error_code.value
        assert found == GroupError.GROUP_SUBSCRIBED_TO_TOPIC

    play(story)


def test_a_new_topic_of_the_name_has_no_offsets() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        alone = Consumer(await world.wire())
        await alone.commit("t", 5)
        await world.front.context.topics.drop(world.front.context.topics.names["t"])
        assert await alone.committed("t", 0) == [(-1, "")]
        await world.topic("t")
        assert await alone.committed("t", 0) == [(-1, "")]
        await world.core.settle()
        groups = [
            group
            for machine in world.core.local.machines.values()
            for group in machine.consumer_groups.by_id.values()
        ]
        assert [group.offsets for group in groups] == [{}], "they are gone, and not only hidden"

    play(story)


def test_what_is_committed_survives_a_kill() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        a = Consumer(await world.wire())
        await a.join()
        await a.commit("t", 5)
        core = world.core.kill()
        later = coordinator.ConsumerGroupCoordinator(core.service, lambda group: 1)
        group = later.group_of("g")
        stored = core.local.machines[group].consumer_groups.by_id["g"]
        assert [member.id for member in stored.members] == [a.id]
        assert [entry.offset for entry, _ in stored.entries()] == [5]

    play(story)


@pytest.mark.parametrize(
    ("name", "version", "fields", "error"),
    [
        ("JoinGroup", 5, {"session_timeout": 10}, Error.INVALID_SESSION_TIMEOUT),
        ("JoinGroup", 5, {"group_id": ""}, Error.INVALID_GROUP_ID),
        ("JoinGroup", 5, {"group_id": "g" * (GROUP_ID_BYTES_MAX + 1)}, Error.INVALID_GROUP_ID),
        ("JoinGroup", 5, {"protocols": []}, 23),
        ("JoinGroup", 5, {"member_id": "unknown"}, 25),
        ("JoinGroup", 5, {"protocol_type": "x" * 2000}, Error.INVALID_REQUEST),
        ("Heartbeat", 3, {"generation_id": 1}, 25),
        ("SyncGroup", 3, {"generation_id": 1, "assignments": []}, 25),
    ],
)
def test_refused_calls(name: str, version: int, fields: dict[str, Any], error: int) -> None:
    base: dict[str, Any] = {"group_id": "g", "member_id": "", "group_instance_id": None}
    if name == "JoinGroup":
        base |= {
            "session_timeout": 10_000,
            "rebalance_timeout": 20_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        }

    async def story(world: KafkaWorld) -> None:
        answer = await ask(await world.wire(), name, version, **base | fields)
        assert answer.error_code.value == error

    play(story)


def test_a_coordinator_of_transactions_is_refused_during_an_upgrade(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: KafkaWorld) -> None:
        monkeypatch.setattr(TransactionService, "is_ready", False)
        wire = await world.wire()
        found = await ask(wire, "FindCoordinator", 4, key_type=1, coordinator_keys=["txn"])
        assert found.coordinators[0].error_code.value == 15
        assert "level 4: finish the upgrade" in found.coordinators[0].error_message

    play(story)


def test_coordinators_are_found_or_refused() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        found = await ask(wire, "FindCoordinator", 4, key_type=0, coordinator_keys=["a", ""])
        assert [each.error_code.value for each in found.coordinators] == [0, 24]
        found = await ask(wire, "FindCoordinator", 4, key_type=1, coordinator_keys=["txn"])
        assert found.coordinators[0].error_code.value == 0, "InitProducerId refuses, and says why"
        assert found.coordinators[0].port == 9092

    play(story)


def test_a_fault_sends_clients_to_look_for_the_coordinator() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        alone = Consumer(await world.wire())
        for fault, error in ((NotLeader(2), 16), (Unavailable("no"), 15)):

            async def broken(call: object, fault: Exception = fault, *, here: bool = False) -> None:
                raise fault

            world.front.context.groups.call = broken  # type: ignore[assignment, method-assign]
            assert await alone.heartbeat() == error
            assert await alone.commit("t", 1) == [error]

    play(story)


def test_a_call_waits_on_another_core_and_is_answered_when_the_core_stops(tmp_path: Any) -> None:
    async def run() -> None:
        node = await Node(str(tmp_path)).start()
        groups = [world.engine.group_coordinator for world in node.worlds]
        ids = [f"g{number}" for number in range(20)]
        id_ = next(each for each in ids if groups[0].group_of(each) % 2 == 1)
        join = Join(id_, "", None, "c", "/h", "consumer", [("range", b"")], 120_000, 120_000)
        joined = await groups[0].call(join)
        assert isinstance(joined, Joined)
        sync = Sync(id_, 1, joined.member, None, None, None, [(joined.member, b"a")])
        assert await groups[0].call(sync) == Synced(0, "consumer", "range", b"a")
        commit = Commit(id_, 1, joined.member, None, [])
        assert await groups[0].call(commit) == Outcomes([0])
        listed = await groups[0].list_groups(range(1, 5))
        assert [(each.group, each.state) for each in listed] == [(id_, "Stable")]
        waiting = asyncio.ensure_future(groups[0].call(join))

        async def is_preparing() -> bool:
            return (await groups[0].list_groups(range(1, 5)))[0].state.startswith("Preparing")

        await wait_for(is_preparing)
        groups[1].close()
        assert await waiting == Outcomes([GroupError.NOT_COORDINATOR])
        await node.stop()

    asyncio.run(run())


def test_idle_offsets_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        alone = Consumer(await world.wire())
        await alone.commit("t", 5)
        groups = world.core.engine.group_coordinator
        world.core.clock.ms += groups.retention_ms
        groups.expire()
        assert await alone.committed("t", 0) == [(5, "")]
        world.core.clock.ms += 1
        groups.expire()

        async def is_forgotten() -> bool:
            return await alone.committed("t", 0) == [(-1, "")]

        await wait_for(is_forgotten, what="the command is applied, in a later turn")

    play(story)


class Elsewhere(OneBroker):
    """The broker of this core, beside one that leads all groups."""

    def leader_of(self, group: int) -> int:
        return self.own + 1


def test_a_commit_goes_to_no_other_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was held up on its way could come behind the client's later ones."""

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        alone = Consumer(await world.wire())
        assert await alone.commit("t", 5) == [0]
        own = world.front.context.brokers
        world.use(Elsewhere())
        assert await alone.commit("t", 3) == [Error.NOT_COORDINATOR]
        world.use(own)
        rpc = world.core.service.rpc
        asked = list[int]()

        async def ask(core_id: int, *_: object, **__: object) -> None:
            asked.append(core_id)

        with monkeypatch.context() as moved:
            moved.setattr(rpc, "ask", ask)
            moved.setattr(rpc, "home_of", lambda _group, **_: address(2, 0))
            assert await alone.commit("t", 3) == [Error.NOT_COORDINATOR], "it moved just now"
        assert asked == []
        assert await alone.committed("t", 0) == [(5, "")]

    play(story)


def test_a_commit_whose_client_has_closed_the_connection_is_dropped() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        topics = world.front.context.topics
        find, waits, may_go = topics.find, asyncio.Event(), asyncio.Event()

        async def find_late(name: str) -> Any:
            waits.set()
            await may_go.wait()
            return await find(name)

        topics.find = find_late  # type: ignore[method-assign]
        given_up = Consumer(await world.wire())
        late = asyncio.ensure_future(given_up.commit("t", 3))
        await waits.wait()
        topics.find = find  # type: ignore[method-assign]
        given_up.wire.close()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await late
        again = Consumer(await world.wire())
        assert await again.commit("t", 5) == [0]
        may_go.set()
        await turns()
        assert await again.committed("t", 0) == [(5, "")]

    play(story)
