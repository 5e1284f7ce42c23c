"""Many streams on one connection: each in its order, resumed by one cursor, told of what begins and
ends."""

from __future__ import annotations

import json
import re
from typing import Any

from front_world import Answer, Wire, World, play, request

TEXT, BYTES = "text/plain", "application/octet-stream"


class Events:
    """The events of a connection, in order."""

    def __init__(self, wire: Wire, answer: Answer) -> None:
        self.wire, self.answer = wire, answer
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self.last_id = ""

    async def next(self) -> tuple[str, dict[str, Any]]:
        """The next event: its name and its object."""
        while not self._waiting:
            self._feed(await self.wire.chunk())
        return self._waiting.pop(0)

    async def until(self, wanted: str, **fields: Any) -> list[dict[str, Any]]:
        """All objects up to one of that event with these fields."""
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
        told = await events.until("control", allUpToDate=True)
        assert told[-1] == {"allUpToDate": True, "streams": 2}
        of_a = [event for event in told if event.get("stream") == "a"]
        assert of_a[0]["contentType"] == "application/json" and of_a[0]["streamIncarnation"]
        assert of_a[0]["streamNextOffset"] == at(0, 0)
        assert of_a[1] == {
            "stream": "a",
            "streamNextOffset": at(1, 2),
            "upToDate": True,
            "data": [1],
        }
        assert [event["upToDate"] for event in told if event.get("stream") == "b"] == [True]
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
        told = await events.until("control", allUpToDate=True)
        missing = [event for event in told if event.get("stream") == "none"]
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
        told = await events.until("control", allUpToDate=True)
        shown = {
            event["stream"]: event for event in told if event.keys() & {"text", "base64", "data"}
        }
        assert shown["t"]["text"] == "zwölf\r\n"
        assert shown["b"]["base64"] == "AP8="
        assert shown["j"]["data"] == [{"x": 1}]
        records = await live(
            world, "stream=t&stream=j", accept="application/vnd.polynya.records+json"
        )
        told = await records.until("control", allUpToDate=True)
        wholes = [event["data"][0]["value"] for event in told if "data" in event]
        assert {"x": 1} in wholes and len(wholes) == 2

    play(story)
