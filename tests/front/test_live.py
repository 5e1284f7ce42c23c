"""Live readers: attached before they catch up, frames shared, slow ones cut, resumed by the last
event's id."""

from __future__ import annotations

import json
import re

import pytest
from front_world import World, play, request

from polynya.base.errors import CorruptData, Unavailable
from polynya.base.limits import SSE_BACKLOG_BYTES_MAX
from polynya.front.http.protocol.settings import HttpSettings
from polynya.local.api import LiveEvent, Page, ReadQuery, Refusal, Sink, StreamInfo
from polynya.wire.http.cursor import current_interval

TEXT = "text/plain"


def control(piece: bytes) -> dict[str, object]:
    found = json.loads(re.findall(rb"event: control\ndata:(\{[^{}]*\})\n\n", piece)[0])
    assert isinstance(found, dict)
    return found


def event_id(piece: bytes) -> str:
    ids = set(re.findall(r"^id:(.*)$", piece.decode(), re.MULTILINE))
    assert len(ids) == 1
    return str(ids.pop())


def test_catching_up_is_one_event_and_live_is_one_event_per_append() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        for number in (1, 2, 3):
            await world.post("s", b"%d" % number)
        reader = await world.sse("s")
        first = await reader.chunk()
        assert first.count(b"event: data") == first.count(b"event: control") == 1
        assert b"data:[1,2,3]\n" in first
        for number in (4, 5):
            await world.post("s", b"%d" % number)
        for number in (4, 5):
            piece = await reader.chunk()
            assert b"event: data\ndata:[%d]\n\nid:" % number in piece
            at = f"{number:016d}_{2 * number:016d}"
            assert control(piece) == {
                "streamNextOffset": at,
                "streamCursor": str(current_interval(world.service.clock)),
                "upToDate": True,
            }
            assert event_id(piece).startswith(at + "~")

    play(story)


def test_an_empty_stream_shows_its_tail_at_once_and_now_skips_the_past() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        assert (
            control(await (await world.sse("s")).chunk())["streamNextOffset"]
            == "0000000000000000_0000000000000000"
        )
        await world.post("s", b"1")
        reader = await world.sse("s", "?live=sse&offset=now")
        piece = await reader.chunk()
        assert b"event: data" not in piece
        assert control(piece)["streamNextOffset"] == "0000000000000001_0000000000000002"

    play(story)


def test_closing_ends_the_events_after_the_data() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        reader = await world.sse("s")
        await reader.chunk()
        await world.post("s", b"1", stream_closed="true")
        piece = await reader.chunk()
        assert b"data:[1]\n" in piece
        assert control(piece) == {
            "streamNextOffset": "0000000000000001_0000000000000002",
            "upToDate": True,
            "streamClosed": True,
        }
        assert await reader.chunk() == b""
        assert await reader.ended()
        again = await world.sse("s", "?live=sse&offset=now")
        assert control(await again.chunk())["streamClosed"] is True
        assert await again.chunk() == b""

    play(story)


def test_a_deleted_stream_ends_with_an_error_event() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        reader = await world.sse("s")
        await reader.chunk()
        await world.ask("DELETE", "/v1/stream/s")
        piece = await reader.chunk()
        assert piece.startswith(b"event: error\ndata:{")
        assert b'"code":"GONE"' in piece
        assert await reader.chunk() == b""

    play(story)


def test_a_frame_is_encoded_once_for_all(monkeypatch: object) -> None:
    async def story(world: World) -> None:
        await world.put("s")
        readers = [await world.sse("s") for _ in range(5)]
        ahead = await world.sse(
            "s", f"?live=sse&offset=-1&cursor={current_interval(world.service.clock) + 7}"
        )
        for reader in (*readers, ahead):
            await reader.chunk()
        published: list[LiveEvent] = []

        class Spy:
            def live(self, event: LiveEvent) -> None:
                published.append(event)

        await world.service.open("default/s").attach(Spy())
        await world.post("s", b"1")
        pieces = {await reader.chunk() for reader in readers}
        assert len(pieces) == 1
        assert list(published[0].frames) == ["sse-chunk"]
        assert (
            int(str(control(await ahead.chunk())["streamCursor"]))
            > current_interval(world.service.clock) + 7
        )

    play(story)


def test_the_last_event_id_wins_over_the_offset() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"1")
        last = event_id(await (await world.sse("s")).chunk())
        await world.post("s", b"2")
        reader = await world.sse("s", "?live=sse&offset=now", last_event_id=last)
        assert b"data:[2]\n" in await reader.chunk()

    play(story)


