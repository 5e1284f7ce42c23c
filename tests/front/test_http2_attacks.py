"""Attacks on HTTP/2: each is refused, counted, and leaves the front as it was."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable

import pytest
from front_world import Wire, World, play
from h2.errors import ErrorCodes
from hpack import Encoder
from http2_client import HTTP2, connected

from polynya.base.limits import (
    H2_CONTROL_FRAMES_MAX,
    H2_HEADER_FRAMES_MAX,
    H2_RESETS_MAX,
    H2_STREAMS_MAX,
    H2_TINY_FRAMES_MAX,
)
from polynya.front.http.http2 import sender as http2_sender

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK = 1, 4, 1
Fields = list[tuple[str, str]]
GET: Fields = [
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "test"),
    (":path", "/v1/streams"),
]
POST: Fields = [(":method", "POST"), *GET[1:3], (":path", "/v1/stream/s")]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(
        ">I", stream
    ) + payload  # fmt: skip


def head(stream: int, fields: Fields, *, end: bool = True) -> bytes:
    flags = END_HEADERS | (END_STREAM if end else 0)
    return frame(HEADERS, flags, stream, Encoder().encode(fields))


def begun() -> bytes:
    return PREFACE + frame(SETTINGS, 0, 0)


async def goodbye(wire: Wire) -> int:
    """The code of the GOAWAY with which the server closes; -1 without one."""
    data, code = b"", -1
    try:
        data = await wire.reader.read()
    except ConnectionError:
        return code
    position = 0
    while position + 9 <= len(data):
        size = int.from_bytes(data[position : position + 3], "big")
        if data[position + 3] == GOAWAY:
            code = int.from_bytes(data[position + 13 : position + 17], "big")
        position += 9 + size
    return code


def refused(reason: str, code: int, *attack: bytes) -> None:
    """The attack ends its connection for a reason, and another client goes on."""

    async def story(world: World) -> None:
        other = await connected(world)
        await world.put("s")
        wire = await world.wire()
        wire.send(begun())
        for piece in attack:
            wire.send(piece)
        assert await goodbye(wire) in (code, -1)  # -1: the kernel reset what it had not read
        assert world.front.counters.http2_refused == {reason: 1}
        assert (await other.ask("HEAD", "/v1/stream/s")).status == 200
        await world.until(lambda: len(world.front.connections) == 1)

    play(story, settings=HTTP2)


def each(frames: Iterable[bytes]) -> bytes:
    return b"".join(frames)


def test_rapid_reset_opens_and_resets_streams_without_end() -> None:
    pairs = (
        head(number, GET) + frame(RST_STREAM, 0, number, b"\0\0\0\10")
        for number in range(1, 4 * H2_RESETS_MAX, 2)
    )
    refused("resets", ErrorCodes.ENHANCE_YOUR_CALM, each(pairs))


def test_made_you_reset_lets_the_server_reset_the_streams() -> None:
    """A window that overflows is the client's fault, and the server resets (CVE-2025-8671)."""
    pairs = (
        head(number, POST, end=False) + frame(WINDOW, 0, number, b"\x7f\xff\xff\xff")
        for number in range(1, 4 * H2_RESETS_MAX, 2)
    )
    refused("resets", ErrorCodes.ENHANCE_YOUR_CALM, each(pairs))


def test_a_head_that_is_malformed_is_reset_and_counts_as_a_reset() -> None:
    async def story(world: World) -> None:
        wire = await world.wire()
        wire.send(begun())
        for number in range(H2_RESETS_MAX + 1):
            wire.send(head(2 * number + 1, [*POST, ("te", "gzip")]))
            await world.until(
                lambda number=number: world.front.counters.http2_streams == number + 1
            )
        assert await goodbye(wire) == ErrorCodes.ENHANCE_YOUR_CALM
        assert world.front.counters.http2_refused == {"resets": 1}

    play(story, settings=HTTP2)


@pytest.mark.parametrize(
    "one",
    [
        frame(PING, 0, 0, b"12345678"),
        frame(SETTINGS, 0, 0),
        frame(SETTINGS, 0, 0, b"\0\4\0\0\xff\xff"),
        frame(PRIORITY, 0, 1, b"\0\0\0\0\20"),
        frame(0xEE, 0, 0, b"unknown"),
        frame(WINDOW, 0, 0, b"\0\0\0\1"),
    ],
    ids=["ping", "settings", "settings-of-windows", "priority", "unknown", "window-by-one"],
)
def test_a_flood_of_control_frames(one: bytes) -> None:
    refused("control", ErrorCodes.ENHANCE_YOUR_CALM, one * (H2_CONTROL_FRAMES_MAX + 1))


