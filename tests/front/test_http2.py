"""HTTP/2: what a client of it sees, against the same front as HTTP/1.1."""

from __future__ import annotations

import asyncio

import pytest
from front_world import World, play, request
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from http2_client import HTTP2, connected
from hyperframe.frame import GoAwayFrame

from polynya.base.limits import APPEND_BYTES_MAX, H2_CONNECTION_WINDOW_BYTES
from polynya.front.http.protocol.settings import IDLE_SECONDS, STALL_SECONDS, HttpSettings

JSON = "application/json"


def test_a_stream_is_created_written_and_read_on_one_connection() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        made = await client.ask("PUT", "/v1/stream/s", content_type=JSON)
        assert made.status == 201
        assert made.headers["location"] == "http://test/v1/stream/s"
        assert (await client.ask("POST", "/v1/stream/s", b"[1,2]", content_type=JSON)).status == 204
        read = await client.ask("GET", "/v1/stream/s?offset=-1")
        assert (read.status, read.body) == (200, b"[1,2]")
        assert read.headers.keys().isdisjoint({"connection", "transfer-encoding", "keep-alive"})
        assert (await client.ask("HEAD", "/v1/stream/s")).status == 200
        assert (await client.ask("GET", "/v1/stream/none")).status == 404
        assert world.front.counters.http2_connections == 1
        assert world.front.counters.http2_streams == 5
        await world.until(lambda: len(world.front.connections) == 1)

    play(story, settings=HTTP2)


def test_answers_are_those_of_http_1() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s")
        await world.post("s", b"[1]")
        for method, path in (
            ("GET", "/v1/stream/s?offset=-1"),
            ("GET", "/v1/stream/s?offset=bad"),
            ("GET", "/v1/stream/none"),
            ("HEAD", "/v1/stream/s"),
            ("OPTIONS", "/v1/stream/s"),
            ("OPTIONS", "*"),
            ("TRACE", "/v1/stream/s"),
            ("GET", "/v1/streams"),
            ("GET", "/"),
        ):
            old = await world.ask(method, path)
            new = await client.ask(method, path)
            assert new.status == old.status, path
            ids = {"x-request-id", "connection"}
            assert new.headers.keys() - ids == old.headers.keys() - ids, path
            if old.status < 300:
                assert new.body == old.body

    play(story, settings=HTTP2)


def test_a_large_body_goes_up_and_comes_down_within_the_windows() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s", "text/plain")
        data = bytes(range(97, 123)) * 100_000
        sent, number = 0, client.h2.get_next_available_stream_id()
        reply = client.request("POST", "/v1/stream/s", end=False, content_type="text/plain")
        while sent < len(data):
            room = min(client.h2.local_flow_control_window(number), 16_384, len(data) - sent)
            if room:
                client.h2.send_data(number, data[sent : sent + room])
                client.send()
                sent += room
            await asyncio.sleep(0)
        client.h2.end_stream(number)
        client.send()
        assert (await client.answer(reply)).status == 204
        read = await client.ask("GET", "/v1/stream/s?offset=-1")
        whole = read.body
        while "stream-up-to-date" not in read.headers:
            next_one = read.headers["stream-next-offset"]
            read = await client.ask("GET", f"/v1/stream/s?offset={next_one}")
            whole += read.body
        assert whole == data

    play(story, settings=HTTP2)


def test_a_body_with_and_without_a_length_is_taken_and_trailers_are_dropped() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s", "text/plain")
        plain = {"content_type": "text/plain"}
        assert (await client.ask("POST", "/v1/stream/s", b"one ", **plain)).status == 204
        sized = await client.ask("POST", "/v1/stream/s", b"two ", content_length="4", **plain)
        assert sized.status == 204
        number = client.h2.get_next_available_stream_id()
        reply = client.request("POST", "/v1/stream/s", b"three", end=False, **plain)
        client.h2.send_headers(number, [("x-sum", "1"), ("authorization", "x")], end_stream=True)
        client.send()
        assert (await client.answer(reply)).status == 204
        assert (await client.ask("GET", "/v1/stream/s?offset=-1")).body == b"one two three"

    play(story, settings=HTTP2)


def test_events_arrive_as_data_and_end_with_the_stream() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s")
        reply = client.request("GET", "/v1/stream/s?offset=-1&live=sse")
        await world.until(lambda: b"upToDate" in reply.body)
        await world.post("s", b"[1]")
        await world.until(lambda: b"data:[1]" in reply.body)
        await world.ask("DELETE", "/v1/stream/s")
        await client.answer(reply)
        assert reply.ended
        assert b"\r\n" not in reply.body  # no framing of chunks

    play(story, settings=HTTP2)


