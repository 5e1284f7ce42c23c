"""Readers of many streams between two long-polls: parked, so that the next one opens nothing."""

from __future__ import annotations

import gc
import json
import random
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from front_world import World, play
from test_authorizer import Gate, guarded
from test_polled_streams import data_of, page_of, poll, target, waiting

from polynya.base.limits import LIVE_PARKED_SECONDS
from polynya.front.http.live import answers, matching
from polynya.service.live import parked
from polynya.service.live.cursors import CursorQuery

QUERY = "match=many/*"


def opened(world: World, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls with which a reader opens streams, from now on."""
    calls: Counter[str] = Counter()
    service, reads = world.service, world.service.local.streams
    for owner, name in ((service, "list_streams"), (service, "open"), (reads, "attach")):
        real = getattr(owner, name)

        def counted(*args: Any, _name: str = name, _real: Any = real, **named: Any) -> Any:
            calls[_name] += 1
            return _real(*args, **named)

        monkeypatch.setattr(owner, name, counted)
    return calls


async def filled(world: World, count: int) -> list[str]:
    names = [f"many/{number:02}" for number in range(count)]
    for name in names:
        await world.put(name)
    return names


def attached(world: World) -> int:
    return len(world.service.local.feeds)


def shared(world: World) -> Any:
    return world.front.context.readers.many


def pass_time(world: World, seconds: int) -> None:
    world.front.sweep(world.front.context.ticks.now + seconds)


def test_the_next_poll_opens_no_stream_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        names = await filled(world, 20)
        page = await poll(world, QUERY)
        assert attached(world) == 20
        calls = opened(world, monkeypatch)
        for number, name in enumerate(names):
            if number % 2:
                wire = await waiting(world, QUERY, page["cursor"])
                await world.post(name, b"1")
                page = page_of(await wire.answer())
            else:  # while no poll waits
                await world.post(name, b"1")
                page = await poll(world, QUERY, page["cursor"])
            assert data_of(page) == {name: [1]} and page["upToDate"]
        assert calls == Counter(open=20), "the writers' own"
        pass_time(world, LIVE_PARKED_SECONDS)
        assert attached(world) == 0
        await poll(world, QUERY, page["cursor"], 1)
        assert calls["attach"] == 20 and calls["list_streams"]

    play(story)


def test_what_happens_between_two_polls_is_on_the_next_page_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        await filled(world, 4)
        first = await poll(world, QUERY)
        calls = opened(world, monkeypatch)
        await world.post("many/00", b"[1,2]")
        await world.post("many/00", b"3")
        await world.post("many/01", b"4", stream_closed="true")
        await world.ask("DELETE", "/v1/stream/many/02")
        await world.ask("DELETE", "/v1/stream/many/03")
        await world.put("many/03")
        await world.post("many/03", b"5")
        await world.put("many/04")
        await world.post("many/04", b"6")
        page = await poll(world, QUERY, first["cursor"])
        pages = [page]
        while len(data_of(*pages)) < 4:  # a new stream is heard of a little later
            pages.append(await poll(world, QUERY, pages[-1]["cursor"]))
        events = [event for page in pages for event in page["events"]]
        assert data_of(*pages) == {
            "many/00": [1, 2, 3],
            "many/01": [4],
            "many/03": [5],
            "many/04": [6],
        }
        assert [event["stream"] for event in events if "streamClosed" in event] == ["many/01"]
        gone = {event["stream"] for event in events if "streamDeleted" in event}
        assert gone == {"many/02", "many/03"}
        assert calls["list_streams"] == 0
        last = await poll(world, QUERY, pages[-1]["cursor"], 1)
        assert last["events"] == []

    play(story)


def test_a_client_that_goes_back_gets_again_what_came_after_that_event() -> None:
    async def story(world: World) -> None:
        await filled(world, 3)
        first = await poll(world, QUERY)
        for value in (b"1", b"2"):
            await world.post("many/00", value)
            await world.post("many/01", value)
        await world.ask("DELETE", "/v1/stream/many/02")
        second = await poll(world, QUERY, first["cursor"])
        assert len(second["events"]) > 2
        for event in reversed(second["events"][:-1]):
            handled = second["events"][: second["events"].index(event) + 1]
            page = await poll(world, QUERY, event["id"])
            both = {"events": handled}, page
            assert data_of(*both) == {"many/00": [1, 2], "many/01": [1, 2]}
            deletions = [
                each for part in both for each in part["events"] if "streamDeleted" in each
            ]
            assert [each["stream"] for each in deletions] == ["many/02"]

    play(story)


@pytest.mark.parametrize(
    "query", ["match=many/0*", "prefix=many/&offset=now", "stream=many/00", QUERY + "&stream=x"]
)
def test_another_selection_opens_its_own_streams_and_leaves_nothing(query: str) -> None:
    async def story(world: World) -> None:
        await filled(world, 3)
        first = await poll(world, QUERY)
        assert len(shared(world).parked) == 1
        await world.post("many/00", b"1")
        other = query if "0*" not in query else "match=*/00"
        page = await poll(world, other, first["cursor"])
        assert data_of(page) == {"many/00": [1]}
        pass_time(world, LIVE_PARKED_SECONDS)
        assert (len(shared(world).parked), shared(world).followed, attached(world)) == (0, 0, 0)

    play(story)


def test_a_caller_with_other_rights_gets_its_own_streams(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("root", "admin")
        gate.token("some", "read:many/a/")

    async def story(world: World, gate: Gate) -> None:
        root, some = gate.bearer("root"), gate.bearer("some")
        for name in ("many/a/1", "many/b/1"):
            await world.put(name, **root)
        url = target("match=many/**", "", 1)
        whole = page_of(await world.ask("GET", url, **root))
        for name in ("many/a/1", "many/b/1"):
            await world.post(name, b"7", **root)
        url = target("match=many/**", whole["cursor"], 1000)
        assert data_of(page_of(await world.ask("GET", url, **some))) == {"many/a/1": [7]}
        again = page_of(await world.ask("GET", target("match=many/**", "", 1), **some))
        gate.revoke("some")
        refused = await world.ask("GET", target("match=many/**", again["cursor"], 1), **some)
        assert refused.status == 401

    guarded(tmp_path, story, setup=setup)


def test_parked_readers_are_few_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked, "LIVE_PARKED_MAX", 3)
    monkeypatch.setattr(parked, "LIVE_PARKED_STREAMS_MAX", 10)

    async def story(world: World) -> None:
        await filled(world, 4)
        many = shared(world)
        cursors = []
        for _ in range(5):
            cursors.append((await poll(world, QUERY))["cursor"])
            assert many.parked.streams <= 10 and many.followed == many.parked.streams
        assert (len(many.parked), many.parked.streams, attached(world)) == (2, 8, 8)
        for _ in range(5):
            await poll(world, "stream=many/00")
        assert (len(many.parked), many.parked.streams) == (3, 3)
        await world.post("many/00", b"1")
        for cursor in cursors:  # they only lost the short way
            assert data_of(await poll(world, QUERY, cursor)) == {"many/00": [1]}

    play(story)


def test_readers_that_read_are_followed_rather_than_parked_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matching, "LIVE_STREAMS_PER_CORE_MAX", 6)

    async def story(world: World) -> None:
        await filled(world, 4)
        await poll(world, QUERY)
        await poll(world, QUERY)
        assert shared(world).followed == 4 and len(shared(world).parked) == 1

    play(story)


def test_a_parked_reader_ends_with_its_front_its_cursor_and_its_lifetime() -> None:
    async def story(world: World) -> None:
        await filled(world, 3)
        many = shared(world)
        page = await poll(world, QUERY)
        reader = weakref.ref(many.parked._readers[page["cursor"].partition(".")[0]][0])
        pass_time(world, LIVE_PARKED_SECONDS - 1)
        assert attached(world) == 3
        pass_time(world, 1)
        assert attached(world) == 0
        gc.collect()
        assert reader() is None, "a kept cursor has no reader"
        page = await poll(world, QUERY, page["cursor"], 1)
        for _ in range(30):  # a client that always polls is opened again, as an event stream is
            pass_time(world, LIVE_PARKED_SECONDS - 1)
            page = await poll(world, QUERY, page["cursor"], 1)
            if not len(many.parked):
                break
        assert attached(world) == 0
        page = await poll(world, QUERY, page["cursor"], 1)
        assert attached(world) == 3
        await many.cursors._here(parked_query(page["cursor"]))  # another core goes on
        assert (len(many.parked), attached(world)) == (0, 0)
        await poll(world, QUERY)
        world.front.readers.stop()
        assert (len(many.parked), many.followed, attached(world)) == (0, 0, 0)

    play(story)


def parked_query(cursor: str) -> Any:
    name, _, number = cursor.partition(".")
    return CursorQuery(name, int(number, 16))


@pytest.mark.parametrize("seed", range(30))
def test_pages_have_every_record_once_whatever_happens_between_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams are appended to, created, deleted and closed, while a client polls, goes back, loses
    answers and pauses. The pages that it has handled have what was appended, in order."""
    monkeypatch.setattr(answers, "LIVE_POLL_BYTES", 900)

    async def story(world: World) -> None:
        choose = random.Random(seed)
        names = await filled(world, 5)
        values: dict[str, list[int]] = {name: [] for name in names}
        closed: set[str] = set()
        handled: dict[str, list[int]] = {}
        cursor, last = "", 0

        def handle(events: list[dict[str, Any]]) -> None:
            nonlocal cursor
            for event in events:
                if "streamDeleted" in event or "streamIncarnation" in event:
                    handled.pop(event["stream"], None)
                handled.setdefault(event.get("stream", ""), []).extend(event.get("data", []))
                cursor = event.get("id", cursor)

        for _ in range(60):
            act = choose.randrange(12)
            name = choose.choice(names)
            if act < 5 and name in values and name not in closed:
                last += 1
                values[name].append(last)
                await world.post(name, b"%d" % last)
            elif act == 5 and name in values:
                await world.ask("DELETE", f"/v1/stream/{name}")
                del values[name]
                closed.discard(name)
            elif act == 6 and name not in values:
                await world.put(name)
                values[name] = []
            elif act == 7 and name in values and choose.random() < 0.3:
                await world.post(name, b"", stream_closed="true")
                closed.add(name)
            elif act == 8:
                pass_time(world, choose.randrange(2 * LIVE_PARKED_SECONDS))
            else:
                page = await poll(world, QUERY, cursor, 1)
                if act == 9:  # the answer is lost
                    continue
                if act == 10:  # the client handled a part
                    handle(page["events"][: choose.randrange(len(page["events"]) + 1)])
                else:
                    handle(page["events"])
                    cursor = page["cursor"]
        await shared(world).new_streams._ask([])
        for _ in range(40):
            page = await poll(world, QUERY, cursor, 1)
            handle(page["events"])
            cursor = page["cursor"]
        found = {name: data for name, data in handled.items() if name in values and data}
        assert found == {name: data for name, data in values.items() if data}, json.dumps(handled)

    play(story)
