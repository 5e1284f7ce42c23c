"""The snapshots that tables keep, their tags, and dry runs: settings and answers of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from worlds.service import World, name_in

from polynya.base.names import spelled_name
from polynya.front.http.api.tables import TableRoutes
from polynya.front.http.protocol.extension import Request
from polynya.service.tables import TableRefused
from polynya.stream.features.tables.commands import TableCommit
from polynya.wire.tables import StoreRef

STREAM = name_in(1, hint="t")
METADATA = {
    "current-snapshot-id": 2222222222222222222,
    "snapshots": [
        {"snapshot-id": number * 1111111111111111111, "timestamp-ms": number, "summary": {"polynya.job": str(number)}}
        for number in (1, 2)
    ],
}  # fmt: skip


class Routes:
    """The routes of a core's tables, with one table at job 1."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.metadata = json.dumps(METADATA).encode()
        self.read: list[str] = []
        store = StoreRef("local", "/x")
        self._routes = TableRoutes(world.jobs, store, lambda: world.clock.ms, self._read)

    async def _read(self, key: str) -> bytes:
        self.read.append(key)
        return self.metadata

    async def call(self, method: str, *segments: str, admin: bool = False, **body: Any) -> Any:
        data = json.dumps(body).encode() if body else b""
        request = Request(method, "", segments, {}, {}, data, "http://h")
        route = self._routes.admin if admin else self._routes.user
        return (await route(request))[1]

    async def commit(self) -> None:
        planned = await self.world.jobs.plan("t")
        assert planned is not None
        table = planned.table
        location = f"file:///x/tables/{table.uid}"
        command = TableCommit(
            table.uid, planned.job, planned.attempt, table.main, table.dlq, f"{location}/main/_iceberg/1.metadata.json",
            f"{location}/dlq/_iceberg/1.metadata.json", 1, 0, self.world.clock.ms,
        )  # fmt: skip
        await self.world.jobs.commit(command)


def in_one_core(tell: Callable[[Routes], Awaitable[None]]) -> None:
    async def run() -> None:
        world = World().start()
        await world.create(STREAM)
        await world.append(STREAM, b'{"n":1}')
        await tell(Routes(world))
        await world.stop()

    asyncio.run(run())


def test_a_table_says_what_it_keeps_and_drivers_hear_it() -> None:
    async def tell(routes: Routes) -> None:
        made = await routes.call("PUT", "t", prefix="", keep_snapshots=5)
        assert {key: made["table"][key] for key in ("keep_snapshots", "keep_ms", "tags")} == {
            "keep_snapshots": 5,
            "keep_ms": 0,
            "tags": {},
        }
        await routes.call("POST", "t", "alter", keep_ms=3_600_000)
        plan = await routes.call("POST", "t", "plan", admin=True)
        assert (plan["table"]["keep_snapshots"], plan["table"]["keep_ms"]) == (5, 3_600_000)
        for wrong in ({"keep_snapshots": 0}, {"keep_snapshots": 501}, {"keep_ms": -1}):
            with pytest.raises(TableRefused, match="cannot be kept") as refused:
                await routes.call("POST", "t", "alter", **wrong)
            assert (refused.value.status, refused.value.code) == (400, "TABLE_SNAPSHOTS")
        assert (await routes.call("GET", "t"))["table"]["keep_snapshots"] == 5

    in_one_core(tell)


def test_a_tag_names_a_snapshot_that_is_there() -> None:
    async def tell(routes: Routes) -> None:
        await routes.call("PUT", "t", prefix="")
        with pytest.raises(TableRefused, match="has no snapshot yet"):
            await routes.call("PUT", "t", "tags", "audit")
        await routes.commit()
        tags = (await routes.call("PUT", "t", "tags", "audit"))["tags"]
        assert (tags["audit"]["snapshot"], tags["audit"]["job"]) == ("2222222222222222222", 2)
        assert tags["audit"]["iceberg"].endswith("/main/_iceberg/1.metadata.json")
        again = await routes.call("PUT", "t", "tags", "audit", snapshot="2222222222222222222")
        assert again["tags"] == tags, "a repeat changes nothing"
        older = await routes.call("PUT", "t", "tags", "v1", snapshot="1111111111111111111")
        assert older["tags"]["v1"]["job"] == 1
        jobs = (await routes.call("GET", "t", "history"))["jobs"]
        assert [(job["job"], job["tags"]) for job in jobs] == [(2, ["audit"]), (1, ["v1"])]
        routes.metadata = json.dumps(METADATA | {"snapshots": METADATA["snapshots"][1:]}).encode()  # type: ignore[index]
        jobs = (await routes.call("GET", "t", "history"))["jobs"]
        assert [(job["job"], job["rows"]) for job in jobs] == [(2, 0), (1, None)], (
            "its tag lists it"
        )
        for tag, snapshot, message in (
            ("audit", "1111111111111111111", "has no snapshot 1111111111111111111"),
            ("v1", "2222222222222222222", "names snapshot 1111111111111111111"),
            ("1st", "", "is not a valid tag"),
        ):
            with pytest.raises(TableRefused, match=message) as refused:
                await routes.call("PUT", "t", "tags", tag, snapshot=snapshot)
            assert refused.value.code == "TABLE_TAG"
        assert set((await routes.call("DELETE", "t", "tags", "v1"))["tags"]) == {"audit"}
        with pytest.raises(TableRefused, match="has no tag 'v1'"):
            await routes.call("DELETE", "t", "tags", "v1")

    in_one_core(tell)


def test_a_dropped_table_keeps_no_settings() -> None:
    async def tell(routes: Routes) -> None:
        await routes.call("PUT", "t", prefix="", keep_snapshots=5)
        await routes.call("DELETE", "t")
        await routes.call("PUT", "t", prefix="", keep_snapshots=7)
        kept = await routes.world.jobs.snapshots.all()
        assert [each.count for each in kept.values()] == [7]

    in_one_core(tell)


def test_a_dry_run_is_told_the_table_and_its_streams_and_makes_nothing() -> None:
    async def tell(routes: Routes) -> None:
        for admin in (False, True):
            answer = await routes.call(
                "POST", "new", "check", admin=admin, prefix="", columns={"n": "decimal( 9,2)"}
            )
            assert answer["table"]["columns"] == [("n", "decimal(9,2)")]
            assert (answer["streams"], answer["more"]) == ([spelled_name(STREAM)], False)
        assert (await routes.call("GET"))["tables"] == []
        with pytest.raises(TableRefused, match="declares no column"):
            await routes.call("POST", "new", "check", prefix="", columns={"n": "number"})
        with pytest.raises(TableRefused, match="there is no table 'new'"):
            await routes.call("POST", "new", "check", columns={"n": "long"})
        await routes.call("PUT", "t", prefix="", columns={"n": "long"})
        answer = await routes.call("POST", "t", "check", columns={"m": "int"}, payload="registry")
        assert answer["table"]["columns"] == [("", "registry"), ("n", "long"), ("m", "int")]
        with pytest.raises(TableRefused, match="a declared type never changes"):
            await routes.call("POST", "t", "check", columns={"n": "int"})
        assert (await routes.world.jobs.tables.find("t")).columns == [("n", "long")]

    in_one_core(tell)
