"""`/v1/groups`, its lag and the metric, over a core in memory with consumer groups."""

from __future__ import annotations

import json
from typing import Any

import pytest
from worlds.kafka import KafkaWorld, batch, play, produce_fields

from polynya.access import Principal
from polynya.access.grants import Grant, Verb
from polynya.admin.metric_sources import of_group_lags
from polynya.front.http.api.kafka import groups as group_routes
from polynya.front.http.api.kafka.groups import GroupRoutes
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request
from polynya.front.kafka.offsets import offset_of_time
from polynya.service.consumer_groups.admin import GroupAdmin
from polynya.service.consumer_groups.lag import GroupLags
from polynya.stream.features.consumer_groups.calls import Commit, Join, Joined, Leave, Sync
from polynya.stream.features.consumer_groups.commands import OffsetEntry

# a consumer's assignment: partitions 0 and 1 of t
ASSIGNMENT = bytes.fromhex("0001 00000001 0001 74 00000002 00000000 00000001 ffffffff")


class Groups:
    """The routes, and a group with a member that has committed."""

    def __init__(self, world: KafkaWorld) -> None:
        self.world = world
        self.coordinator = world.core.engine.group_coordinator
        self.admin = GroupAdmin(world.core.service, self.coordinator, offset_of_time)
        self.routes = GroupRoutes(self.admin)
        self.member = ""

    async def fill(self) -> None:
        await self.world.topic("t", 2)
        wire = await self.world.wire()
        await wire.ask("Produce", 9, **produce_fields("t", batch(b"a", b"b", b"c"), batch(b"x")))
        join = Join("g", "", None, "c", "/h", "consumer", [("range", b"")], 10_000, 20_000)
        joined = await self.coordinator.call(join)
        assert isinstance(joined, Joined)
        self.member = joined.member
        plan = [(self.member, ASSIGNMENT)]
        await self.coordinator.call(Sync("g", 1, self.member, None, None, None, plan))
        entry = OffsetEntry(self.world.front.context.topics.names["t"].id, 0, 1, -1, "m")
        await self.coordinator.call(Commit("g", 1, self.member, None, [entry]))

    async def ask(
        self,
        method: str,
        *segments: str,
        body: Any = None,
        principal: Principal | None = None,
        **query: str,
    ) -> Any:
        sent = b"" if body is None else json.dumps(body).encode()
        asked = Request(method, "", ("", *segments), query, {}, sent, "", principal)
        answer = await self.routes.handle(asked)
        return json.loads(answer.body) if answer.body else answer.status

    async def refused(self, *arguments: Any, **more: Any) -> str:
        with pytest.raises(Failure) as refused:
            await self.ask(*arguments, **more)
        return refused.value.code


def test_a_group_is_described_with_its_lag() -> None:
    async def story(world: KafkaWorld) -> None:
        groups = Groups(world)
        await groups.fill()
        shown = await groups.ask("GET", "g")
        assert (shown["state"], shown["protocol"], shown["lag"]) == ("Stable", "range", 2)
        (member,) = shown["members"]
        assert (member["id"], member["partitions"]) == (groups.member, {"t": [0, 1]})
        assert [
            (row["partition"], row["offset"], row["end"], row["lag"], row["metadata"])
            for row in shown["offsets"]
        ] == [(0, 1, 3, 2, "m"), (1, None, 1, None, "")]
        assert [row["stream"] for row in shown["offsets"]] == ["kafka/t/0", "kafka/t/1"]
        lags = GroupLags(world.core.service, groups.coordinator)
        await lags.measure()
        assert of_group_lags(lags)() == {'polynya_group_lag{group="g",topic="t"}': 2}
        await world.front.context.topics.drop(world.front.context.topics.names["t"])
        assert (await groups.ask("GET", "g"))["offsets"] == []
        await lags.measure()
        assert not lags.found

    play(story)


def test_offsets_are_reset_and_a_group_deleted_when_it_has_no_members() -> None:
    async def story(world: KafkaWorld) -> None:
        groups = Groups(world)
        await groups.fill()
        assert await groups.refused("POST", "g", "offsets", body={"to": 0}) == "GROUP_NOT_EMPTY"
        assert await groups.refused("DELETE", "g") == "GROUP_NOT_EMPTY"
        await groups.coordinator.call(Leave("g", [(groups.member, None)]))
        for to, expected in (("latest", [3, 1]), (2, [2, 1]), ("earliest", [0, 0])):
            found = await groups.ask("POST", "g", "offsets", body={"to": to, "topics": ["t"]})
            assert [row["offset"] for row in found["offsets"]] == expected
        found = await groups.ask("POST", "g", "offsets", body={"to": "latest"})
        assert [(row["offset"], row["lag"]) for row in found["offsets"]] == [(3, 0), (1, 0)]
        assert (await groups.ask("GET", "g"))["lag"] == 0
        assert await groups.ask("DELETE", "g") == 204
        assert await groups.refused("GET", "g") == "GROUP_NOT_FOUND"
        assert await groups.refused("DELETE", "g") == "GROUP_NOT_FOUND"

    play(story)