def test_fifty_event_streams_on_one_connection_get_each_event() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s")
        replies = [client.request("GET", "/v1/stream/s?offset=-1&live=sse") for _ in range(50)]
        await world.until(lambda: all(b"upToDate" in each.body for each in replies))
        for number in range(20):
            await world.post("s", b"[%d]" % number)
        for each in replies:
            await world.until(lambda each=each: b"data:[19]" in each.body)
            assert [b"data:[%d]" % number in each.body for number in range(20)] == [True] * 20

    play(story, settings=HTTP2)


def test_a_reader_that_does_not_read_its_stream_holds_no_other() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s", "text/plain")
        for _ in range(4):
            await world.post("s", b"x" * 200_000, "text/plain")
        client.reads = False
        client.h2.increment_flow_control_window(1 << 24)  # of the connection alone
        slow = client.request("GET", "/v1/stream/s?offset=-1")
        await world.until(lambda: len(slow.body) == 65_535)  # the window of one stream
        for _ in range(3):
            assert (await client.ask("HEAD", "/v1/stream/s")).status == 200
            assert (await client.ask("GET", "/v1/stream/none")).status == 404
        assert not slow.is_over
        client.h2.increment_flow_control_window(1 << 24, client.number(slow))
        client.send()
        assert (await client.answer(slow)).ended
        assert slow.body == b"x" * len(slow.body)

    play(story, settings=HTTP2)


def test_a_client_that_opens_its_windows_later_by_settings_gets_the_rest() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s", "text/plain")
        await world.post("s", b"x" * 50_000, "text/plain")
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        client.send()
        reply = client.request("GET", "/v1/stream/s?offset=-1")
        await world.until(lambda: reply.status)
        assert reply.body == b""
        client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
        client.send()
        assert len((await client.answer(reply)).body) == 50_000

    play(story, settings=HTTP2)


def test_a_reset_cancels_a_long_poll() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s")
        reply = client.request("GET", "/v1/stream/s?offset=now&live=long-poll")
        await world.until(lambda: world.front.readers.waiters)
        client.h2.reset_stream(client.number(reply), ErrorCodes.CANCEL)
        client.send()
        await world.until(lambda: not world.front.readers.waiters)
        await world.until(lambda: len(world.front.connections) == 1)
        assert (await client.ask("HEAD", "/v1/stream/s")).status == 200

    play(story, settings=HTTP2)


def test_a_lost_connection_ends_all_its_readers() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s")
        for _ in range(5):
            client.request("GET", "/v1/stream/s?offset=-1&live=sse")
        await world.until(lambda: len(world.front.readers.live) == 5)
        client.writer.transport.abort()
        await world.until(lambda: not world.front.readers.live)
        await world.until(lambda: not len(world.front.connections))

    play(story, settings=HTTP2)


def test_a_body_that_is_too_large_is_refused_early_and_the_connection_goes_on() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s", "text/plain")
        reply = client.request(
            "POST",
            "/v1/stream/s",
            end=False,
            content_type="text/plain",
            content_length=str(APPEND_BYTES_MAX + 1),
        )
        await client.answer(reply)
        assert reply.status == 413
        assert (await client.ask("HEAD", "/v1/stream/s")).status == 200

    play(story, settings=HTTP2)


def test_a_client_that_waits_for_a_permission_gets_it() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s", "text/plain")
        number = client.h2.get_next_available_stream_id()
        reply = client.request(
            "POST",
            "/v1/stream/s",
            end=False,
            content_type="text/plain",
            content_length="2",
            expect="100-continue",
        )
        await world.until(lambda: reply.interim)
        assert reply.interim == [100]
        client.h2.send_data(number, b"ab", end_stream=True)
        client.send()
        assert (await client.answer(reply)).status == 204

    play(story, settings=HTTP2)


@pytest.mark.parametrize("together", [False, True])
def test_requests_before_the_goaway_of_a_client_are_answered(together: bool) -> None:
    """The response comes in a later packet than the GOAWAY, or is due in the same."""

    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s")
        append = client.request("POST", "/v1/stream/s", b"[1", end=False, content_type=JSON)
        read = client.request("GET", "/v1/stream/s?offset=-1")
        if not together:
            await client.answer(read)
        client.writer.write(GoAwayFrame(0, last_stream_id=0, error_code=0).serialize())
        client.h2.send_data(client.number(append), b"]", end_stream=True)
        client.send()
        assert (await client.answer(append)).status == 204
        assert (await client.answer(read)).status == 200
        await world.until(lambda: client.closed)
        assert client.goodbye == ErrorCodes.NO_ERROR

    play(story, settings=HTTP2)


