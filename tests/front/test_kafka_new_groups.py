"""The keys of the consumer protocol (KIP-848) over a core in memory: heartbeats, offsets with member
epochs, lists and descriptions, configs of groups, and the change of a group's protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from front.test_group_routes import Groups
from front.test_kafka_access import Gate, guarded
from front.test_kafka_groups import Consumer, ask
from polling import wait_for
from worlds.kafka import KafkaWire, KafkaWorld, play

from polynya.base.errors import Unavailable
from polynya.base.limits import GROUP_ID_BYTES_MAX
from polynya.front.kafka.errors import Error
from polynya.service.consumer_groups import topic_source
from polynya.service.consumer_groups.configs import HEARTBEAT, SESSION
from polynya.stream.features.consumer_groups.calls import GroupError

GROUP_RESOURCE = 32


class Member:
    """A member of the consumer protocol, as a client speaks."""

    def __init__(self, wire: KafkaWire, id_: str, *topics: str, group: str = "g") -> None:
        self.wire, self.id, self.group, self.topics = wire, id_, group, topics
        self.epoch = 0
        self.owned: list[dict[str, Any]] = []
        self.interval_ms = 0

    async def beat(self, *, epoch: int | None = None, **fields: Any) -> Any:
        """Send a heartbeat that says all, and take over the answer."""
        given: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.id,
            "member_epoch": self.epoch if epoch is None else epoch,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": 60_000,
            "subscribed_topic_names": list(self.topics),
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": self.owned,
        }
        answer = await ask(self.wire, "ConsumerGroupHeartbeat", 1, **given | fields)
        if not answer.error_code.value:
            self.epoch = answer.member_epoch
            self.interval_ms = milliseconds(answer.heartbeat_interval)
            if answer.assignment is not None:
                self.owned = [
                    {"topic_id": each.topic_id.bytes, "partitions": each.partitions}
                    for each in answer.assignment.topic_partitions
                ]
        return answer

    @property
    def numbers(self) -> list[int]:
        return sorted(int(number) for each in self.owned for number in each["partitions"])

    async def commit(
        self, topic: str, *numbers: int, epoch: int | None = None, offset: int = 5
    ) -> list[int]:
        parts = [
            {
                "partition_index": number,
                "committed_offset": offset,
                "committed_leader_epoch": 0,
                "committed_metadata": "",
            }
            for number in numbers
        ]
        answer = await ask(
            self.wire, "OffsetCommit", 9, group_id=self.group,
            generation_id_or_member_epoch=self.epoch if epoch is None else epoch,
            member_id=self.id, group_instance_id=None,
            topics=[{"name": topic, "partitions": parts}],
        )  # fmt: skip
        return [part.error_code.value for part in answer.topics[0].partitions]

    async def fetched(self, epoch: int) -> tuple[int, list[int]]:
        answer = await ask(
            self.wire, "OffsetFetch", 9, require_stable=False,
            groups=[
                {
                    "group_id": self.group,
                    "member_id": self.id,
                    "member_epoch": epoch,
                    "topics": [{"name": "t", "partition_indexes": [0]}],
                }
            ],
        )  # fmt: skip
        (group,) = answer.groups
        parts = group.topics[0].partitions
        return int(group.error_code.value), [part.committed_offset for part in parts]


def milliseconds(value: Any) -> int:
    return round(value.total_seconds() * 1000)


async def described(wire: KafkaWire, *groups: str) -> list[Any]:
    answer = await ask(
        wire, "ConsumerGroupDescribe", 1, group_ids=groups, include_authorized_operations=False
    )
    return list(answer.groups)


def test_members_share_partitions_and_commit_with_their_epochs() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 4)
        a, b = Member(await world.wire(), "a", "t"), Member(await world.wire(), "b", "t")
        answer = await a.beat()
        assert (answer.error_code.value, a.epoch, a.numbers) == (0, 1, [0, 1, 2, 3])
        assert await a.commit("t", 0, 3) == [0, 0]
        await b.beat()
        assert (b.epoch, b.numbers) == (2, [])
        await a.beat()
        assert await a.commit("t", 3) == [0], "before it confirms"
        await a.beat()
        await b.beat()
        assert (a.epoch, a.numbers, b.numbers) == (2, [0, 1], [2, 3])
        assert await a.commit("t", 0, 3, epoch=1) == [0, GroupError.STALE_MEMBER_EPOCH]
        assert await b.commit("t", 3, epoch=3) == [GroupError.STALE_MEMBER_EPOCH]
        assert await a.fetched(1) == (0, [5])
        assert (await b.fetched(1))[0] == GroupError.STALE_MEMBER_EPOCH
        assert (await Member(a.wire, "x").fetched(1))[0] == GroupError.UNKNOWN_MEMBER_ID
        assert await Member(a.wire, "").fetched(-1) == (0, [5])
        assert (await a.beat(epoch=-1)).member_epoch == -1
        await b.beat()
        assert b.numbers == [0, 1, 2, 3]

    play(story)


def test_groups_of_both_protocols_are_listed_and_described() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        wire = await world.wire()
        await Member(wire, "a", "t").beat(instance_id="i", rack_id="r")
        await Consumer(wire, "plain").commit("t", 1)
        listed = await ask(wire, "ListGroups", 5, states_filter=[], types_filter=[])
        found = [(each.group_id, each.group_state, each.group_type) for each in listed.groups]
        assert sorted(found) == [("g", "Stable", "consumer"), ("plain", "Empty", "classic")]
        only = await ask(wire, "ListGroups", 5, states_filter=[], types_filter=["Consumer"])
        assert [each.group_id for each in only.groups] == ["g"]
        group, plain, none = await described(wire, "g", "plain", "none")
        assert (group.error_code.value, group.group_state, group.assignor_name) == (
            0,
            "Stable",
            "uniform",
        )
        (member,) = group.members
        assert (member.member_id, member.instance_id, member.rack_id) == ("a", "i", "r")
        assert (member.member_epoch, member.member_type) == (1, 1)
        (assigned,) = member.assignment.topic_partitions
        assert (assigned.topic_name, assigned.partitions) == ("t", (0, 1))
        assert member.target_assignment.topic_partitions == member.assignment.topic_partitions
        assert plain.error_code.value == none.error_code.value == GroupError.GROUP_ID_NOT_FOUND
        classic = await ask(
            wire, "DescribeGroups", 6, groups=["g"], include_authorized_operations=False
        )
        assert classic.groups[0].error_code.value == GroupError.GROUP_ID_NOT_FOUND
        assert classic.groups[0].group_state == "Dead"

    play(story)


def test_a_group_changes_its_protocol_when_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("INITIAL_DELAY_MS", "INITIAL_DELAY_MS_MAX"):
        monkeypatch.setattr(f"polynya.stream.features.consumer_groups.classic.{name}", 0)

    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        wire = await world.wire()
        member = Member(wire, "a", "t")
        await member.beat()
        await member.commit("t", 0)
        classic = Consumer(await world.wire())
        with pytest.raises(AssertionError):
            await classic.join()
        await member.beat(epoch=-1)
        await classic.join()
        assert await classic.committed("t", 0) == [(5, "")], "its offsets stay"
        refused = await Member(wire, "b", "t").beat()
        assert refused.error_code.value == GroupError.GROUP_ID_NOT_FOUND
        assert "classic protocol" in refused.error_message
        await classic.leave()
        again = Member(wire, "b", "t")

        async def is_taken() -> bool:
            return not (await again.beat(epoch=0, topic_partitions=[])).error_code.value

        await wait_for(is_taken, what="the classic group is empty")
        assert again.numbers == [0, 1]

    play(story)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, Error.INVALID_GROUP_ID),
        ({"member_id": ""}, Error.INVALID_REQUEST),
        ({"member_id": "x" * (GROUP_ID_BYTES_MAX + 1)}, Error.INVALID_REQUEST),
        ({"instance_id": ""}, Error.INVALID_REQUEST),
        ({"rack_id": ""}, Error.INVALID_REQUEST),
        ({"rebalance_timeout": -1}, Error.INVALID_REQUEST),
        ({"topic_partitions": None}, Error.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, Error.INVALID_REQUEST),
        ({"member_epoch": -3}, Error.INVALID_REQUEST),
        ({"member_epoch": -2}, Error.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, GroupError.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, GroupError.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 3}, GroupError.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, GroupError.GROUP_ID_NOT_FOUND),
    ],
)
def test_refused_heartbeats(fields: dict[str, Any], error: int) -> None:
    async def story(world: KafkaWorld) -> None:
        answer = await Member(await world.wire(), "a", "t").beat(**fields)
        assert answer.error_code.value == error
        assert error == Error.INVALID_GROUP_ID or answer.error_message

    play(story)


def test_a_new_topic_is_assigned_at_the_next_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_source, "_FRESH_SECONDS", 0.0)

    async def story(world: KafkaWorld) -> None:
        member = Member(await world.wire(), "a", "new")
        await member.beat(subscribed_topic_regex="other.*")
        assert member.numbers == []
        await world.topic("new", 2)
        await world.topic("other-1", 1)

        await member.beat()
        assert member.numbers == [0, 0, 1]

    play(story)


def test_a_token_is_kept_to_its_groups_and_topics(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        for name in ("mine-1", "mine-2", "other"):
            await world.topic(name)
        gate.token("mine", "read:kafka/mine-1", "subscribe:kafka/g/")
        gate.token("all", "read:kafka/", "subscribe:kafka/", "delete:kafka/")
        wire = await gate.wire(world, "mine")
        strange = await Member(wire, "a", "mine-1", group="strange").beat()
        assert strange.error_code.value == Error.GROUP_AUTHORIZATION_FAILED
        denied = await Member(wire, "a", "mine-1", "other").beat()
        assert denied.error_code.value == Error.TOPIC_AUTHORIZATION_FAILED
        assert "topic 'other'" in denied.error_message
        member = Member(wire, "a")
        await member.beat(subscribed_topic_regex="mine.*|other")
        assert len(member.owned) == 1, "names that it may not read do not match"
        every = Member(await gate.wire(world, "all"), "b", "other")
        await every.beat()
        assert len(every.owned) == 1
        (shown,) = await described(wire, "g")
        assert shown.error_code.value == Error.TOPIC_AUTHORIZATION_FAILED
        (shown,) = await described(every.wire, "g")
        assert len(shown.members) == 2
        (hidden,) = await described(wire, "strange")
        assert hidden.error_code.value == Error.GROUP_AUTHORIZATION_FAILED
        resource = {
            "resource_type": GROUP_RESOURCE,
            "resource_name": "strange",
            "configuration_keys": None,
        }
        answer = await ask(
            wire, "DescribeConfigs", 4, resources=[resource], include_synonyms=False,
            include_documentation=False,
        )  # fmt: skip
        assert answer.results[0].error_code.value == Error.GROUP_AUTHORIZATION_FAILED

    guarded(tmp_path, story)


def test_people_see_the_members_and_reset_offsets() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        groups = Groups(world)
        member = Member(await world.wire(), "a", "t")
        await member.beat()
        await member.commit("t", 1, offset=0)
        (listed,) = (await groups.ask("GET"))["groups"]
        assert (listed["kind"], listed["state"]) == ("consumer", "Stable")
        found = await groups.ask("GET", "g")
        assert (found["kind"], found["protocol"]) == ("consumer", "uniform")
        assert found["members"][0]["partitions"] == {"t": [0, 1]}
        to_start = {"to": "earliest"}
        assert await groups.refused("POST", "g", "offsets", body=to_start) == "GROUP_NOT_EMPTY"
        await member.beat(epoch=-1)
        rows = (await groups.ask("POST", "g", "offsets", body=to_start))["offsets"]
        assert [(row["before"], row["offset"]) for row in rows] == [(None, 0), (0, 0)]

    play(story)


def test_groups_have_configs() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        member = Member(wire, "a", "t")

        async def alter(*steps: tuple[str, int, str | None], dry: bool = False) -> int:
            configs = [
                {"name": name, "config_operation": operation, "value": value}
                for name, operation, value in steps
            ]
            resource = {
                "resource_type": GROUP_RESOURCE,
                "resource_name": "g",
                "configs": configs,
            }
            answer = await ask(
                wire, "IncrementalAlterConfigs", 1, resources=[resource], validate_only=dry
            )
            return int(answer.responses[0].error_code.value)

        async def shown() -> dict[str, str]:
            resource = {
                "resource_type": GROUP_RESOURCE,
                "resource_name": "g",
                "configuration_keys": None,
            }
            answer = await ask(
                wire, "DescribeConfigs", 4, resources=[resource], include_synonyms=True,
                include_documentation=True,
            )  # fmt: skip
            return {each.name: each.value for each in answer.results[0].configs}

        assert await shown() == {HEARTBEAT: "5000", SESSION: "45000"}
        assert await alter((HEARTBEAT, 0, "700"), dry=True) == 0
        assert await alter((HEARTBEAT, 0, "300"), (SESSION, 0, "2000")) == 0
        assert await shown() == {HEARTBEAT: "300", SESSION: "2000"}
        await member.beat()
        assert member.interval_ms == 300
        for wrong in ((HEARTBEAT, 0, "3000"), ("retention.ms", 0, "1"), (SESSION, 0, "soon")):
            assert await alter(wrong) == Error.INVALID_CONFIG
        assert await alter((HEARTBEAT, 2, "1")) == Error.INVALID_CONFIG
        listed = await ask(wire, "ListConfigResources", 1, resource_types=[GROUP_RESOURCE])
        assert [each.resource_name for each in listed.config_resources] == ["g"]
        replaced = {
            "resource_type": GROUP_RESOURCE,
            "resource_name": "g",
            "configs": [{"name": SESSION, "value": "60000"}],
        }
        answer = await ask(wire, "AlterConfigs", 2, resources=[replaced], validate_only=False)
        assert answer.responses[0].error_code.value == 0
        assert await shown() == {HEARTBEAT: "5000", SESSION: "60000"}
        assert await alter((SESSION, 1, None)) == 0
        assert await shown() == {HEARTBEAT: "5000", SESSION: "45000"}

    play(story)


def test_the_feature_is_told_when_all_nodes_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()

        async def features() -> list[tuple[str, int]]:
            answer = await ask(
                wire, "ApiVersions", 3, client_software_name="t", client_software_version="1"
            )
            return [(each.name, each.max_version_level) for each in answer.finalized_features]

        assert ("group.version", 1) in await features()
        for version, least in ((3, 1), (4, 0)):  # an older client cannot decode 0
            answer = await ask(
                wire, "ApiVersions", version, client_software_name="t", client_software_version="1"
            )
            supported = {each.name: each.min_version for each in answer.supported_features}
            assert supported["group.version"] == least
        service = world.front.context.service
        monkeypatch.setattr(type(service), "level", 3)
        assert await features() == []
        refused = await Member(wire, "a", "t").beat()
        assert refused.error_code.value == Error.UNSUPPORTED_VERSION
        assert "group.protocol=classic" in refused.error_message

    play(story)


def test_members_go_on_without_the_meta_group() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 1)
        member = Member(await world.wire(), "a", "t")
        await member.beat()
        groups = world.core.engine.group_coordinator

        async def broken(*given: object, **options: object) -> None:
            raise Unavailable("no leader")

        configs = groups._configs._stored
        groups._topics._meta_group = configs._meta_group = _Broken(broken)  # type: ignore[assignment]
        groups._topics._read_at = configs.reads._read_at = float("-inf")
        assert (await member.beat()).error_code.value == 0
        assert member.numbers == [0]

    play(story)


class _Broken:
    def __init__(self, raises: Any) -> None:
        self.topics = self.entries = self.call = raises
