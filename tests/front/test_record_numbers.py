"""Reads by the numbers of records: `record`, `tail_records`, `max_records`, `record_view`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
from front_world import Answer, World, play
from test_diskless_live import diskless
from test_live import control

from polynya.base.names import canonical_name

JSON, TEXT = "application/json", "text/plain"
RECORDS = "application/vnd.polynya.records+json"


async def replicated(world: World, content_type: str) -> None:
    await world.put("s", content_type)
    await fill(world)


async def leased(world: World, content_type: str) -> None:
    await world.put("s", content_type, stream_profile="leased")
    await fill(world)


async def forked(world: World, content_type: str) -> None:
    await world.put("source", content_type)
    for number in range(4):
        await world.post("source", b"%d" % number, content_type)
    await world.put("s", content_type, stream_forked_from="/v1/stream/source")
    for number in range(4, 7):
        await world.post("s", b"%d" % number, content_type)


async def diskless_one(world: World, content_type: str) -> None:
    packed = await diskless(world, "s", content_type)
    values = [b"%d" % number for number in range(7)]
    if content_type == JSON:
        await packed.append(
            canonical_name("s"), *(value + b"," for value in values), content_type=JSON
        )
    else:
        await packed.append(canonical_name("s"), *values)


async def fill(world: World) -> None:
    """Append seven records in three ways: alone, as an array, and with keys."""
    content_type = (await world.head("s")).headers["content-type"]
    if content_type == JSON:
        await world.post("s", b"[0,1,2]")
    else:
        for number in range(3):
            await world.post("s", b"%d" % number, content_type)
    whole = [
        {"key": "k", "value": number if content_type == JSON else str(number)}
        for number in (3, 4, 5)
    ]
    await world.post("s", json.dumps(whole).encode(), RECORDS)
    await world.post("s", b"6", content_type)


KINDS: dict[str, Callable[[World, str], Awaitable[None]]] = {
    "replicated": replicated,
    "leased": leased,
    "forked": forked,
    "diskless": diskless_one,
}


def values(page: Answer) -> list[int]:
    assert page.status == 200, page
    body = (
        page.body
        if page.headers["content-type"] == JSON
        else b"[%b]" % b",".join(b"%c" % each for each in page.body)
    )
    return list(json.loads(body))


def numbers(page: Answer) -> tuple[int, int]:
    return int(page.headers["stream-record-start"]), int(page.headers["stream-record-next"])


@pytest.mark.parametrize("content_type", [JSON, TEXT])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_stream_reads_by_numbers(kind: str, content_type: str) -> None:
    async def story(world: World) -> None:
        await KINDS[kind](world, content_type)
        for record in range(7):
            page = await world.get("s", f"?record={record}")
            assert (values(page), numbers(page)) == ([*range(record, 7)], (record, 7))
            last = await world.get("s", f"?tail_records={7 - record}")
            assert (values(last), numbers(last)) == ([*range(record, 7)], (record, 7))
            assert last.headers["cache-control"] == "no-cache"
        everything = await world.get("s", "?tail_records=100")
        assert numbers(everything) == (0, 7)
        tail = await world.get("s", "?record=now")
        assert numbers(tail) == (7, 7)
        behind = await world.get("s", "?record=8")
        assert behind.status in (400, 416)
        for most in (1, 2, 3, 5, 7, 8):
            found, query = [], f"?record=0&max_records={most}"
            while True:
                page = await world.get("s", query)
                got = values(page)
                assert len(got) <= most
                assert numbers(page) == (len(found), len(found) + len(got))
                found += got
                if "stream-up-to-date" in page.headers:
                    break
                assert len(got) == most, "no page ends early"
                query = f"?offset={page.headers['stream-next-offset']}&max_records={most}"
            assert found == [*range(7)]

    play(story)


@pytest.mark.parametrize("content_type", [JSON, TEXT])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_records_are_cut_by_their_number_too(kind: str, content_type: str) -> None:
    async def story(world: World) -> None:
        await KINDS[kind](world, content_type)
        for view in ({"query": "&record_view=records"}, {"accept": RECORDS}):
            more = view.pop("query", "")
            for record in range(7):
                page = await world.get("s", f"?record={record}&max_records=2{more}", **view)
                assert page.headers["content-type"] == RECORDS
                offsets = [each["offset"] for each in json.loads(page.body)]
                assert offsets == [*range(record, min(record + 2, 7))]
                assert numbers(page) == (record, min(record + 2, 7))

    play(story)


def test_a_read_without_numbers_answers_as_before() -> None:
    async def story(world: World) -> None:
        await replicated(world, JSON)
        page = await world.get("s")
        assert not {"stream-record-start", "stream-record-next"} & page.headers.keys()
        assert not {"stream-record-start"} & (await world.head("s")).headers.keys()

    play(story)


def test_live_reads_begin_at_a_number() -> None:
    async def story(world: World) -> None:
        await replicated(world, JSON)
        page = await world.get("s", "?live=long-poll&tail_records=3&max_records=2")
        assert (values(page), numbers(page)) == ([4, 5], (4, 6))
        empty = await world.get("s", "?live=long-poll&record=7&timeout_ms=1")
        assert (empty.status, numbers(empty)) == (204, (7, 7))
        for query in ("record=5", "tail_records=2"):
            reader = await world.sse("s", f"?live=sse&{query}")
            assert b"data:[5,6]\n" in await reader.chunk()
            reader.close()
        reader = await world.sse("s", "?live=sse&tail_records=1&record_view=records")
        assert b'"offset":6' in await reader.chunk()
        await world.post("s", b"7")
        assert control(await reader.chunk())
        cut = await world.get("s", "?live=sse&record=0&max_records=1")
        assert (cut.status, cut.error) == (400, "NOT_SUPPORTED")

    play(story)


def test_trimmed_records_are_not_counted_from_the_tail() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        for number in range(4):
            await world.post("s", b"%d" % number)
        await world.ask("PUT", "/v1/stream/s/retention/2_0")
        trimmed = await world.get("s", "?record=1")
        assert (trimmed.status, trimmed.error) == (410, "TRIMMED")
        page = await world.get("s", "?tail_records=4")
        assert (values(page), numbers(page)) == ([2, 3], (2, 4))

    play(story)


@pytest.mark.parametrize(
    "query",
    [
        "record=0&offset=-1",
        "record=0&tail_records=1",
        "tail_records=1&from_time=1",
        "record=-1",
        "record=x",
        "record=1_0",
        "record=" + "9" * 19,
        "tail_records=0",
        "tail_records=-1",
        "record=0&max_records=0",
        "record=0&max_records=x",
        "record_view=value",
    ],
)
def test_what_makes_no_sense_is_refused(query: str) -> None:
    async def story(world: World) -> None:
        await replicated(world, JSON)
        for live in ("", "&live=long-poll"):
            refused = await world.get("s", f"?{query}{live}")
            assert (refused.status, refused.error) == (400, "INVALID_PARAMETER")

    play(story)


def test_other_methods_refuse_the_parameters_of_reads() -> None:
    async def story(world: World) -> None:
        await replicated(world, JSON)
        for method in ("PUT", "POST", "HEAD", "DELETE"):
            for name in ("record", "tail_records", "max_records", "record_view"):
                refused = await world.ask(method, f"/v1/stream/s?{name}=1", b"1")
                assert refused.status == 400, (method, name)
        assert (await world.head("s")).headers["stream-next-offset"].startswith("0" * 15 + "7_")

    play(story)


def test_a_large_record_in_steps_counts_once() -> None:
    """A raw record may be read in steps; a read by numbers has whole records."""

    async def story(world: World) -> None:
        await world.put("s", TEXT)
        for size in (200_000, 5, 100_000):
            await world.post("s", b"x" * size, TEXT)
        page = await world.get("s", "?record=0&max_bytes=70000")
        assert (len(page.body), numbers(page)) == (200_000, (0, 1))
        page = await world.get("s", "?record=1&max_records=1")
        assert (len(page.body), numbers(page)) == (5, (1, 2))

    play(story)
