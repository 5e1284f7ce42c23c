"""Appends and creations whose bodies are compressed, or have digests."""

from __future__ import annotations

import gzip
import json
import zlib

from front_world import World, play, request
from wire.test_body_coding import digest

from polynya.base.limits import CODED_BODY_BYTES_LEAST
from polynya.front.http.protocol.settings import BODY_BYTES_PER_CORE

TEXT, JSON = "text/plain", "application/json"


def test_coded_bodies_are_stored_decoded_on_each_way_in() -> None:
    async def story(world: World) -> None:
        made = await world.ask(
            "PUT", "/v1/stream/s", gzip.compress(b"a"), content_type=TEXT, content_encoding="gzip"
        )
        assert made.status == 201
        for coding, body in (("gzip", gzip.compress(b"b")), ("deflate", zlib.compress(b"c"))):
            assert (await world.post("s", body, TEXT, content_encoding=coding)).status == 204
        described = await world.post(
            "s", gzip.compress(b"d"), TEXT, content_encoding="gzip", record_key="k"
        )
        assert described.status == 204
        assert (await world.get("s", "?offset=-1")).body[:3] == b"abc"
        forked = await world.ask(
            "PUT", "/v1/stream/f", gzip.compress(b"e"), stream_forked_from="/v1/stream/s",
            content_type=TEXT, content_encoding="gzip",
        )  # fmt: skip
        assert forked.status == 201
        assert (await world.get("f", "?offset=-1")).body.endswith(b"e")

    play(story)


def test_a_large_json_body_is_decoded_and_parsed_while_others_are_served() -> None:
    async def story(world: World) -> None:
        values = [{"n": n, "text": f"{n:x}" * 40} for n in range(9000)]
        body = json.dumps(values).encode()
        assert len(body) > CODED_BODY_BYTES_LEAST
        assert (await world.put("j", JSON)).status == 201
        wire = await world.wire()
        sent = gzip.compress(body)
        large = request(
            "POST", "/v1/stream/j", sent, content_type=JSON, content_encoding="gzip",
            content_digest=digest(sent), repr_digest=digest(body),
        )  # fmt: skip
        wire.send(large + request("POST", "/v1/stream/j", b"[7]", content_type=JSON))
        assert [(await wire.answer()).status for _ in range(2)] == [204, 204]
        assert json.loads((await world.get("j", "?offset=-1")).body) == [*values, 7]

    play(story)


def test_refusals_name_what_came_and_store_nothing() -> None:
    async def story(world: World) -> None:
        assert (await world.put("s", TEXT)).status == 201
        for body, headers, status, code in (
            (b"x", {"content_encoding": "br"}, 415, "CONTENT_ENCODING"),
            (b"x", {"content_encoding": "gzip"}, 400, "INVALID_CODING"),
            (gzip.compress(bytes(9 << 20)), {"content_encoding": "gzip"}, 413, "BODY_TOO_LARGE"),
            (b"x", {"content_digest": digest(b"y")}, 400, "DIGEST_MISMATCH"),
            (b"x", {"repr_digest": digest(b"y")}, 400, "DIGEST_MISMATCH"),
            (
                b"",
                {"stream_closed": "true", "content_digest": digest(b"y")},
                400,
                "DIGEST_MISMATCH",
            ),
        ):
            for method, name in (("POST", "s"), ("PUT", "new")):
                if not body and method == "PUT":
                    continue
                refused = await world.ask(
                    method, f"/v1/stream/{name}", body, content_type=TEXT, **headers
                )
                assert (refused.status, refused.error) == (status, code)
                if status == 415:
                    assert refused.headers["accept-encoding"] == "gzip, deflate, identity"
        assert (await world.ask("HEAD", "/v1/stream/new")).status == 404
        assert (await world.get("s", "?offset=-1")).body == b""

    play(story)


def test_a_connection_that_has_learned_the_shape_of_its_appends_checks_coded_ones() -> None:
    async def story(world: World) -> None:
        assert (await world.put("s", TEXT)).status == 201
        wire = await world.wire()
        plain = request("POST", "/v1/stream/s", b"b", content_type=TEXT)
        coded = [
            request("POST", "/v1/stream/s", body, content_type=TEXT, content_encoding="gzip")
            for body in (gzip.compress(b"c"), b"no")
        ]
        for message, status in [*[(plain, 204)] * 3, (coded[0], 204), (coded[1], 400)] * 2:
            wire.send(message)
            assert (await wire.answer()).status == status
        assert (await world.get("s", "?offset=-1")).body == b"bbbc" * 2

    play(story)


def test_decoding_counts_as_memory_of_bodies() -> None:
    async def story(world: World) -> None:
        assert (await world.put("s", TEXT)).status == 201
        bodies = world.front.context.bodies
        bodies.take(BODY_BYTES_PER_CORE - 1000)
        full = await world.post("s", gzip.compress(b"x"), TEXT, content_encoding="gzip")
        assert (full.status, full.error) == (503, "REQUEST_MEMORY_LIMIT")
        bodies.give_back(BODY_BYTES_PER_CORE - 1000)
        for body in (gzip.compress(b"x"), b"no"):
            await world.post("s", body, TEXT, content_encoding="gzip")
            assert bodies.bytes == 0

    play(story)