def test_no_request_behind_the_goaway_of_a_client_is_served() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s")
        append = client.request("POST", "/v1/stream/s", b"[1", end=False, content_type=JSON)
        client.writer.write(GoAwayFrame(0, last_stream_id=0, error_code=0).serialize())
        late = client.request("GET", "/v1/stream/s?offset=-1")
        assert (await client.answer(late)).reset == ErrorCodes.REFUSED_STREAM
        client.h2.send_data(client.number(append), b"]", end_stream=True)
        client.send()
        assert (await client.answer(append)).status == 204

    play(story, settings=HTTP2)


def test_a_stop_says_goodbye_and_ends_behind_the_last_answer() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s")
        live = client.request("GET", "/v1/stream/s?offset=-1&live=sse")
        upload = client.request("POST", "/v1/stream/s", b"[1", end=False, content_type=JSON)
        await world.until(lambda: b"upToDate" in live.body)
        await world.front.stop(30.0)
        await world.until(lambda: client.closed)
        assert client.goodbye == ErrorCodes.NO_ERROR
        assert live.ended
        assert upload.reset == ErrorCodes.REFUSED_STREAM  # it may be sent again

    play(story, settings=HTTP2)


def test_an_idle_connection_ends_with_a_goodbye_and_one_with_a_reader_stays() -> None:
    async def story(world: World) -> None:
        idle, busy = await connected(world), await connected(world)
        await world.put("s")
        assert (await idle.ask("HEAD", "/v1/stream/s")).status == 200
        live = busy.request("GET", "/v1/stream/s?offset=-1&live=sse")
        await world.until(lambda: b"upToDate" in live.body)
        world.front.readers.sweep = lambda tick: None  # type: ignore[method-assign]
        world.front.sweep(world.front.context.ticks.now + IDLE_SECONDS + 1)
        await world.until(lambda: idle.closed)
        assert idle.goodbye == ErrorCodes.NO_ERROR
        assert not busy.closed

    play(story, settings=HTTP2)


def test_a_connection_over_the_limit_is_refused() -> None:
    async def story(world: World) -> None:
        first = await connected(world)
        await world.until(lambda: len(world.front.connections) == 1)
        assert (await first.ask("GET", "/v1/stream/none")).status == 404
        second = await connected(world)
        await world.until(lambda: len(world.front.connections) == 2)
        answer = await first.ask("GET", "/v1/streams")
        assert answer.status == 503  # a stream counts as a connection
        assert b"CONNECTION_LIMIT" in answer.body
        third = await connected(world)
        await world.until(lambda: third.closed)
        assert not second.closed

    play(story, settings=HttpSettings(http2=True, connections_max=2))


def test_http_1_and_a_preface_where_http_2_is_off() -> None:
    async def story(world: World) -> None:
        wire = await world.wire()
        wire.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await wire.answer()).status == 505
        assert (await world.put("s")).status == 201

    play(story)


def test_a_preface_behind_a_request_of_http_1_is_refused() -> None:
    async def story(world: World) -> None:
        wire = await world.wire()
        wire.send(request("GET", "/v1/streams") + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await wire.answer()).status == 200
        assert (await wire.answer()).status == 505

    play(story, settings=HTTP2)


def test_a_preface_in_single_bytes_is_understood() -> None:
    async def story(world: World) -> None:
        wire = await world.wire()
        for byte in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0":
            wire.send(bytes([byte]))
            await asyncio.sleep(0)
        settings = await wire.reader.readexactly(9)
        assert settings[3] == 4  # SETTINGS

    play(story, settings=HTTP2)


def test_the_window_of_the_connection_is_larger_than_the_default() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await client.ask("GET", "/v1/streams")
        assert client.h2.outbound_flow_control_window == H2_CONNECTION_WINDOW_BYTES

    play(story, settings=HTTP2)


def test_a_stream_whose_window_never_opens_is_cut_and_counted() -> None:
    async def story(world: World) -> None:
        client = await connected(world)
        await world.put("s", "text/plain")
        await world.post("s", b"x" * 200_000, "text/plain")
        client.reads = False
        reply = client.request("GET", "/v1/stream/s?offset=-1")
        await world.until(lambda: len(reply.body) == 65_535)
        now = world.front.context.ticks.now
        world.front.sweep(now + 1)
        world.front.sweep(now + 2 + STALL_SECONDS)
        await client.answer(reply)
        assert reply.reset == ErrorCodes.CANCEL
        assert world.front.counters.stalled == 1
        assert not client.closed

    play(story, settings=HTTP2)
