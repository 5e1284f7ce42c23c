"""Parts of a stream that never change: chunks of its records and snapshots, under a version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from front_world import Answer, World, play
from test_authorizer import Gate, guarded

from polynya.front.http import immutable
from polynya.front.http.protocol.settings import HttpSettings

URL = "/v1/stream/docs/a"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(immutable, "CHUNK_BYTES", 16)


async def versions(world: World) -> dict[str, Any]:
    answer = await world.ask("GET", f"{URL}/incarnation")
    assert answer.status == 200 and answer.headers["cache-control"] == "no-store", answer
    shown: dict[str, Any] = json.loads(answer.body)
    return shown


async def chunk(world: World, begin: int, version: str = "", **headers: str) -> Answer:
    version = version or (await versions(world))["version"]
    return await world.ask("GET", f"{URL}/incarnation/{version}/chunk/{begin}", **headers)


def code(answer: Answer) -> str:
    return str(json.loads(answer.body)["error"]["code"])


def test_chunks_have_each_record_once_and_caches_may_keep_them() -> None:
    async def story(world: World) -> None:
        await world.put("docs/a")
        values = ["a", "b" * 20, 3, {"c": 4}, "d" * 40, 6, 7, 8, 9, 10]
        for value in values[:3]:
            await world.post("docs/a", json.dumps(value).encode())
        await world.post("docs/a", json.dumps(values[3:]).encode())
        shown = await versions(world)
        assert shown["chunk_bytes"] == 16 and shown["first_chunk"] == 0 and shown["chunks"] > 4
        found, ends = [], []
        for number in range(shown["chunks"]):
            answer = await chunk(world, 16 * number)
            assert answer.status == 200, answer
            assert answer.headers["cache-control"] == "public, max-age=86400, immutable"
            assert answer.headers["content-type"] == "application/json"
            ends.append((answer.headers["stream-offset"], answer.headers["stream-next-offset"]))
            found += json.loads(answer.body)
        assert [begin for begin, _ in ends[1:]] == [end for _, end in ends[:-1]]
        rest = await world.get("docs/a", f"?offset={ends[-1][1]}")
        assert found + json.loads(rest.body) == values

    play(story)


def test_bytes_and_an_etag() -> None:
    async def story(world: World) -> None:
        await world.put("docs/a", "application/octet-stream")
        for record in (b"x" * 10, b"y" * 10, b"z" * 40):
            await world.post("docs/a", record, "application/octet-stream")
        first, second, third = [await chunk(world, begin) for begin in (0, 16, 32)]
        assert [first.body, second.body, third.body] == [b"x" * 10 + b"y" * 10, b"z" * 40, b""]
        again = await chunk(world, 0, if_none_match=first.headers["etag"])
        assert again.status == 304 and again.headers["etag"] == first.headers["etag"]

    play(story)


def test_what_is_not_complete_or_not_a_chunk_is_told_and_not_kept() -> None:
    async def story(world: World) -> None:
        await world.put("docs/a")
        await world.post("docs/a", b"1")
        early = await chunk(world, 0)
        assert early.status == 404 and code(early) == "NOT_COMPLETE"
        assert early.headers["cache-control"] == "no-store"
        assert [code(await chunk(world, begin)) for begin in (5, -16)] == ["INVALID_OFFSET"] * 2
        version = (await versions(world))["version"]
        for below in ("chunks/0", "chunk", "chunk/0/1", "x"):
            answer = await world.ask("GET", f"{URL}/incarnation/{version}/{below}")
            assert answer.status == 404 and code(answer) == "NO_ROUTE", below
        assert (await world.ask("POST", f"{URL}/incarnation/{version}/chunk/0")).status == 405
        missing = await world.ask("GET", "/v1/stream/none/incarnation")
        assert missing.status == 404

    play(story)


def test_another_version_is_gone_and_so_is_a_chunk_with_trimmed_records() -> None:
    async def story(world: World) -> None:
        await world.put("docs/a")
        await world.post("docs/a", json.dumps(["x" * 6] * 10).encode())
        version = (await versions(world))["version"]
        uid, history, rewrites = version.split(".")
        others = (
            f"{uid}.{history}.{int(rewrites) + 1}",
            f"{uid}.{int(history) + 1}.{rewrites}",
            "x",
        )
        for other in others:
            answer = await chunk(world, 0, other)
            assert answer.status == 410 and code(answer) == "VERSION_GONE"
            assert version in answer.body.decode()
        trimmed = await world.ask("POST", f"{URL}/retention", b'{"keep_bytes": 63}')
        assert trimmed.status == 200, trimmed
        assert (await versions(world))["first_chunk"] == 32
        gone = await chunk(world, 16)
        assert gone.status == 410 and code(gone) == "TRIMMED"
        assert (await chunk(world, 32)).status == 200
        await world.ask("DELETE", URL)
        await world.put("docs/a")
        await world.post("docs/a", json.dumps(["x" * 6] * 10).encode())
        assert code(await chunk(world, 32, version)) == "VERSION_GONE"

    play(story)


def test_a_snapshot_of_a_version_may_be_kept_as_long_as_the_stream_lives() -> None:
    async def story(world: World) -> None:
        await world.put("docs/a", stream_ttl="60")
        end = (await world.post("docs/a", b"1")).headers["stream-next-offset"]
        put = await world.ask(
            "PUT", f"{URL}/snapshot/{end}", b"{}", content_type="application/json"
        )
        assert put.status == 201, put
        shown = await versions(world)
        assert [each["offset"] for each in shown["snapshots"]] == [end]
        path = f"{URL}/incarnation/{shown['version']}/snapshot/{end}"
        answer = await world.ask("GET", path)
        assert (answer.status, answer.body) == (200, b"{}")
        assert answer.headers["cache-control"] == "public, max-age=60, immutable"
        gone = await world.ask("GET", path.replace(shown["version"], "1.2.3"))
        assert gone.status == 410 and code(gone) == "VERSION_GONE"

    settings = HttpSettings(long_poll_seconds=30.0, object_store=False)
    play(story, settings=settings)


def test_a_cache_keeps_what_a_token_may_read_for_that_caller_alone(tmp_path: Path) -> None:
    def setup(gate: Gate) -> None:
        gate.token("writer", "all:docs/")
        gate.token("stranger", "read:other/")

    async def story(world: World, gate: Gate) -> None:
        writer = gate.bearer("writer")
        await world.put("docs/a", **writer)
        await world.post("docs/a", b'"0123456789abcdef"', **writer)
        path = f"{URL}/incarnation"
        assert (await world.ask("GET", path)).status == 401
        assert (await world.ask("GET", path, **gate.bearer("stranger"))).status == 403
        version = json.loads((await world.ask("GET", path, **writer)).body)["version"]
        answer = await world.ask("GET", f"{path}/{version}/chunk/0", **writer)
        assert answer.headers["cache-control"] == "private, max-age=86400, immutable"

    guarded(tmp_path, story, setup=setup)
