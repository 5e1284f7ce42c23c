"""Many streams on one connection: each in its order, resumed by one cursor, told of what begins and
ends."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from front_world import Answer, Wire, World, play, request
from test_authorizer import Gate, guarded

from polynya.base.limits import LIVE_PAGE_BYTES, LIVE_STREAMS_MAX
from polynya.local.api import LiveEvent

TEXT, BYTES = "text/plain", "application/octet-stream"


class Events:
    """The events of a connection, in order."""

    def __init__(self, wire: Wire, answer: Answer) -> None:
        self.wire, self.answer = wire, answer
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self.last_id = ""

    async def next(self) -> tuple[str, dict[str, Any]]:
        """Return the name and the object of the next event."""
        while not self._waiting:
            self._feed(await self.wire.chunk())
        return self._waiting.pop(0)

    async def until(self, wanted: str, **fields: Any) -> list[dict[str, Any]]:
        """Return all objects up to one of that event with these fields."""
        found = []
        while True:
            name, event = await self.next()
            found.append(event)
            if name == wanted and fields.items() <= event.items():
                return found

    async def data(self, count: int) -> dict[str, list[Any]]:
        """The records of the next data events, by stream."""
        found: dict[str, list[Any]] = {}
        while count:
            name, event = await self.next()
            if name == "data":
                found.setdefault(event["stream"], []).extend(event["data"])
                count -= len(event["data"])
        return found

    def _feed(self, chunk: bytes) -> None:
        assert chunk, "the response has ended"
        for block in chunk.decode().split("\n\n")[:-1]:
            if given := re.search(r"^id:(.*)$", block, re.MULTILINE):
                self.last_id = given[1]
            name = re.search(r"^event: (.*)$", block, re.MULTILINE)
            lines = re.findall(r"^data:(.*)$", block, re.MULTILINE)
            if name is not None:
                self._waiting.append((name[1], json.loads("\n".join(lines))))


async def live(world: World, query: str, **headers: str) -> Events:
    wire = await world.wire()
    wire.send(request("GET", f"/v1/live?{query}", **headers))
    answer = await wire.answer()
    assert answer.status == 200, answer
    return Events(wire, answer)


async def refused(world: World, query: str, **headers: str) -> Answer:
    return await world.ask("GET", f"/v1/live?{query}", **headers)


def at(record: int, byte: int) -> str:
    return f"{record:016d}_{byte:016d}"


def test_a_list_of_streams_has_the_records_of_each_in_order() -> None:
    async def story(world: World) -> None:
        for name in ("a", "b"):
            await world.put(name)
            await world.post(name, b"1")
        events = await live(world, "stream=a&stream=b@1_2")
        received = await events.until("control", allUpToDate=True)
        assert received[-1] == {"allUpToDate": True, "streams": 2}
        of_a = [event for event in received if event.get("stream") == "a"]
        assert of_a[0]["contentType"] == "application/json" and of_a[0]["streamIncarnation"]
        assert of_a[0]["streamNextOffset"] == at(0, 0)
        assert of_a[1] == {
            "stream": "a",
            "streamNextOffset": at(1, 2),
            "upToDate": True,
            "data": [1],
        }
        assert [event["upToDate"] for event in received if event.get("stream") == "b"] == [True]
        await world.post("b", b"2")
        await world.post("a", b"3")
        assert await events.next() == (
            "data",
            {"stream": "b", "streamNextOffset": at(2, 4), "upToDate": True, "data": [2]},
        )
        assert (await events.next())[1]["data"] == [3]

    play(story)


def test_a_prefix_and_a_pattern_follow_streams_that_are_created_later() -> None:
    async def story(world: World) -> None:
        await world.put("runs/1")
        await world.put("runs/1/steps")
        await world.put("other")
        prefix = await live(world, "prefix=runs/&offset=now")
        pattern = await live(world, "match=runs/*")
        assert (await prefix.until("control", allUpToDate=True))[-1]["streams"] == 2
        assert (await pattern.until("control", allUpToDate=True))[-1]["streams"] == 1
        await world.put("runs/2")
        await world.post("runs/2", b"[1,2]")
        await world.put("runs/2/steps")
        await world.post("runs/2/steps", b"3")
        assert await prefix.data(3) == {"runs/2": [1, 2], "runs/2/steps": [3]}
        assert await pattern.data(2) == {"runs/2": [1, 2]}
        await world.post("runs/1", b"4")
        assert await prefix.data(1) == await pattern.data(1) == {"runs/1": [4]}

    play(story)


def test_a_reconnect_goes_on_at_the_last_event_that_the_client_has_of_each_stream() -> None:
    async def story(world: World) -> None:
        for name in ("a", "b", "c"):
            await world.put(name)
        query = "match=*&offset=now"
        events = await live(world, query)
        await events.until("control", allUpToDate=True)
        for name in ("a", "b", "c"):
            await world.post(name, b"1")
        assert await events.data(1) == {"a": [1]}
        first = events.last_id
        assert await events.data(2) == {"b": [1], "c": [1]}
        second = events.last_id
        await world.put("d")
        await world.post("d", b"5")
        await events.data(1)
        await world.post("a", b"2")
        again = await live(world, query, last_event_id=first)
        found = await again.data(4)
        assert found == {"b": [1], "c": [1], "a": [2], "d": [5]}
        later = await live(world, query + f"&cursor={second}")
        assert await later.data(2) == {"a": [2], "d": [5]}
        assert len(later.last_id) <= 4096

    play(story)


def test_a_cursor_that_nobody_keeps_is_an_event_that_says_so() -> None:
    async def story(world: World) -> None:
        await world.put("a")
        gone = "0" * 24 + ".00000001"
        answer = await refused(world, "stream=a", last_event_id=gone)
        assert answer.status == 200 and answer.headers["content-type"] == "text/event-stream"
        assert answer.body.startswith(b"event: error\ndata:") and b'"CURSOR_GONE"' in answer.body

    play(story)


def test_streams_that_close_vanish_or_return_are_told_and_the_others_go_on() -> None:
    async def story(world: World) -> None:
        for name in ("a", "b"):
            await world.put(name)
        events = await live(world, "stream=a&stream=b&stream=none")
        received = await events.until("control", allUpToDate=True)
        missing = [event for event in received if event.get("stream") == "none"]
        assert missing[0]["error"]["code"] == "NOT_FOUND"
        await world.post("a", b"1", stream_closed="true")
        assert (await events.next())[1]["data"] == [1]
        assert (await events.next())[1]["streamClosed"] is True
        await world.ask("DELETE", "/v1/stream/b")
        assert (await events.next())[1]["streamDeleted"] is True
        await world.put("b")
        await world.post("b", b"2")
        await world.put("none")
        await world.post("none", b"3")
        assert await events.data(2) == {"b": [2], "none": [3]}

    play(story)


def test_texts_bytes_and_whole_records_are_shown_as_one_tail_does() -> None:
    async def story(world: World) -> None:
        await world.put("t", TEXT)
        await world.put("b", BYTES)
        await world.put("j")
        await world.post("t", "zwölf\r\n".encode(), TEXT)
        await world.post("b", b"\x00\xff", BYTES)
        await world.post("j", b'{"x":\r\n1}')
        events = await live(world, "stream=t&stream=b&stream=j")
        received = await events.until("control", allUpToDate=True)
        shown = {
            event["stream"]: event
            for event in received
            if event.keys() & {"text", "base64", "data"}
        }
        assert shown["t"]["text"] == "zwölf\r\n"
        assert shown["b"]["base64"] == "AP8="
        assert shown["j"]["data"] == [{"x": 1}]
        records = await live(
            world, "stream=t&stream=j", accept="application/vnd.polynya.records+json"
        )
        received = await records.until("control", allUpToDate=True)
        wholes = [event["data"][0]["value"] for event in received if "data" in event]
        assert {"x": 1} in wholes and len(wholes) == 2

    play(story)


def test_records_behind_a_trim_are_told_and_the_stream_goes_on() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        for number in (1, 2, 3):
            await world.post("s", b"%d" % number)
        trim = await world.ask(
            "POST", "/v1/stream/s/retention", b'{"before": "%b"}' % at(2, 4).encode()
        )
        assert trim.status == 200, trim
        events = await live(world, "stream=s@1_2")
        received = await events.until("control", allUpToDate=True)
        assert received[0] == {"stream": "s", "streamNextOffset": at(2, 4), "streamTrimmed": True}
        assert [event["data"] for event in received if "data" in event] == [[3]]

    play(story)


def test_a_slow_reader_costs_no_memory_and_a_busy_stream_starves_no_other() -> None:
    piece = b"x" * (LIVE_PAGE_BYTES // 2)

    async def story(world: World) -> None:
        await world.put("busy", BYTES)
        await world.put("quiet")
        events = await live(world, "stream=busy&stream=quiet&offset=now")
        await events.until("control", allUpToDate=True)
        transport = events.wire.writer.transport
        transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = (each for each in world.front.connections if each.peer.on_lost)
        while not connection.peer.responses.write_paused:
            await world.post("busy", piece, BYTES)
        for _ in range(16):
            await world.post("busy", piece, BYTES)
        await world.post("quiet", b"1")
        assert connection.peer.unread_bytes < 4 * LIVE_PAGE_BYTES
        transport.resume_reading()  # type: ignore[attr-defined]
        ends = {"busy": 0, "quiet": 0}
        order, total = [], 0
        tail = json.loads((await world.ask("GET", "/v1/streams?prefix=busy")).body)["streams"][0]
        while ends["busy"] < int(tail["next_offset"][17:]) or not ends["quiet"]:
            _, event = await events.next()
            begin, ends[event["stream"]] = (
                ends[event["stream"]],
                int(event["streamNextOffset"][17:]),
            )
            order.append(event["stream"])
            if event["stream"] == "busy":
                total += ends["busy"] - begin
        assert total == int(tail["next_offset"][17:])
        assert order.index("quiet") < len(order) - 4, "it had its turn before the busy one's end"
        assert world.front.counters.live_cut == 0

    play(story)


def test_a_stream_among_a_thousand_costs_what_it_costs_alone() -> None:
    """Count the calls in the front for one event, from the feed to the connection."""

    async def calls(world: World, query: str, streams: int) -> Counter[str]:
        events = await live(world, query)
        assert (await events.until("control", allUpToDate=True))[-1]["streams"] == streams
        found: Counter[str] = Counter()

        def note(frame: Any, event: str, _: Any) -> None:
            name = frame.f_code.co_filename.partition("/polynya/")[2]
            if event == "call" and name.startswith(("front/http", "wire/", "service/live/cursors")):
                found[f"{name}:{frame.f_code.co_name}"] += 1

        (sink,) = world.service.local.feeds.sinks[(await world.service.info("many/7")).uid]
        info = await world.service.info("many/7")
        tail = LiveEvent(info.uid, info.record, info.byte, info.record + 1, info.byte + 2, 1, b"5,")
        sys.setprofile(note)
        sink.live(tail)
        sys.setprofile(None)
        assert (await events.data(1)) == {"many/7": [5]}
        events.wire.close()
        await world.until(lambda: not world.front.readers.live)
        return found

    async def story(world: World) -> None:
        for number in range(LIVE_STREAMS_MAX):
            await world.put(f"many/{number}")
        alone = await calls(world, "stream=many/7", 1)
        names = "&".join(f"stream=many/{number}" for number in range(LIVE_STREAMS_MAX))
        listed = await calls(world, names, LIVE_STREAMS_MAX)
        covered = await calls(world, "match=many/*&offset=now", LIVE_STREAMS_MAX)
        assert alone == listed == covered
        assert sum(alone.values()) <= 25

    play(story)


def test_each_stream_is_shown_to_those_who_may_read_it_until_they_may_not(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("root", "admin")
        gate.token("some", "read:runs/a/")

    async def story(world: World, gate: Gate) -> None:
        root, some = gate.bearer("root"), gate.bearer("some")
        for name in ("runs/a/1", "runs/b/1"):
            await world.put(name, **root)
            await world.post(name, b"1", **root)
        assert (await refused(world, "match=**")).error == "UNAUTHORIZED"
        answer = await refused(world, "stream=runs/a/1&stream=runs/b/1", **some)
        assert answer.status == 403 and b"runs/b/1" in answer.body
        events = await live(world, "match=runs/**", **some)
        received = await events.until("control", allUpToDate=True)
        assert {event.get("stream") for event in received} == {"runs/a/1", None}
        whole = await live(world, "prefix=runs/", **root)
        assert await whole.data(2) == {"runs/a/1": [1], "runs/b/1": [1]}
        for name in ("runs/b/2", "runs/a/2"):
            await world.put(name, **root)
            await world.post(name, b"2", **root)
        assert await events.data(1) == {"runs/a/2": [2]}
        # a cursor of a caller who may read more shows no more
        again = await live(world, "prefix=runs/", last_event_id=whole.last_id, **some)
        await world.post("runs/b/1", b"3", **root)
        await world.post("runs/a/1", b"4", **root)
        while (await again.next())[1].get("data") != [4]:
            pass
        gate.revoke("some")
        while await again.wire.chunk():
            pass
        assert await again.wire.ended()

    guarded(tmp_path, story, setup=setup)


def test_a_browser_may_send_a_short_lived_token_in_the_url(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("root", "admin")
        gate.token("page", "read:runs/", seconds=600)

    async def story(world: World, gate: Gate) -> None:
        await world.put("runs/1", **gate.bearer("root"))
        token = gate.bearer("page")["authorization"].removeprefix("Bearer ")
        events = await live(world, f"match=runs/*&access_token={token}")
        assert (await events.until("control", allUpToDate=True))[-1]["streams"] == 1
        forever = gate.bearer("root")["authorization"].removeprefix("Bearer ")
        assert (await refused(world, f"match=**&access_token={forever}")).error == "TOKEN_IN_URL"

    guarded(tmp_path, story, setup=setup)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", b"name the streams"),
        ("stream=a&stream=a", b"named twice"),
        ("stream=a&offset=1_2", b"offset must be -1 or now"),
        ("prefix=a&match=b", b"exclude each other"),
        ("match=a*", b"a wildcard is a whole segment"),
        ("stream=a&live=poll", b"live must be sse or long-poll, not 'poll'"),
        ("stream=a&live=long-poll&timeout_ms=0", b"timeout_ms must be a whole number above 0"),
        ("stream=/a", b"stream=/a"),
        ("stream=a&cursor=x", b"the id of an event"),
        ("&".join(f"stream={number}" for number in range(1001)), b"at most 1000 streams"),
        ("stream=a&record_view=x", b"record_view must be records"),
        ("stream=a&record_view=envelope", b"record_view must be records"),
    ],
)
def test_a_wrong_request_is_told_what_is_expected(query: str, said: bytes) -> None:
    async def story(world: World) -> None:
        answer = await refused(world, query)
        assert answer.status == 400 and said in answer.body, answer

    play(story)


def test_names_may_contain_at_signs_and_offsets_need_no_zeros() -> None:
    async def story(world: World) -> None:
        for name in ("me@home", "me@1_2x"):
            await world.put(name)
            await world.post(name, b"[1,2]")
        events = await live(world, "stream=me@home@1_2&stream=me@1_2x")
        assert await events.data(3) == {"me@home": [2], "me@1_2x": [1, 2]}

    play(story)