def test_a_flood_of_empty_data() -> None:
    data = frame(DATA, 0, 1) * (H2_CONTROL_FRAMES_MAX + 1)
    refused("control", ErrorCodes.ENHANCE_YOUR_CALM, head(1, POST, end=False), data)


def test_a_flood_of_data_that_is_padding_alone() -> None:
    padded = frame(DATA, 8, 1, b"\x70" + bytes(0x70)) * (H2_CONTROL_FRAMES_MAX + 1)
    refused("control", ErrorCodes.ENHANCE_YOUR_CALM, head(1, POST, end=False), padded)


def test_a_flood_of_data_of_one_byte_each() -> None:
    tiny = frame(DATA, 0, 1, b"x") * (H2_TINY_FRAMES_MAX + 1)
    refused("tiny", ErrorCodes.ENHANCE_YOUR_CALM, head(1, POST, end=False), tiny)


def test_continuation_without_end() -> None:
    """Send a header block that never ends, as of CVE-2024-27316 and its like."""
    block = frame(HEADERS, END_STREAM, 1, Encoder().encode(GET))
    refused(
        "headers",
        ErrorCodes.ENHANCE_YOUR_CALM,
        block,
        frame(CONTINUATION, 0, 1, b"\0\1a\1b" * 3000) * (H2_HEADER_FRAMES_MAX + 1),
    )


def test_empty_continuations_without_end() -> None:
    block = frame(HEADERS, END_STREAM, 1, Encoder().encode(GET))
    more = frame(CONTINUATION, 0, 1) * (H2_HEADER_FRAMES_MAX + 1)
    refused("headers", ErrorCodes.ENHANCE_YOUR_CALM, block, more)


def test_an_hpack_bomb_repeats_one_large_entry() -> None:
    encoder = Encoder()
    block = encoder.encode([*GET, ("x-bomb", "b" * 3000)])
    bomb = block + b"\xbe" * 10_000  # the newest entry of the dynamic table
    refused(
        "headers", ErrorCodes.ENHANCE_YOUR_CALM, frame(HEADERS, END_HEADERS | END_STREAM, 1, bomb)
    )


def test_more_streams_than_allowed() -> None:
    heads = (head(n, POST, end=False) for n in range(1, 2 * H2_STREAMS_MAX + 10, 2))
    refused("protocol", ErrorCodes.PROTOCOL_ERROR, each(heads))


@pytest.mark.parametrize(
    "attack",
    [
        head(1, [*POST, ("content-length", "3")], end=False) + frame(DATA, END_STREAM, 1, b"four"),
        head(1, [*POST, ("content-length", "5")], end=False) + frame(DATA, END_STREAM, 1, b"four"),
        head(2, GET),
        frame(DATA, 0, 0, b"no stream"),
        frame(PUSH, END_HEADERS, 1, b"\0\0\0\2"),
        frame(SETTINGS, 0, 0, b"\0\4\xff\xff\xff\xff"),
        frame(WINDOW, 0, 0, b"\0\0\0\0"),
        frame(WINDOW, 0, 0, b"\x7f\xff\xff\xff") * 2,
        frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
        b"\xff\xff\xff\0\0\0\0\0\1",
    ],
    ids=[
        "data-behind-the-body",
        "data-short-of-content-length",
        "even-stream",
        "data-of-no-stream",
        "push-from-the-client",
        "window-too-large-by-settings",
        "window-by-zero",
        "window-overflow",
        "hpack-garbage",
        "frame-too-large",
    ],
)
def test_a_breach_of_the_protocol_ends_the_connection(attack: bytes) -> None:
    async def story(world: World) -> None:
        await world.put("s")
        wire = await world.wire()
        wire.send(begun() + attack)
        code = await goodbye(wire)
        assert code > 0
        assert sum(world.front.counters.http2_refused.values()) == 1
        assert (await world.get("s")).body == b"[]"
        assert world.front.counters.statuses[500] == 0

    play(story, settings=HTTP2)


