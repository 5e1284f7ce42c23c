"""Streams of every kind as the source of a reducer: Kafka transactions, forks, trims, new incarnations."""

from __future__ import annotations

import json
from typing import Any

from front_world import World
from reducer_world import bind, mount, work
from test_reducers_over_http import as_json, fill, run, snapshots, state
from test_transactions_over_http import NAME as TOPIC
from test_transactions_over_http import SEEN, write_transactions

from polynya.base.names import group_of
from polynya.front.http.reducers.routes import PATH
from polynya.stream.features.compaction.progress import note_rewrite

TOPIC_URL = f"/v1/stream/{TOPIC}"


def test_records_of_committed_transactions_alone_count() -> None:
    async def story(world: World) -> None:
        planted = await write_transactions(world)
        await bind(world, pattern="**", builtin="count")
        assert as_json(await state(world, url=TOPIC_URL))["records"] == len(SEEN)
        (done,) = await work(world)
        assert (done.outcome.fault, done.outcome.records) == ("", len(SEEN))
        (mark,) = await snapshots(world, TOPIC_URL)
        assert mark["offset"][:16] == f"{6:016d}", "before the open transaction"
        await planted.end(6)
        (done,) = await work(world)
        assert done.outcome.records == 2
        assert as_json(await state(world, url=TOPIC_URL))["records"] == len(SEEN) + 2

    run(story)


def test_a_stream_that_ends_with_aborted_records_is_due_once() -> None:
    async def story(world: World) -> None:
        planted = await write_transactions(world)
        await planted.end(6)
        await bind(world, pattern="**", builtin="count")
        await work(world)
        await planted.write(b"7", producer=107)
        await planted.end(107)
        (done,) = await work(world)
        assert (done.outcome.records, done.outcome.fault) == (0, "")
        assert await work(world) == []

    run(story)


def test_a_fork_goes_on_from_a_copy_of_its_sources_state() -> None:
    async def story(world: World) -> None:
        await bind(world, builtin="count")
        await fill(world, 1, 2, 3)
        await work(world)
        source = "/v1/stream/carts/ann"
        made = await world.put("carts/fork", stream_forked_from=source)
        assert made.status == 201, made
        await fill(world, 4, name="carts/fork")
        url = "/v1/stream/carts/fork"
        (copied,) = await snapshots(world, url)
        assert copied["origin"] == "carts@1"
        assert as_json(await state(world, url=url))["records"] == 4
        (done,) = await work(world)
        assert (done.stream, done.outcome.records) == ("carts/fork", 1)

    run(story)


def test_records_that_are_trimmed_before_the_reducer_had_them_are_a_fault() -> None:
    async def story(world: World) -> None:
        await fill(world, 1, 2, 3)
        await world.ask("POST", "/v1/stream/carts/ann/retention", b'{"keep_bytes": 2}')
        await bind(world, builtin="count")
        (done,) = await work(world)
        assert "trimmed before the reducer had them" in done.outcome.fault
        refused = await state(world)
        assert (refused.status, refused.error) == (410, "TRIMMED")

    run(story)


def test_a_stream_that_was_created_again_begins_again() -> None:
    async def story(world: World) -> None:
        await bind(world, builtin="count")
        await fill(world, 1, 2, 3)
        await work(world)
        await world.ask("DELETE", "/v1/stream/carts/ann")
        await fill(world, 1)
        (done,) = await work(world)
        assert done.outcome.records == 1
        assert as_json(await state(world))["records"] == 1

    run(story)


def test_a_record_of_the_largest_values_passes() -> None:
    async def story(world: World) -> None:
        await bind(world, builtin="merge-patch")
        big: dict[str, Any] = {"pad": "x" * (3 << 20), "n": 1}
        await fill(world, big)
        await fill(world, {"n": 2})
        (done,) = await work(world)
        assert (done.outcome.records, done.outcome.fault) == (2, "")
        assert json.loads((await state(world, "?key=n")).body) == 2

    run(story)


def test_closed_and_text_streams_have_states() -> None:
    async def story(world: World) -> None:
        mount(world)
        await bind(world, "n", pattern="logs/*", builtin="count")
        await world.put("logs/a", "text/plain")
        await world.post("logs/a", b"one", "text/plain")
        await world.post("logs/a", b"two", "text/plain", stream_closed="true")
        (done,) = await work(world)
        assert done.outcome.records == 2
        found = as_json(await state(world, url="/v1/stream/logs/a"))
        assert (found["records"], found["bytes"]) == (2, 6)

    run(story)


def test_a_stream_that_lost_records_by_compaction_is_for_latest_alone() -> None:
    async def story(world: World) -> None:
        for name, kind in (("l", "latest"), ("n", "count")):
            await bind(world, name, builtin=kind)
        await fill(world, 1, 2, record_key="a")
        await work(world)
        name = "carts/ann"
        machine = world.service.local.machines[group_of(name, 2)]
        note_rewrite(machine.directory.streams[name])
        await fill(world, 3, record_key="a")
        (done,) = await work(world)
        assert (done.reducer, done.outcome.fault) == ("l", "")
        (fault,) = as_json(await world.ask("GET", f"{PATH}/n"))["faults"]
        assert "key compaction" in fault["reason"]
        assert (await state(world, "?reducer=n")).error == "REDUCER_FAULT"
        assert as_json(await state(world, "?reducer=l&key=a"))["value"] == 3
        verify = b'{"stream": "carts/ann"}'
        answer = await world.ask("POST", f"{PATH}/n/verify", verify)
        assert answer.error == "REDUCER_FAULT"
        assert as_json(await world.ask("POST", f"{PATH}/l/verify", verify))["equal"]
        tail = (await world.head(name)).headers["stream-next-offset"]
        put = await world.ask(
            "PUT", f"/v1/stream/{name}/snapshot/{tail}", b"1", stream_snapshot_origin="n@2"
        )
        assert put.error == "REDUCER_FAULT"

    run(story)
