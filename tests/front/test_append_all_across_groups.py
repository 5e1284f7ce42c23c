"""POST /v1/append-all with streams of several groups, over a whole core."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from front_world import Answer, Wire, request
from worlds.service import World as Core
from worlds.service import name_in

from polynya.base.offsets import format_token
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.server import HttpFront

URL = "/v1/append-all"
START = format_token(0, 0)
A, B, C = (name_in(group) for group in (1, 2, 3))


class World:
    """A core with its front, and three streams of JSON in three groups."""

    def __init__(self, core: Core, port: int) -> None:
        self.core, self.port = core, port

    async def ask(self, method: str, target: str, body: bytes | None = None) -> Answer:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", self.port))
        wire.send(request(method, target, body))
        answer = await wire.answer(method=method)
        wire.close()
        return answer

    async def append(self, lines: Sequence[Any]) -> Answer:
        return await self.ask("POST", URL, b"\n".join(json.dumps(line).encode() for line in lines))

    async def contents(self) -> list[bytes]:
        return [(await self.ask("GET", f"/v1/stream/{name}")).body for name in (A, B, C)]


def play(story: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        core = Core().start()
        for name in (A, B, C):
            await core.create(name, json=True)
        front = HttpFront(core.service, HttpSettings())
        front.context.across = core.engine.appends_across
        listener = socket.create_server(("127.0.0.1", 0))
        await front.start([listener])
        try:
            await story(World(core, listener.getsockname()[1]))
        finally:
            await front.stop(0.5)
            await core.stop()

    asyncio.run(main())


def test_streams_of_several_groups_are_appended_to() -> None:
    async def story(world: World) -> None:
        lines = [
            {"stream": A, "records": [{"id": 1}], "if_match": START, "producer": ["p", 0, 0]},
            {"stream": B, "records": [1, 2]},
            {"stream": C, "if_match": START},
        ]
        answer = await world.append(lines)
        assert answer.status == 200, answer
        found = json.loads(answer.body)
        assert [each["next_offset"][:16] for each in found] == [f"{n:016}" for n in (1, 2, 0)]
        assert all(each["incarnation"] for each in found[:2])
        assert await world.contents() == [b'[{"id": 1}]', b"[1,2]", b"[]"]
        again = await world.append(lines)
        assert again.status == 200
        assert json.loads(again.body)[0]["next_offset"] == found[0]["next_offset"]
        assert await world.contents() == [b'[{"id": 1}]', b"[1,2]", b"[]"]

    play(story)


def test_the_first_refusal_is_named_and_nothing_is_seen() -> None:
    async def story(world: World) -> None:
        first = {"stream": A, "records": [1]}
        for wrong, status, reason in (
            ({"stream": B, "records": [1], "if_match": format_token(7, 7)}, 412, "PRECONDITION"),
            ({"stream": B, "if_match": format_token(7, 7)}, 412, "PRECONDITION"),
            ({"stream": "nowhere", "records": [1]}, 404, "NOT_FOUND"),
            ({"stream": B, "text": "x"}, 409, "CONTENT_TYPE_MISMATCH"),
            ({"stream": B, "records": [1], "producer": ["p", 0, 4]}, 409, "PRODUCER_GAP"),
            ({"stream": B, "records": [1], "incarnation": 9}, 412, "INCARNATION_MISMATCH"),
        ):
            answer = await world.append([first, wrong])
            error = json.loads(answer.body)["error"]
            assert (answer.status, error["code"]) == (status, "NONE_APPENDED"), answer
            assert (error["item"], error["reason"]) == (1, reason)
        assert await world.contents() == [b"[]", b"[]", b"[]"]

    play(story)


def test_what_cannot_be_taken_back_needs_one_group() -> None:
    async def story(world: World) -> None:
        first = {"stream": A, "records": [1]}
        for wrong, word in (
            ({"stream": B, "records": [1], "close": True}, "close"),
            ({"stream": B, "close": True}, "close"),
            ({"stream": B, "records": [1], "stream_seq": "a"}, "stream_seq"),
        ):
            answer = await world.append([first, wrong])
            error = json.loads(answer.body)["error"]
            assert (answer.status, error["code"]) == (422, "CROSS_GROUP"), answer
            assert f"'{word}' of '{B}'" in error["message"] and "{o7}/order" in error["message"]
        assert await world.contents() == [b"[]", b"[]", b"[]"]
        assert not await world.core.engine.transactions.list_transactions(), "none was begun"

    play(story)


def test_one_group_takes_one_entry() -> None:
    async def story(world: World) -> None:
        assert (await world.append([{"stream": A, "records": [1]}])).status == 200
        assert not await world.core.engine.transactions.list_transactions()

    play(story)