def test_a_reader_that_was_told_the_end_is_told_to_stop() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        reader = await world.sse("s")
        await reader.chunk()
        await world.post("s", b"1")
        before_the_end = event_id(await reader.chunk())
        await world.ask("POST", "/v1/stream/s", stream_closed="true")
        end = event_id(await reader.chunk())
        again = await world.get("s", "?live=sse&offset=now", last_event_id=end)
        assert (again.status, again.headers["stream-closed"]) == (204, "true")
        untold = await world.sse("s", "?live=sse&offset=now", last_event_id=before_the_end)
        assert control(await untold.chunk())["streamClosed"] is True

    play(story)


def test_a_browser_that_comes_back_too_early_is_not_turned_away_for_ever() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"1")
        last = event_id(await (await world.sse("s")).chunk())

        async def not_yet(*of: object, **more: object) -> StreamInfo | Refusal:
            raise Unavailable("the core is starting")

        world.service.reads.attach = not_yet  # type: ignore[method-assign]
        again = await world.get("s", "?live=sse&offset=-1", last_event_id=last)
        assert (again.status, again.headers["content-type"]) == (200, "text/event-stream")
        assert (
            again.body.startswith(b"event: error\ndata:{")
            and b"UNAVAILABLE" in again.body
            and b"id:" not in again.body
        )
        assert (await world.get("s", "?live=sse&offset=-1")).status == 503

    play(story)


def test_an_id_of_another_life_is_410() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"1")
        last = event_id(await (await world.sse("s")).chunk())
        await world.ask("DELETE", "/v1/stream/s")
        await world.put("s")
        await world.post("s", b"2")
        answer = await world.get("s", "?live=sse&offset=now", last_event_id=last)
        assert (answer.status, answer.error) == (410, "STREAM_RECREATED")
        bad = await world.get("s", "?live=sse&offset=now", last_event_id="garbage")
        assert (bad.status, bad.error) == (400, "INVALID_HEADER")

    play(story)


def test_errors_come_before_the_events() -> None:
    async def story(world: World) -> None:
        assert (await world.get("none", "?live=sse&offset=-1")).error == "NOT_FOUND"
        await world.put("s")
        assert (await world.get("s", "?live=sse")).error == "OFFSET_REQUIRED"
        assert (await world.get("s", "?live=long-poll")).error == "OFFSET_REQUIRED"
        assert not len(world.service.local.feeds)

    play(story)


def test_a_slow_reader_is_cut_with_a_reason_and_others_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        await world.put("s", TEXT)
        slow = await world.sse("s")
        quick = await world.sse("s")
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        body = b"x" * (256 << 10)
        got = 0
        for _ in range(60):
            await world.post("s", body, TEXT)
            while got <= len(body):
                got += len(await quick.chunk())
            got = 0
            if world.front.counters.live_cut:
                break
        assert world.front.counters.live_cut == 1
        logged = next(
            record
            for record in caplog.records
            if record.getMessage().startswith("disconnected a live reader")
        )
        assert (
            logged.__dict__["target"].startswith("/v1/stream/s?")
            and logged.__dict__["unsent"] > SSE_BACKLOG_BYTES_MAX
        )
        assert len(world.front.readers.live) == 1
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        last = b""
        while piece := await slow.chunk():
            last = piece
        assert b'"code":"SLOW_READER"' in last

    play(story)


def test_idle_readers_get_comments() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        reader = await world.sse("s")
        await reader.chunk()
        tick = world.front.context.ticks.now
        world.front.sweep(tick + 1)
        world.front.sweep(tick + 17)
        assert await reader.chunk() == b":\n\n"

    play(story, settings=HttpSettings(sse_recycle_seconds=100.0))


def test_binary_is_base64_and_old_clients_get_no_chunks() -> None:
    async def story(world: World) -> None:
        await world.put("s", "application/octet-stream")
        await world.post("s", b"\x00\xff", "application/octet-stream")
        wire = await world.wire()
        wire.send(b"GET /v1/stream/s?live=sse&offset=-1 HTTP/1.0\r\n\r\n")
        answer = await wire.answer()
        assert answer.headers["stream-sse-data-encoding"] == "base64"
        assert "transfer-encoding" not in answer.headers
        assert (await wire.reader.readuntil(b"\n\n")).endswith(b"event: data\ndata:AP8=\n\n")

    play(story)


def test_what_happens_while_a_reader_catches_up_is_neither_lost_nor_repeated() -> None:
    """Every read waits until more was appended, as a cold page or another core would make it."""

    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"0")
        service, numbers, reads = world.service.reads, iter(range(1, 1000)), 0
        read_nowait = service.read_nowait

        async def append_meanwhile(group: int, query: ReadQuery) -> Page | Refusal:
            nonlocal reads
            reads += 1
            page = read_nowait(group, query)
            assert page is not None
            for _ in range(3):
                await world.post("s", b"%d" % next(numbers))
            return page

        service.read_nowait = lambda group, query: None
        service.read = append_meanwhile  # type: ignore[method-assign]
        reader = await world.sse("s")
        seen: list[int] = []
        while len(seen) < 4:
            for array in re.findall(rb"event: data\ndata:(.*)\n", await reader.chunk()):
                seen += json.loads(array)
        assert seen == [0, 1, 2, 3]
        assert reads == 1  # the kept events took over

    play(story)


