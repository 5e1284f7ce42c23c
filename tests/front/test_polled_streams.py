"""Long-polls of many streams: pages that go on from one another by a cursor."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from front_world import Answer, Wire, World, play, request

from polynya.front.http.live import answers
from polynya.local.api import LiveEvent


async def poll(world: World, query: str, cursor: str = "", wait_ms: int = 30_000) -> dict[str, Any]:
    """The page of a long-poll, from a cursor if there is one."""
    return page_of(await world.ask("GET", target(query, cursor, wait_ms)))


def target(query: str, cursor: str = "", wait_ms: int = 30_000) -> str:
    goes_on = f"&cursor={cursor}" if cursor else ""
    return f"/v1/live?live=long-poll&timeout_ms={wait_ms}&{query}{goes_on}"


def page_of(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    page: dict[str, Any] = json.loads(answer.body)
    return page


def data_of(*pages: dict[str, Any]) -> dict[str, list[Any]]:
    """The records of pages, by stream."""
    found: dict[str, list[Any]] = {}
    for event in (event for page in pages for event in page["events"] if event["event"] == "data"):
        found.setdefault(event["stream"], []).extend(event["data"])
    return found


async def waiting(world: World, query: str, cursor: str) -> Wire:
    """Return the connection of a poll that waits for news."""
    wire = await world.wire()
    wire.send(request("GET", target(query, cursor)))
    await until_waiting(world)
    return wire


async def until_waiting(world: World) -> None:
    """Wait until a reader is open and has been told of all its streams."""
    readers = world.front.context.readers
    while not readers.live or any(reader._turns._tasks for reader in readers.live):  # type: ignore[attr-defined]
        await asyncio.sleep(0)


def test_a_page_has_what_there_is_and_the_next_one_waits_for_more() -> None:
    async def story(world: World) -> None:
        for name in ("a", "b"):
            await world.put(name)
            await world.post(name, b'[1, {"x":\n 2}]')
        first = await poll(world, "stream=a&stream=b@1_2")
        assert first["upToDate"] and data_of(first) == {"a": [1, {"x": 2}], "b": [{"x": 2}]}
        assert first["cursor"] == first["events"][-1]["id"]
        began = [event for event in first["events"] if event["event"] == "control"]
        assert [event["contentType"] for event in began] == ["application/json"] * 2
        wire = await waiting(world, "stream=a&stream=b", first["cursor"])
        await world.post("b", b"3")
        second = page_of(await wire.answer())
        assert data_of(second) == {"b": [3]}
        assert [event["event"] for event in second["events"]] == ["data"]
        again = await poll(world, "stream=a&stream=b", first["cursor"])  # the answer was lost
        assert data_of(again) == {"b": [3]}
        wire.send(request("GET", target("stream=a&stream=b", again["cursor"], 1)))  # is kept alive
        third = page_of(await wire.answer())
        assert third["events"] == [] and third["upToDate"]
        await world.post("a", b"4")
        assert data_of(await poll(world, "stream=a&stream=b", third["cursor"])) == {"a": [4]}

    play(story)


def test_streams_that_are_created_between_two_pages_begin_at_their_start() -> None:
    async def story(world: World) -> None:
        await world.put("runs/1")
        await world.post("runs/1", b"0")
        query = "match=runs/*&offset=now"
        first = await poll(world, query)
        assert data_of(first) == {} and first["events"][0]["stream"] == "runs/1"
        await world.put("runs/2")
        await world.post("runs/2", b"[1,2]")
        second = await poll(world, query, first["cursor"])
        assert data_of(second) == {"runs/2": [1, 2]}
        wire = await waiting(world, query, second["cursor"])
        await world.put("runs/3")
        third = page_of(await wire.answer())
        assert {event["stream"] for event in third["events"]} == {"runs/3"}
        await world.post("runs/3", b"3")
        assert data_of(await poll(world, query, third["cursor"])) == {"runs/3": [3]}

    play(story)


@pytest.mark.parametrize("begin", ["-1", "now"])
def test_a_listed_stream_that_is_missing_is_told_once_and_read_when_it_is_created(
    begin: str,
) -> None:
    async def story(world: World) -> None:
        query = f"stream=a&offset={begin}"
        first = await poll(world, query)
        assert [event["error"]["code"] for event in first["events"]] == ["NOT_FOUND"]
        second = await poll(world, query, first["cursor"], 1)  # no news: it waits
        await world.put("a")
        await world.post("a", b"1")
        assert data_of(await poll(world, query, second["cursor"])) == {"a": [1]}

    play(story)


def test_a_full_page_ends_and_the_next_ones_have_the_rest_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "LIVE_POLL_BYTES", 1000)

    async def story(world: World) -> None:
        names = [f"s{number}" for number in range(10)]
        for name in names:
            await world.put(name)
            await world.post(name, json.dumps([name, "x" * 300]).encode())
        pages = [await poll(world, "prefix=s")]
        while len(data_of(*pages)) < 10:
            pages.append(await poll(world, "prefix=s", pages[-1]["cursor"]))
        assert len(pages) > 3 and all(len(page["events"]) < 10 for page in pages)
        assert data_of(*pages) == {name: [name, "x" * 300] for name in names}

    play(story)


def test_what_a_full_page_has_not_told_yet_begins_at_the_tail_if_it_was_asked_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "LIVE_POLL_BYTES", 300)

    async def story(world: World) -> None:
        names = [f"s{number}" for number in range(10)]
        for name in names:
            await world.put(name)
            await world.post(name, b"0")
        pages = [await poll(world, "prefix=s&offset=now")]
        assert not pages[0]["upToDate"]
        while len({event["stream"] for page in pages for event in page["events"]}) < 10:
            pages.append(await poll(world, "prefix=s&offset=now", pages[-1]["cursor"]))
        for name in names:
            await world.post(name, b"1")
        while len(data_of(*pages)) < 10:
            pages.append(await poll(world, "prefix=s&offset=now", pages[-1]["cursor"]))
        assert data_of(*pages) == {name: [1] for name in names}

    play(story)


def test_a_confirmed_tail_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower's readers hear later that they are at the leader's tail; a page that ended for it
    would be a poll every tenth of a second."""

    async def story(world: World) -> None:
        await world.put("a")
        first = await poll(world, "stream=a")
        wire = await waiting(world, "stream=a", first["cursor"])
        (reader,) = world.front.context.readers.live
        (strand,) = reader._strands.values()  # type: ignore[attr-defined]
        info = await strand.stream.info()
        strand.confirm(info)
        await asyncio.sleep(0)
        assert world.front.context.readers.live
        await world.post("a", b"1")
        second = page_of(await wire.answer())
        assert [event["event"] for event in second["events"]] == ["control", "data"]

    play(story)


