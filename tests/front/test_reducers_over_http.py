"""Reducers from end to end: the routes, a worker, snapshots and states."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from front_world import Answer, World, play
from reducer_world import Loop, bind, mount, work
from test_authorizer import Gate, guarded
from worlds.wasm_modules import COUNTING, compiled

from polynya.base.limits import REDUCERS_MAX, SNAPSHOT_GRACE_MS
from polynya.cli.reducers.worker import RunReport, Worker
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.reducers.routes import PATH

URL = "/v1/stream/carts/ann"


def run(story: Callable[[World], Awaitable[None]]) -> None:
    async def mounted(world: World) -> None:
        mount(world)
        await story(world)

    play(mounted, settings=HttpSettings(long_poll_seconds=30.0, object_store=False))


def as_json(answer: Answer) -> Any:
    return json.loads(answer.body)


async def fill(world: World, *values: Any, name: str = "carts/ann", **headers: str) -> str:
    """Create a stream with JSON records, and return its tail."""
    if (await world.head(name)).status == 404:
        await world.put(name)
    answer = await world.post(name, json.dumps(list(values)).encode(), **headers)
    assert answer.status in (200, 204), answer
    return answer.headers["stream-next-offset"]


async def snapshots(world: World, url: str = URL) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = as_json(await world.ask("GET", f"{url}/snapshots"))["snapshots"]
    return found


async def state(world: World, query: str = "", url: str = URL) -> Answer:
    return await world.ask("GET", f"{url}/state{query}")


def test_a_worker_publishes_the_state_of_each_stream_of_the_pattern() -> None:
    async def story(world: World) -> None:
        made = await bind(world, key="/item")
        assert (made["revision"], made["builtin"], made["faults"]) == (1, "latest", [])
        tail = await fill(world, {"item": "pear", "n": 2}, {"item": "fig"}, {"item": "pear"})
        await fill(world, {"item": "nut"}, name="carts/bob")
        await fill(world, {"item": "nut"}, name="other/bob")
        reports = await work(world)
        assert [(each.stream, each.outcome.records) for each in reports] == [
            ("carts/ann", 3),
            ("carts/bob", 1),
        ]
        (mark,) = await snapshots(world)
        assert (mark["origin"], mark["offset"]) == ("carts@1", tail)
        newest = await world.ask("GET", f"{URL}/snapshot")
        body = (await world.ask("GET", newest.headers["location"])).body
        assert json.loads(body) == {
            "fig": {"record": 1, "value": {"item": "fig"}},
            "pear": {"record": 2, "value": {"item": "pear"}},
        }
        assert reports[0].outcome.digest == hashlib.sha256(body).hexdigest()
        assert await work(world) == []
        assert (await snapshots(world, "/v1/stream/other/bob")) == []

    run(story)


def test_a_run_goes_on_where_the_newest_snapshot_ends() -> None:
    async def story(world: World) -> None:
        await bind(world, builtin="count")
        await fill(world, 1, 2, 3)
        await work(world)
        await fill(world, 4, None)
        (reports,) = await work(world)
        assert reports.outcome.records == 2
        assert as_json(await state(world))["records"] == 5
        assert as_json(await state(world, "?key=nulls")) == 1
        assert len(await snapshots(world)) == 2

    run(story)


def test_a_state_is_that_after_all_records() -> None:
    async def story(world: World) -> None:
        await fill(world, {"a": 1})
        assert (await state(world)).error == "NO_REDUCER"
        await bind(world, builtin="merge-patch")
        assert as_json(await state(world)) == {"a": 1}
        await work(world)
        tail = await fill(world, {"b": {"c": 2}}, {"a": None})
        answer = await state(world)
        assert (as_json(answer), answer.headers["stream-next-offset"]) == ({"b": {"c": 2}}, tail)
        assert answer.headers["stream-reducer"] == "carts@1"
        assert as_json(await state(world, "?key=b")) == {"c": 2}
        assert (await state(world, "?key=a")).error == "KEY_NOT_FOUND"
        assert (await state(world, "?limit=5")).error == "INVALID_PARAMETER"
        assert (await state(world, "?reducer=no")).error == "NO_REDUCER"
        assert (await state(world, url="/v1/stream/carts/no")).error == "NOT_FOUND"

    run(story)


def test_latest_is_read_by_key_and_in_pages() -> None:
    async def story(world: World) -> None:
        await bind(world)
        for key in ("b", "a", ":/w==:"):
            await fill(world, {"of": key}, record_key=key)
        await fill(world, {"no": "key"})
        await work(world)
        await fill(world, 7, record_key="a")
        assert as_json(await state(world, "?key=a")) == {"key": "a", "record": 4, "value": 7}
        assert as_json(await state(world, "?key=base64:/w%3D%3D"))["record"] == 2
        page = await state(world, "?limit=2")
        assert page.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in page.body.splitlines()]
        assert [line["key"] for line in lines] == ["a", "b"]
        rest = await state(world, "?after=b")
        assert [json.loads(line)["key"] for line in rest.body.splitlines()] == ["base64:/w=="]
        for bad in ("0", "x", "99999"):
            assert (await state(world, f"?limit={bad}")).error == "INVALID_PARAMETER"

    run(story)


def test_a_worker_that_dies_anywhere_leaves_the_same_states() -> None:
    async def story(world: World) -> None:
        await bind(world, builtin="count")
        for number in range(40):
            await fill(world, number)
            server = Loop(world)
            server.lose = number % 9
            try:
                await work(world, server=server)
            except ConnectionError:
                assert number % 9 < 9
        await work(world)
        marks = await snapshots(world)
        body = await world.ask("GET", f"{URL}/snapshot/{marks[-1]['offset']}?origin=carts")
        found = json.loads(body.body)
        assert (found["records"], found["bytes"]) == (40, 10 + 60)

    run(story)


def test_two_states_of_the_same_records_stop_a_reducer_and_the_first_stays() -> None:
    async def story(world: World) -> None:
        await bind(world)
        tail = await fill(world, 1)
        origin = {"stream_snapshot_origin": "carts@1", "content_type": "application/json"}
        first = await world.ask("PUT", f"{URL}/snapshot/{tail}", b"{}", **origin)
        again = await world.ask("PUT", f"{URL}/snapshot/{tail}", b"{}", **origin)
        lie = await world.ask("PUT", f"{URL}/snapshot/{tail}", b'{"a":1}', **origin)
        assert (first.status, again.status, lie.error) == (201, 204, "SNAPSHOT_CONFLICT")
        assert "nondeterministic" in as_json(await world.ask("GET", f"{PATH}/carts"))["stopped"]
        assert [mark["bytes"] for mark in await snapshots(world)] == [2]
        await fill(world, 2)
        assert await work(world) == []
        refused = await world.ask("PUT", f"{URL}/snapshot/{tail}", b"{}", **origin)
        assert refused.error == "REDUCER_STOPPED"
        assert (await state(world)).error == "REDUCER_STOPPED"
        assert (await bind(world))["revision"] == 3
        (reports,) = await work(world)
        assert reports.outcome.published
        assert [mark["origin"] for mark in await snapshots(world)] == ["carts@1", "carts@3"]

    run(story)


def test_a_fault_is_kept_retried_later_and_forgotten_after_a_publish() -> None:
    async def story(world: World) -> None:
        await bind(world, builtin="merge-patch", pattern="**")
        await world.put("raw", "text/plain")
        await world.post("raw", b"no json", "text/plain")
        (reports,) = await work(world)
        assert "record 0 is no JSON" in reports.outcome.fault
        (fault,) = as_json(await world.ask("GET", f"{PATH}/carts"))["faults"]
        assert (fault["stream"], fault["tries"]) == ("raw", 1)
        assert (await state(world, url="/v1/stream/raw")).error == "REDUCER_FAULT"
        assert await work(world) == []  # it is tried again later
        tail = (await world.head("raw")).headers["stream-next-offset"]
        await world.ask(
            "PUT", f"/v1/stream/raw/snapshot/{tail}", b"1", stream_snapshot_origin="carts@1"
        )
        assert as_json(await world.ask("GET", f"{PATH}/carts"))["faults"] == []

    run(story)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"pattern": "a/*"}, "name either a builtin"),
        ({"pattern": "a/*", "builtin": "sum"}, "'sum' is no builtin"),
        ({"pattern": "a/x*", "builtin": "count"}, "a wildcard is a whole segment"),
        ({"pattern": "_snapshots/**", "builtin": "count"}, "'_snapshots' is reserved"),
        ({"pattern": "a", "builtin": "count", "key": "/a"}, "a key is for the builtin 'latest'"),
        ({"pattern": "a", "builtin": "latest", "key": "a"}, "must begin with '/'"),
        ({"pattern": "a", "module": "ff"}, "64 hexadecimal digits"),
        ({"pattern": "a", "builtin": "count", "every_seconds": 1}, "it must be 10 to"),
        ({"pattern": "a", "builtin": "count", "every": 1}, "unknown field"),
        ({"builtin": "count"}, "pattern"),
    ],
)
def test_a_binding_that_is_wrong_says_why(body: dict[str, Any], said: str) -> None:
    async def story(world: World) -> None:
        answer = await world.ask("PUT", f"{PATH}/carts", json.dumps(body).encode())
        assert (answer.status, answer.error) == (400, "INVALID_REQUEST")
        assert said in as_json(answer)["error"]["message"]
        assert as_json(await world.ask("GET", PATH)) == {"reducers": []}

    run(story)


def test_refusals_of_the_routes() -> None:
    async def story(world: World) -> None:
        assert (await world.ask("GET", f"{PATH}/no")).error == "NO_REDUCER"
        assert (await world.ask("DELETE", f"{PATH}/no")).error == "NO_REDUCER"
        assert (await world.ask("PUT", f"{PATH}/due", b"{}")).error == "METHOD_NOT_ALLOWED"
        assert (await world.ask("PUT", f"{PATH}/A", b"{}")).error == "INVALID_NAME"
        assert (await world.ask("POST", PATH, b"{}")).error == "METHOD_NOT_ALLOWED"
        assert (await world.ask("GET", f"{PATH}/carts/else")).error == "NO_ROUTE"
        await bind(world)
        assert (await world.ask("GET", f"{PATH}/carts/module")).error == "MODULE_NOT_FOUND"
        module = {"pattern": "m", "module": "0" * 64}
        answer = await world.ask("PUT", f"{PATH}/m", json.dumps(module).encode())
        assert answer.error == "MODULE_NOT_FOUND"
        fault = {"stream": "other", "revision": 1, "reason": "x"}
        answer = await world.ask("POST", f"{PATH}/carts/fault", json.dumps(fault).encode())
        assert answer.error == "INVALID_REQUEST"
        fault = {"stream": "carts/ann", "revision": 2, "reason": "x"}
        answer = await world.ask("POST", f"{PATH}/carts/fault", json.dumps(fault).encode())
        assert answer.error == "REDUCER_REVISION"
        tail = await fill(world, 1)
        for origin, code in (
            ("carts", "INVALID_HEADER"),
            ("carts@2", "REDUCER_REVISION"),
            ("no@1", "NO_REDUCER"),
        ):
            put = await world.ask(
                "PUT", f"{URL}/snapshot/{tail}", b"{}", stream_snapshot_origin=origin
            )
            assert put.error == code
        assert (await world.ask("DELETE", f"{PATH}/carts")).status == 204
        assert (await bind(world))["revision"] == 3  # a revision is used once

    run(story)


def test_only_so_many_reducers() -> None:
    async def story(world: World) -> None:
        for number in range(REDUCERS_MAX):
            await bind(world, f"r{number}")
        body = json.dumps({"pattern": "a", "builtin": "count"}).encode()
        assert (await world.ask("PUT", f"{PATH}/one-more", body)).error == "REDUCERS_FULL"
        await bind(world, "r0", every_records=5)

    run(story)


def test_a_module_is_stored_once_and_read_by_the_reducers_name() -> None:
    async def story(world: World) -> None:
        assert (await world.ask("PUT", "/v1/modules", b"no")).error == "INVALID_REQUEST"
        wasm = b"\0asm\1\0\0\0"
        stored = await world.ask("PUT", "/v1/modules", wasm)
        assert (stored.status, as_json(stored)["sha256"]) == (201, hashlib.sha256(wasm).hexdigest())
        assert (await world.ask("PUT", "/v1/modules", wasm)).status == 200
        digest = as_json(stored)["sha256"]
        await bind(world, "m", builtin="", module=digest)
        found = await world.ask("GET", f"{PATH}/m/module")
        assert (found.body, found.headers["content-type"]) == (wasm, "application/wasm")
        assert as_json(await world.ask("GET", "/v1/streams"))["streams"] == []
        assert (await world.get(f"_modules/{digest}", "?offset=-1")).error == "INVALID_NAME"

    run(story)


def test_due_goes_by_thresholds() -> None:
    async def story(world: World) -> None:
        await bind(world, every_records=3)

        async def due(query: str = "") -> list[tuple[str, int]]:
            page = as_json(await world.ask("GET", f"{PATH}/due{query}"))
            assert page["after"] == ""
            return [(each["stream"], each["records"]) for each in page["due"]]

        await fill(world, 1, 2)
        assert (await due(), await due("?all=1")) == ([], [("carts/ann", 2)])
        await fill(world, 3)
        assert await due() == [("carts/ann", 3)]
        assert await due("?reducer=no") == []
        await work(world, everything=False)
        await fill(world, 4, 5, 6)
        assert await due() == []  # the last publish is less than ten seconds ago
        world.service.clock += 10_000
        assert await due() == [("carts/ann", 3)]
        await bind(world, every_records=4)
        assert await due() == []
        world.service.clock += 300_000
        assert await due() == [("carts/ann", 3)]

    run(story)


def test_snapshots_of_a_retaining_reducer_trim_its_streams() -> None:
    async def story(world: World) -> None:
        await bind(world, builtin="count", retain=True)
        await bind(world, "other", builtin="count")

        async def first_kept(*names: str) -> int:
            """Append a record, let reducers work, and return the first record afterwards."""
            await fill(world, 1)
            world.service.clock += SNAPSHOT_GRACE_MS
            await work(world, *names)
            return int((await world.head("carts/ann")).headers["stream-retained-offset"][:16])

        assert [await first_kept("carts") for _ in range(4)] == [0, 0, 0, 0]
        # until then `other` had no snapshot
        assert [await first_kept() for _ in range(4)] == [3, 4, 5, 6]
        assert as_json(await state(world, "?reducer=carts"))["records"] == 8
        fault = {"stream": "carts/ann", "revision": 2, "reason": "x"}
        posted = await world.ask("POST", f"{PATH}/other/fault", json.dumps(fault).encode())
        assert as_json(posted) == {"retry_after_seconds": 60}
        assert [await first_kept("carts") for _ in range(3)] == [6, 6, 6]  # nothing while faulted
        await world.ask("DELETE", f"{PATH}/other")
        assert await first_kept() == 10

    run(story)


def test_without_retain_nothing_is_trimmed() -> None:
    async def story(world: World) -> None:
        await bind(world, builtin="count")
        for _ in range(5):
            await fill(world, 1)
            world.service.clock += SNAPSHOT_GRACE_MS
            await work(world)
        assert (await world.head("carts/ann")).headers["stream-retained-offset"][:16] == "0" * 16

    run(story)


def test_trims_of_a_retention_wait_for_each_reducer() -> None:
    async def story(world: World) -> None:
        await bind(world, builtin="count")
        await fill(world, *range(9))
        rule = b'{"snapshot": "any"}'
        assert (await world.ask("PUT", f"{URL}/retention", rule)).status == 200

        async def publish(record: int) -> int:
            made = await world.ask("PUT", f"{URL}/snapshot?record={record}", b"{}")
            assert made.status == 201, made
            world.service.clock += SNAPSHOT_GRACE_MS
            return int((await world.head("carts/ann")).headers["stream-retained-offset"][:16])

        assert [await publish(record) for record in (2, 3, 4, 5)] == [0, 0, 0, 0]
        await work(world)
        assert await publish(6) == 4

    run(story)


def test_a_new_revision_begins_again_unless_records_are_trimmed() -> None:
    async def story(world: World) -> None:
        await bind(world)
        await fill(world, {"id": "a"}, {"id": "b"})
        await work(world)
        assert (await bind(world, key="/id"))["revision"] == 2
        (reports,) = await work(world)
        assert reports.outcome.records == 2
        assert set(as_json(await state(world))) == {"a", "b"}
        await world.ask("POST", f"{URL}/retention", b'{"keep_bytes": 0}')
        await fill(world, {"id": "c"})
        await work(world)
        assert set(as_json(await state(world))) == {"a", "b", "c"}
        await bind(world, key="/no")
        await fill(world, {"id": "d"})
        (reports,) = await work(world)
        assert "a new one begins at the state of the older one" in reports.outcome.fault
        assert (await state(world)).error == "TRIMMED"

    run(story)


def test_only_records_of_committed_transactions_and_kafka_keys_count() -> None:
    async def story(world: World) -> None:
        await bind(world, pattern="kafka-like")
        await world.put("kafka-like", "application/octet-stream")
        records = [
            {"key": "a", "value": "1", "timestamp": 5},
            {"key": "a", "value": {"$base64": "/w=="}, "timestamp": 6},
            {"key": "b", "value": "text", "timestamp": 7},
            {"key": "c", "value": "x", "timestamp": 8},
            {"key": "c", "value": None, "timestamp": 9},
            {"value": "no key", "timestamp": 9},
        ]
        kind = "application/vnd.polynya.records+json"
        answer = await world.post("kafka-like", json.dumps(records).encode(), kind)
        assert answer.status in (200, 204), answer
        (reports,) = await work(world)
        assert reports.outcome.records == 6
        found = as_json(await state(world, url="/v1/stream/kafka-like"))
        assert found == {
            "a": {"record": 1, "value": {"$base64": "/w=="}},
            "b": {"record": 2, "value": "text"},
        }

    run(story)


def test_a_worker_and_a_core_compute_the_same_bytes() -> None:
    async def story(world: World) -> None:
        await bind(world, "l", pattern="**")
        await bind(world, "c", pattern="**", builtin="count")
        await bind(world, "m", pattern="carts/*", builtin="merge-patch")
        for number, value in enumerate([{"a": 1.50}, {"b": [1, None]}, None, "x", {"c": {}}]):
            await fill(world, value, record_key=f"k{number % 3}")
            await fill(world, value)
        names = ("l", "c", "m")
        before = {name: (await state(world, f"?reducer={name}")).body for name in names}
        await work(world)
        for mark in await snapshots(world):
            name = mark["origin"].partition("@")[0]
            digest = f"sha-256={hashlib.sha256(before[name]).hexdigest()}"
            assert mark["digest"] == digest, name
            assert (await state(world, f"?reducer={name}")).body == before[name]

    run(story)


def test_verify_computes_the_newest_snapshot_again() -> None:
    async def story(world: World) -> None:
        await bind(world)
        await fill(world, *range(5), record_key="a")
        await fill(world, 0, name="carts/bob", record_key="b")
        url, ask = f"{PATH}/carts/verify", b'{"stream": "carts/ann"}'
        assert (await world.ask("POST", url, ask)).error == "NO_SNAPSHOT"
        await work(world)
        await fill(world, 6, record_key="c")
        found = as_json(await world.ask("POST", url, ask))
        assert (found["equal"], found["from_record"], found["offset"][:16]) == (
            True,
            0,
            f"{5:016d}",
        )
        assert await verified(world) == [("carts/ann", True), ("carts/bob", True)]
        assert (await world.ask("POST", url, b'{"stream": "other"}')).error == "INVALID_REQUEST"
        assert (await world.ask("POST", url, b'{"stream": "carts/no"}')).error == "NOT_FOUND"

    run(story)


async def verified(world: World) -> list[tuple[str, bool]]:
    worker = Worker(Loop(world), (), lambda _: None)
    found = await asyncio.to_thread(lambda: [*worker.verify("carts", ())])
    return [(stream, each.published == each.computed) for stream, each in found if each]


@pytest.mark.parametrize("by_worker", [False, True])
def test_verify_stops_a_reducer_whose_state_was_a_lie(by_worker: bool) -> None:
    async def story(world: World) -> None:
        await bind(world)
        tail = await fill(world, 1, record_key="a")
        origin = {"stream_snapshot_origin": "carts@1", "content_type": "application/json"}
        lie = await world.ask("PUT", f"{URL}/snapshot/{tail}", b"{}", **origin)
        assert lie.status == 201
        if by_worker:
            assert await verified(world) == [("carts/ann", False)]
        else:
            ask = b'{"stream": "carts/ann"}'
            found = as_json(await world.ask("POST", f"{PATH}/carts/verify", ask))
            assert found["equal"] is False
        stopped = as_json(await world.ask("GET", f"{PATH}/carts"))["stopped"]
        assert "nondeterministic" in stopped and "carts/ann" in stopped
        assert [mark["bytes"] for mark in await snapshots(world)] == [2]  # the first one stays

    run(story)


def test_verify_of_a_trimmed_stream_begins_at_the_older_snapshot() -> None:
    async def story(world: World) -> None:
        await bind(world, builtin="count", retain=True)
        for _ in range(4):
            await fill(world, 1, 2)
            world.service.clock += SNAPSHOT_GRACE_MS
            await work(world)
        assert (await world.head("carts/ann")).headers["stream-retained-offset"][:16] != "0" * 16
        found = as_json(await world.ask("POST", f"{PATH}/carts/verify", b'{"stream": "carts/ann"}'))
        assert found["equal"] and found["from_record"] > 0
        assert await verified(world) == [("carts/ann", True)]

    run(story)


@pytest.mark.process
def test_a_module_is_run_by_the_worker() -> None:
    async def story(world: World) -> None:
        module = compiled(COUNTING)
        stored = as_json(await world.ask("PUT", "/v1/modules", module))
        await bind(world, builtin="", module=stored["sha256"], pattern="raw/*")
        for name in ("raw/a", "raw/b"):
            await world.put(name, "text/plain")
            await world.post(name, b"hello", "text/plain")
            await world.post(name, b"you", "text/plain")
        reports = await work(world)
        assert [each.outcome.fault for each in reports] == ["", ""]
        url = "/v1/stream/raw/a"
        (mark,) = await snapshots(world, url)
        body = await world.ask("GET", f"{url}/snapshot/{mark['offset']}?origin=carts")
        assert int.from_bytes(body.body, "little") == 8
        await world.post("raw/a", b"!", "text/plain")
        await work(world)
        newest = (await snapshots(world, url))[-1]
        body = await world.ask("GET", f"{url}/snapshot/{newest['offset']}?origin=carts")
        assert int.from_bytes(body.body, "little") == 9
        assert await verified(world) == [("raw/a", True), ("raw/b", True)]
        assert (await state(world, url=url)).error == "NO_WORKER"
        verify = b'{"stream": "raw/a"}'
        assert (await world.ask("POST", f"{PATH}/carts/verify", verify)).error == "NO_WORKER"
        world.service.reducers.runs_modules = True
        await world.post("raw/a", b"more", "text/plain")
        assert (await state(world, url=url)).body == (13).to_bytes(4, "little")
        assert as_json(await world.ask("POST", f"{PATH}/carts/verify", verify))["equal"]

    run(story)


def test_snapshots_of_a_removed_reducer_are_deleted_where_nothing_needs_them() -> None:
    async def story(world: World) -> None:
        await bind(world)
        for name in ("carts/ann", "carts/bob"):
            await fill(world, 1, 2, name=name, record_key="a")
        await work(world)
        await bind(world, "other", builtin="count")
        await work(world)
        await world.ask("POST", f"{URL}/retention", b'{"keep_bytes": 0}')
        await world.ask("DELETE", f"{PATH}/carts")
        worker = Worker(Loop(world), (), lambda _: None)
        found = await asyncio.to_thread(worker.drop_snapshots, "carts", "carts/*")
        assert found == (1, 1)
        assert [mark["origin"] for mark in await snapshots(world)] == ["carts@1", "other@2"]
        left = await snapshots(world, "/v1/stream/carts/bob")
        assert [mark["origin"] for mark in left] == ["other@2"]

    run(story)


def test_a_long_run_publishes_in_between() -> None:
    async def story(world: World) -> None:
        await bind(world, builtin="count")
        value = {"pad": "x" * 500_000}
        for _ in range(6):
            await fill(world, value)
        reports: list[RunReport] = []
        times = iter(range(0, 10_000, 31))
        worker = Worker(Loop(world), (), reports.append, now=lambda: next(times))
        await asyncio.to_thread(worker.round, everything=True)
        records = [int(mark["offset"][:16]) for mark in await snapshots(world)]
        assert len(records) > 1 and records[-1] == 6

    run(story)


def test_reducers_are_for_admins_and_states_for_readers(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("admin", "admin")
        gate.token("writer", "append,create,read,snapshot:carts/")
        gate.token("reader", "read:carts/")
        gate.token("stranger", "read:other/")

    async def story(world: World, gate: Gate) -> None:
        mount(world)
        by = {name: gate.bearer(name) for name in ("admin", "writer", "reader", "stranger")}
        body = b'{"pattern": "carts/*", "builtin": "count"}'
        for name in ("writer", "reader"):
            for method, path, sent in (
                ("PUT", f"{PATH}/carts", body),
                ("GET", PATH, None),
                ("GET", f"{PATH}/due", None),
                ("PUT", "/v1/modules", b"\0asm"),
                ("POST", f"{PATH}/carts/verify", b"{}"),
                ("POST", f"{PATH}/carts/fault", b"{}"),
                ("DELETE", f"{PATH}/carts", None),
            ):
                assert (await world.ask(method, path, sent, **by[name])).error == "FORBIDDEN"
        assert (await world.ask("PUT", f"{PATH}/carts", body, **by["admin"])).status == 201
        await world.put("carts/ann", **by["writer"])
        await world.post("carts/ann", b"[1]", **by["writer"])
        assert as_json(await world.ask("GET", f"{URL}/state", **by["reader"]))["records"] == 1
        assert (await world.ask("GET", f"{URL}/state", **by["stranger"])).error == "FORBIDDEN"
        assert (await world.ask("GET", f"{URL}/state")).error == "UNAUTHORIZED"
        module = await world.ask("GET", f"{PATH}/carts/module", **by["reader"])
        assert module.error == "MODULE_NOT_FOUND"
        tail = (await world.ask("HEAD", URL, **by["reader"])).headers["stream-next-offset"]
        origin = {"stream_snapshot_origin": "carts@1"}
        snapshot_url = f"{URL}/snapshot/{tail}"
        refused = await world.ask("PUT", snapshot_url, b"", **by["writer"], **origin)
        assert refused.error == "FORBIDDEN"
        assert (await world.ask("PUT", snapshot_url, b"", **by["writer"])).status == 201
        assert (await world.ask("PUT", snapshot_url, b"", **by["admin"], **origin)).status == 201

    guarded(tmp_path, story, setup=setup)