@pytest.mark.parametrize(
    "attack",
    [
        head(1, [*POST, ("content-length", "3")], end=True),
        head(1, [*GET, ("host", "other")]),
        head(1, [*GET, ("connection", "close")]),
        head(1, [*GET, ("transfer-encoding", "chunked")]),
        head(1, [*GET, (":path", "/again")]),
        head(1, [*GET, ("Upper", "case")]),
        head(1, [*GET, ("x", "a\r\nb: c")]),
        head(1, [*GET[:3], (":path", "/v1/streams\r\nhost: evil")]),
        head(1, [*GET[:3], (":path", "")]),
        head(1, POST) + frame(DATA, END_STREAM, 1, b"behind the end") * 2,
    ],
    ids=[
        "content-length-without-data",
        "authority-and-host-differ",
        "connection-header",
        "transfer-encoding-smuggles",
        "path-twice",
        "upper-case-name",
        "line-end-in-a-value",
        "line-end-in-the-path",
        "no-path",
        "data-behind-the-end",
    ],
)
def test_a_breach_within_a_stream_resets_it_and_counts(attack: bytes) -> None:
    async def story(world: World) -> None:
        await world.put("s")
        wire = await world.wire()
        wire.send(begun() + attack)
        received = b""
        while bytes((RST_STREAM, 0)) + b"\0\0\0\1" not in received:
            received += await wire.reader.read(65_536)
        assert (await world.get("s")).body == b"[]"
        assert world.front.counters.statuses[500] == 0

    play(story, settings=HTTP2)


@pytest.mark.parametrize(
    "fields",
    [
        [(":method", "CONNECT"), (":authority", "test:80")],
        [*GET[:1], (":scheme", "ftp"), *GET[2:]],
        [*GET[:3], (":path", "v1/streams")],
        [*GET[:3], (":path", "/a b")],
        [*GET[:3], (":path", "http://elsewhere/v1/streams")],
        [(":method", "GET POST"), *GET[1:]],
    ],
    ids=["connect", "scheme", "relative-path", "space-in-path", "absolute-url", "method-of-two"],
)
def test_a_request_that_http_1_could_read_otherwise_is_reset_alone(fields: Fields) -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s")
        number = client.h2.get_next_available_stream_id()
        reply = client.request("GET", "/v1/streams")  # its number is taken by the attack
        await client.answer(reply)
        number = client.h2.get_next_available_stream_id()
        block = client.h2.encoder.encode(fields)
        client.h2.highest_outbound_stream_id = number
        client.writer.write(frame(HEADERS, END_HEADERS | END_STREAM, number, block))
        await world.until(lambda: world.front.counters.http2_streams == 2 or client.closed)
        if not client.closed:
            assert (await client.ask("HEAD", "/v1/stream/s")).status == 200
        assert world.front.counters.statuses[500] == 0

    play(story, settings=HTTP2)


def test_the_guard_against_dns_rebinding_reads_the_authority() -> None:
    from polynya.front.http.protocol.exchange import Protection
    from polynya.front.http.protocol.hosts import Hosts

    async def story(world: World) -> None:
        client = await connected(world)
        answer = await client.ask("GET", "/v1/streams", p_authority="evil.example")
        assert answer.status == 421
        assert (await client.ask("GET", "/v1/streams", p_authority="localhost")).status == 200

    play(story, settings=HTTP2, protection=Protection(hosts=Hosts(())))


def test_a_client_that_reads_none_of_many_answers_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2_sender, "H2_UNSENT_BYTES_MAX", 500_000)

    async def story(world: World) -> None:
        await world.put("s", "text/plain")
        await world.post("s", b"x" * 200_000, "text/plain")
        client = await connected(world)
        client.reads = False
        for _ in range(10):
            client.request("GET", "/v1/stream/s?offset=-1")
        await world.until(lambda: client.closed)
        assert client.goodbye == ErrorCodes.ENHANCE_YOUR_CALM
        assert world.front.counters.http2_refused == {"unsent": 1}

    play(story, settings=HTTP2)


def test_pings_that_a_client_earns_by_what_it_reads_are_no_flood() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        client = await connected(world)
        for _ in range(H2_CONTROL_FRAMES_MAX // 100):
            for _ in range(50):
                client.h2.ping(b"12345678")
            assert (await client.ask("GET", "/v1/stream/s?offset=-1")).status == 200
        assert world.front.counters.http2_refused == {}

    play(story, settings=HTTP2)


def test_the_counts_begin_again_in_the_next_window_of_time() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s")
        for _ in range(3):
            for _ in range(H2_RESETS_MAX // 2 + 10):
                reply = client.request("GET", "/v1/stream/s?offset=now&live=long-poll")
                client.h2.reset_stream(client.number(reply))
                client.send()
            assert (await client.ask("HEAD", "/v1/stream/s")).status == 200
            world.front.context.ticks.now += 10
        assert not client.closed

    play(story, settings=HTTP2)


def test_a_stall_of_the_whole_connection_is_cut() -> None:
    async def story(world: World) -> None:
        wire = await world.wire()
        wire.send(begun())
        await world.until(lambda: len(world.front.connections) == 1)
        (served,) = world.front.connections
        now = world.front.context.ticks.now
        served.sweep(now + 1)
        served.sweep(now + 100)  # no request came
        await world.until(lambda: not len(world.front.connections))
        await asyncio.sleep(0)

    play(story, settings=HTTP2)