def test_offsets_are_reset_by_time_by_distance_and_by_partition() -> None:
    async def story(world: KafkaWorld) -> None:
        groups = Groups(world)
        await groups.fill()  # records of 1000, 1001, 1002 ms, and of 1000 ms in partition 1
        await groups.coordinator.call(Leave("g", [(groups.member, None)]))

        async def reset(**body: Any) -> list[tuple[int, Any, int]]:
            found = await groups.ask("POST", "g", "offsets", body=body)
            return [(row["partition"], row["before"], row["offset"]) for row in found["offsets"]]

        at = "1970-01-01T00:00:01.001Z"
        assert await reset(time=at, dry_run=True) == [(0, 1, 1), (1, None, 1)]
        assert await reset(shift_by=5, dry_run=True) == [(0, 1, 3)], "cut to the end"
        assert (await groups.ask("GET", "g"))["offsets"][0]["offset"] == 1, "nothing changed"
        assert await reset(to="earliest", topics=["t:1"]) == [(1, None, 0)]
        assert await reset(time="1970-01-01T00:00:01.002Z") == [(0, 1, 2), (1, 0, 1)]
        assert await reset(shift_by=-1) == [(0, 2, 1), (1, 1, 0)]
        each = {"t": {"0": 2, "1": 99}}
        assert await reset(offsets=each) == [(0, 1, 2), (1, 0, 1)], "never beyond the end"

    play(story)


def test_a_caller_sees_its_groups_and_topics_alone() -> None:
    async def story(world: KafkaWorld) -> None:
        groups = Groups(world)
        await groups.fill()
        await groups.coordinator.call(Commit("other", -1, "", None, []))
        await groups.coordinator.call(Leave("g", [(groups.member, None)]))
        joins = Grant(frozenset((Verb.SUBSCRIBE,)), "kafka/g/")
        reads = Grant(frozenset((Verb.READ,)), "kafka/t/")
        blind = Principal(id="1", name="blind", grants=(joins,))
        seeing = Principal(id="2", name="seeing", grants=(joins, reads))
        listed = await groups.ask("GET", principal=blind)
        assert [each["group"] for each in listed["groups"]] == ["g"]
        assert (await groups.ask("GET", "g", principal=blind))["offsets"] == []
        assert len((await groups.ask("GET", "g", principal=seeing))["offsets"]) == 1
        body = {"to": "latest", "topics": ["t"]}
        sent = ("POST", "g", "offsets")
        assert await groups.refused(*sent, body=body, principal=blind) == "INVALID_REQUEST"
        assert len((await groups.ask(*sent, body=body, principal=seeing))["offsets"]) == 2

    play(story)


def test_wrong_requests_are_refused() -> None:
    async def story(world: KafkaWorld) -> None:
        groups = Groups(world)
        await world.topic("t", 2)
        for body in (
            {"to": "yesterday"},
            {"to": -1},
            {"to": 1, "topics": ["none"]},
            {"to": 1, "topics": ["t:2"]},
            {"to": 1, "topics": ["t:x"]},
            {"to": 1, "topics": ["t:"]},
            {"to": 1, "shift_by": 1, "topics": ["t"]},
            {"shift_by": 1, "topics": ["t"]},
            {"time": "2026", "topics": ["t"]},
            {"to": 1, "topic": "t"},
            {"offsets": {}},
            {"offsets": {"t": {"0": -1}}},
            {"offsets": {"t": {"2": 1}}},
            {"offsets": {"t": {"-1": 1}}},
            {"offsets": {"none": {"0": 1}}},
            {"offsets": {"t": {"0": 1}}, "to": 1},
            {"offsets": {"t": {"0": 1}}, "topics": ["t"]},
            {"to": 1},
            {},
            [],
        ):
            assert await groups.refused("POST", "g", "offsets", body=body) == "INVALID_REQUEST"
        assert await groups.refused("PUT", "g") == "METHOD_NOT_ALLOWED"
        assert await groups.refused("GET", "g", "offsets") == "METHOD_NOT_ALLOWED"
        beside = Request("GET", "", ("x",), {}, {}, b"", "")
        with pytest.raises(Failure):
            await groups.routes.handle(beside)

    play(story)


def test_groups_are_listed_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_routes, "LISTED_MAX", 2)

    async def story(world: KafkaWorld) -> None:
        groups = Groups(world)
        for name in ("b", "a", "c", "d"):
            await groups.coordinator.call(Commit(name, -1, "", None, []))
        first = await groups.ask("GET")
        assert [each["group"] for each in first["groups"]] == ["a", "b"]
        assert first["groups"][0] == {
            "group": "a",
            "state": "Empty",
            "protocol_type": "",
            "kind": "classic",
        }
        second = await groups.ask("GET", after=first["next"])
        assert [each["group"] for each in second["groups"]] == ["c", "d"]
        assert (await groups.ask("GET", after=second["next"])) == {"groups": [], "next": None}
        assert [each["group"] for each in (await groups.ask("GET", prefix="c"))["groups"]] == ["c"]

    play(story)