def test_events_after_the_end_of_a_page_are_on_the_next_one() -> None:
    async def story(world: World) -> None:
        await world.put("a")
        first = await poll(world, "stream=a")
        wire = await waiting(world, "stream=a", first["cursor"])
        (reader,) = world.front.context.readers.live
        reader.finish()
        (strand,) = reader._strands.values()  # type: ignore[attr-defined]
        event = LiveEvent(strand.uid, 0, 0, 1, 2, 0, b"1,")
        strand.live(event)
        second = page_of(await wire.answer())
        assert second["events"] == [] and second["cursor"] != first["cursor"]
        await world.post("a", b"1")
        assert data_of(await poll(world, "stream=a", second["cursor"])) == {"a": [1]}

    play(story)


def test_a_client_that_polls_has_two_cursors_at_most_and_an_old_one_is_gone() -> None:
    async def story(world: World) -> None:
        await world.put("a")
        used = [(await poll(world, "stream=a"))["cursor"]]
        cursors = world.front.context.readers.many.cursors
        for number in range(5):
            await world.post("a", b"%d" % number)
            used.append((await poll(world, "stream=a", used[-1]))["cursor"])
            assert len(cursors) <= 2
        gone = await world.ask("GET", target("stream=a", used[0]))
        assert gone.status == 410 and b"CURSOR_GONE" in gone.body

    play(story)


def test_a_client_that_leaves_leaves_nothing_behind() -> None:
    async def story(world: World) -> None:
        await world.put("a")
        first = await poll(world, "stream=a")
        wire = await waiting(world, "stream=a", first["cursor"])
        wire.close()
        while world.front.context.readers.live:
            await asyncio.sleep(0)
        assert world.front.context.readers.many.followed == 0

    play(story)