def test_more_than_is_kept_while_catching_up_is_read_again() -> None:
    async def story(world: World) -> None:
        await world.put("s", TEXT)
        service, body = world.service.reads, b"x" * (SSE_BACKLOG_BYTES_MAX // 2)
        read_nowait = service.read_nowait

        async def flood(group: int, query: ReadQuery) -> Page | Refusal:
            page = read_nowait(group, query)
            assert page is not None
            del service.read
            service.read_nowait = read_nowait
            for _ in range(3):
                await world.post("s", body, TEXT)
            return page

        service.read_nowait = lambda group, query: None
        service.read = flood  # type: ignore[method-assign]
        reader = await world.sse("s")
        size = 0
        while size < 3 * len(body):
            size += sum(map(len, re.findall(rb"data:(x*)\n", await reader.chunk())))
        assert size == 3 * len(body)

    play(story)


def test_a_gap_in_the_feed_is_filled_by_reading_and_a_cut_feed_ends_the_answer() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        whole, reader = await world.sse("s"), await world.sse("s")
        await whole.chunk()
        await reader.chunk()
        feeds = world.service.local.feeds
        uid = next(iter(feeds.sinks))
        sinks = feeds.sinks[uid]
        feeds.sinks[uid] = dict(list(sinks.items())[:1])
        await world.post("s", b"1")
        feeds.sinks[uid] = sinks
        await world.post("s", b"2")
        assert b"data:[1,2]\n" in await reader.chunk()
        await world.post("s", b"3")
        assert b"data:[3]\n" in await reader.chunk()
        feeds.cut(uid)
        assert await reader.chunk() == b""

    play(story)


def test_a_gap_that_cannot_be_read_ends_the_events_and_nothing_else_is_said() -> None:
    """An answer of its own would come in the midst of the events."""

    async def story(world: World) -> None:
        await world.put("s")
        reader = await world.sse("s")
        await reader.chunk()
        feeds = world.service.local.feeds
        uid = next(iter(feeds.sinks))
        sinks = feeds.sinks.pop(uid)
        await world.post("s", b"1")
        feeds.sinks[uid] = sinks
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.service.reads, "read_nowait", _damaged)
            await world.post("s", b"2")
            assert await reader.chunk() == b""
            assert await reader.ended()
        assert not len(feeds)

    play(story)


def _damaged(group: int, query: object) -> None:
    raise CorruptData("a slice is not what it was")


def test_a_long_poll_gets_what_came_between_the_read_and_the_attachment() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        service = world.service.reads

        async def slowly(
            group: int, name: str, sink: Sink, *, local: bool = False, numbers: bool = False
        ) -> StreamInfo | Refusal:
            await world.post("s", b"1")
            return await type(service).attach(service, group, name, sink)

        service.attach = slowly  # type: ignore[method-assign]
        answer = await world.get("s", "?offset=-1&live=long-poll&timeout_ms=60000")
        assert answer.body == b"[1]"
        assert answer.headers["stream-cursor"] == str(current_interval(world.service.clock))

    play(story)


def test_a_long_poll_at_now_waits_for_what_comes_and_knows_of_deletion() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        await world.post("s", b"1")
        for ending in ("post", "delete"):
            waiting = world.meanwhile(world.get("s", "?offset=now&live=long-poll&timeout_ms=60000"))
            await world.until(lambda: world.front.readers.waiters)
            if ending == "post":
                await world.post("s", b"2")
                assert (await waiting).body == b"[2]"
            else:
                await world.ask("DELETE", "/v1/stream/s")
                assert (await waiting).status == 404

    play(story)


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_live_reader_whose_incarnation_is_none_leaves_nothing_behind(live: str) -> None:
    """Detach the reader: an attached one would keep a stream with a TTL alive."""

    async def story(world: World) -> None:
        await world.put("s")
        for text, status in (("no-number", 400), ("77", 412)):
            answer = await world.get("s", f"?live={live}&offset=-1", stream_incarnation=text)
            assert answer.status == status
        assert not len(world.service.local.feeds)

    play(story)


def test_requests_behind_a_long_poll_wait_and_are_answered() -> None:
    async def story(world: World) -> None:
        await world.put("s")
        wire = await world.wire()
        wire.send(
            request("GET", "/v1/stream/s?offset=-1&live=long-poll&timeout_ms=20")
            + request("HEAD", "/v1/stream/s")
        )
        poll = await wire.answer()
        assert (poll.status, poll.headers["stream-up-to-date"]) == (204, "true")
        assert (await wire.answer(method="HEAD")).status == 200

    play(story)
