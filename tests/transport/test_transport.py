"""Stories of the transport: two cores in one loop, and strangers on raw sockets."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polling import wait_for

from polynya.base.errors import CorruptData, NotLeader, OutcomeUnknown, Unavailable
from polynya.transport import (
    PushStream,
    Reply,
    Transport,
    backoff,
    link,
    peer,
    peer_listener,
    transport,
)
from polynya.transport.link import HEADER, PROTOCOL_VERSION, FrameType

ECHO, HOLD, FAIL, COUNT = 1, 2, 3, 4


def head(length: int, type_: int, kind: int, ident: int) -> bytes:
    """Return the header of a frame between cores of one node."""
    return HEADER.pack(length, type_, kind, ident, 0)


Answer = bytes | BaseException
run = asyncio.run


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"], autouse=True)
def each_loop(request, monkeypatch):
    """Every story runs on both loops."""
    monkeypatch.setattr(sys.modules[__name__], "run", request.param)


@asynccontextmanager
async def pair(directory: os.PathLike[str]) -> AsyncIterator[tuple[Transport, Transport]]:
    """Core 0, which asks, and core 1, which echoes."""
    asking, answering = (
        Transport(0, 2, str(directory), start_id="s"),
        Transport(1, 2, str(directory), start_id="s"),
    )
    answering.on(ECHO, lambda body, reply, core: reply(body))
    await answering.start()
    await asking.start()
    await asking.wait_connected()
    try:
        yield asking, answering
    finally:
        await asking.close()
        await answering.close()


def test_calls_are_answered_each_with_its_own(tmp_path):
    async def story():
        async with pair(tmp_path) as (asking, _):
            bodies = [b"", b"x", bytes(70_000), os.urandom(3 << 20)] + [
                b"%d" % number for number in range(2000)
            ]
            answers = await asyncio.gather(*(asking.call(1, ECHO, body) for body in bodies))
            assert answers == bodies
            assert asking.counters() == {
                "connected": 1,
                "outstanding": 0,
                "refused": 0,
                "failed": 0,
            }

    run(story())


def test_one_who_cannot_take_an_answer_costs_nobody_else_theirs(tmp_path):
    """Lose one response, one connection or one peer; the others still get their responses."""

    async def story():
        faults = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: faults.append(context["exception"])
        )
        heard, ended = [], []

        def fails(answer):
            raise KeyError(answer if isinstance(answer, bytes) else type(answer))

        def ask(kind):
            asking.call_nowait(1, kind, b"x", fails)
            asking.call_nowait(1, kind, b"x", heard.append)

        async with pair(tmp_path) as (asking, answering):
            reached = []
            answering.on(HOLD, lambda body, reply, core: reached.append(reply))
            answering.on_stream(COUNT, lambda body, push, core: reached.append(push))
            ask(ECHO)
            await wait_for(lambda: heard)
            assert heard == [b"x"] and asking.counters()["connected"] == 1, "the connection goes on"
            asking.subscribe(1, COUNT, b"", heard.append, fails)
            asking.subscribe(1, COUNT, b"", heard.append, ended.append)
            ask(HOLD)
            await wait_for(lambda: len(reached) == 4)
            await answering.close()
            await wait_for(lambda: ended)
            assert isinstance(heard[1], OutcomeUnknown) and isinstance(ended[0], Unavailable)
            ask(ECHO)
            await wait_for(lambda: len(heard) == 3)
            assert isinstance(heard[2], Unavailable)
        assert [fault.args for fault in faults] == [
            (b"x",),
            (OutcomeUnknown,),
            (Unavailable,),
            (Unavailable,),
        ]

    run(story())


def test_both_directions_are_separate(tmp_path):
    async def story():
        async with pair(tmp_path) as (zero, one):
            zero.on(HOLD, lambda body, reply, core: reply(b"from %d: " % core + body))
            await one.wait_connected()
            assert await one.call(0, HOLD, b"hi") == b"from 1: hi"
            assert await zero.call(1, ECHO, b"ho") == b"ho"

    run(story())


def test_cores_have_met_when_each_has_reached_the_other(tmp_path):
    async def story():
        early, late = (Transport(core, 2, str(tmp_path), start_id="s") for core in (0, 1))
        await early.start()
        meeting = asyncio.create_task(early.wait_met())
        missing = early._peers.by_core[1]
        await wait_for(lambda: missing._backoff._pause > 0.1, what="it tries only now and then")
        assert not meeting.done() and early.missing_cores() == [1]
        await late.start()
        async with asyncio.timeout(60):
            await late.wait_met()
            # each knows of itself when it has met the other: not both in the same pass of the loop
            await meeting
        assert early.counters()["connected"] == late.counters()["connected"] == 1
        assert early.missing_cores() == late.missing_cores() == []
        await early.close()
        await late.close()

    run(story())


def test_who_is_reached_reaches_back_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(backoff, "SECONDS", 3600.0)
    monkeypatch.setattr(backoff, "SECONDS_MAX", 3600.0)
    waiting, wait = [], backoff.Backoff.wait

    async def noted(self):
        waiting.append(self)
        await wait(self)

    monkeypatch.setattr(backoff.Backoff, "wait", noted)

    async def story():
        early, late = (Transport(core, 2, str(tmp_path), start_id="s") for core in (0, 1))
        await early.start()
        # it has tried in vain, and would try again in an hour
        await wait_for(lambda: waiting and (tmp_path / "core-0.sock").exists())
        await late.start()
        async with asyncio.timeout(60):
            await early.wait_met()
        await early.close()
        await late.close()

    run(story())


def test_one_way_messages_arrive_in_order(tmp_path):
    async def story():
        async with pair(tmp_path) as (asking, answering):
            came: list[bytes] = []
            answering.on(HOLD, lambda body, reply, core: came.append(body))
            sent = [b"%d" % number for number in range(100)]
            assert all(asking.send(1, HOLD, body) for body in sent)
            await wait_for(lambda: len(came) == 100)
            assert came == sent

    run(story())


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (Unavailable("full"), Unavailable("full")),
        (OutcomeUnknown("perhaps"), OutcomeUnknown("perhaps")),
        (CorruptData("bad"), CorruptData("bad")),
        (NotLeader(3), NotLeader(3)),
        (NotLeader(0), NotLeader(0)),
        (KeyError("x"), OutcomeUnknown("KeyError: 'x'")),
    ],
)
def test_errors_travel_as_what_they_are(tmp_path, raised, expected):
    def handler(body: bytes, reply: Reply, core: int) -> None:
        raise raised

    async def story():
        async with pair(tmp_path) as (asking, answering):
            answering.on(FAIL, handler)
            with pytest.raises(type(expected), match=str(expected)) as raised_there:
                await asking.call(1, FAIL, b"")
            assert vars(raised_there.value) == vars(expected)
            assert await asking.call(1, ECHO, b"alive") == b"alive"

    run(story())


def test_an_unknown_kind_is_refused_not_lost(tmp_path):
    async def story():
        async with pair(tmp_path) as (asking, _):
            with pytest.raises(Unavailable, match="kind 99"):
                await asking.call(1, 99, b"")
            ends: list[BaseException | None] = []
            asking.subscribe(1, 99, b"", lambda body: None, ends.append)
            await wait_for(lambda: ends)
            assert isinstance(ends[0], Unavailable)

    run(story())


def test_a_peer_that_dies_mid_call_leaves_the_outcome_unknown(tmp_path):
    async def story():
        async with pair(tmp_path) as (asking, answering):
            held: list[Reply] = []
            answering.on(HOLD, lambda body, reply, core: held.append(reply))
            call = asyncio.create_task(asking.call(1, HOLD, b""))
            await wait_for(lambda: held)
            await answering.close()
            with pytest.raises(OutcomeUnknown, match="broke before it answered"):
                await call
            held[0](b"too late")  # no peer is up: ignored

    run(story())


def test_what_was_not_handed_to_the_socket_was_certainly_not_applied(tmp_path):
    async def story():
        async with pair(tmp_path) as (asking, _):
            answers: list[Answer] = []
            asking.call_nowait(1, ECHO, b"queued", answers.append)
            # in the same pass of the loop: the frame has not left
            asking._peers.by_core[1]._link.close()
            await wait_for(lambda: answers)
            assert isinstance(answers[0], Unavailable)

    run(story())


def test_calls_wait_for_a_peer_that_restarts(tmp_path, monkeypatch):
    monkeypatch.setattr("polynya.transport.peer.WAIT_SECONDS", 60.0)

    async def story():
        async with pair(tmp_path) as (asking, answering):
            await answering.close()
            await wait_for(lambda: not asking._peers.by_core[1].connected)
            call = asyncio.create_task(asking.call(1, ECHO, b"patience"))
            messages: list[bytes] = []
            await asyncio.sleep(0)
            reborn = Transport(1, 2, str(tmp_path), start_id="s")
            reborn.on(ECHO, lambda body, reply, core: reply(body))
            reborn.on_stream(COUNT, lambda body, push, core: push.item(b"item"))
            asking.subscribe(1, COUNT, b"", messages.append, lambda error: None)
            await reborn.start()
            assert await call == b"patience"
            await wait_for(lambda: messages)
            await reborn.close()

    run(story())


def test_a_peer_that_stays_away_is_unavailable_first_late_then_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(peer, "WAIT_SECONDS", 0.02)
    monkeypatch.setattr(transport, "TICK_SECONDS", 0.01)

    async def story():
        asking = Transport(0, 2, str(tmp_path))
        await asking.start()
        with pytest.raises(Unavailable, match="is down"):
            await asking.call(1, ECHO, b"")
        answers: list[Answer] = []
        asking.call_nowait(1, ECHO, b"", answers.append)
        assert isinstance(answers[0], Unavailable)
        assert asking.send(1, ECHO, b"") is False
        assert asking.counters()["outstanding"] == 0
        await asking.close()

    run(story())


def test_a_peer_that_hangs_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "TICK_SECONDS", 0.01)

    async def story():
        async with pair(tmp_path) as (_, answering):
            held: list[Reply] = []
            answering.on(HOLD, lambda body, reply, core: held.append(reply))
            asking = Transport(0, 2, str(tmp_path / "x"), start_id="s", call_seconds=60.0)
            (tmp_path / "x").mkdir()
            os.symlink(tmp_path / "core-1.sock", tmp_path / "x" / "core-1.sock")
            await asking.start()
            # what is not sent in time is refused otherwise
            assert await asking.call(1, ECHO, b"met") == b"met"
            monkeypatch.setattr(asking._peers.by_core[1], "_call_seconds", 0.3)
            with pytest.raises(OutcomeUnknown, match="did not answer within"):
                await asking.call(1, HOLD, b"")
            await wait_for(lambda: held)
            held[0](b"late")
            monkeypatch.setattr(asking._peers.by_core[1], "_call_seconds", 60.0)
            assert await asking.call(1, ECHO, b"next") == b"next"
            await asking.close()

    run(story())


def test_over_the_bounds_a_call_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(peer, "CALLS_MAX", 3)

    async def story():
        async with pair(tmp_path) as (asking, _):
            answers: list[Answer] = []
            for _ in range(5):
                asking.call_nowait(1, ECHO, b"", answers.append)
            assert [type(answer) for answer in answers] == [Unavailable, Unavailable]
            await wait_for(lambda: len(answers) == 5)
            assert answers[2:] == [b"", b"", b""]
            assert asking.counters()["refused"] == 2

    run(story())


def test_unsent_bytes_are_bounded_and_recover(tmp_path, monkeypatch):
    monkeypatch.setattr(link, "QUEUE_BYTES_MAX", 1 << 20)

    async def story():
        async with pair(tmp_path) as (asking, _):
            answers: list[Answer] = []
            for _ in range(10):
                asking.call_nowait(1, ECHO, bytes(1 << 19), answers.append)
            assert 5 <= len(answers) <= 8 and all(
                isinstance(answer, Unavailable) for answer in answers
            )
            await wait_for(lambda: len(answers) == 10)
            assert await asking.call(1, ECHO, b"again") == b"again"

    run(story())


def test_an_answer_too_large_is_an_error_and_not_the_end_of_the_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_listener, "FRAME_BYTES_MAX", 1000)

    async def story():
        async with pair(tmp_path) as (asking, answering):
            answering.on_stream(COUNT, lambda body, push, core: push.item(bytes(1001)))
            assert await asking.call(1, ECHO, bytes(1000)) == bytes(1000)
            with pytest.raises(OutcomeUnknown, match="1001 bytes, more than the 1000"):
                await asking.call(1, ECHO, bytes(1001))
            ends: list[BaseException | None] = []
            asking.subscribe(1, COUNT, b"", lambda item: None, ends.append)
            await wait_for(lambda: ends)
            assert isinstance(ends[0], OutcomeUnknown)
            assert asking.counters()["failed"] == 0

    run(story())


def test_a_subscription_gets_everything_in_order_then_its_end(tmp_path):
    def count(body: bytes, push: PushStream, core: int) -> None:
        for number in range(int(body)):
            push.item(b"%d" % number)
        push.end()
        push.item(b"after the end")

    async def story():
        async with pair(tmp_path) as (asking, answering):
            answering.on_stream(COUNT, count)
            items: list[bytes] = []
            ends: list[BaseException | None] = []
            asking.subscribe(1, COUNT, b"500", items.append, ends.append)
            await wait_for(lambda: ends)
            assert items == [b"%d" % number for number in range(500)]
            assert ends == [None]

    run(story())


def test_a_cancelled_subscription_is_silent_and_told_to_the_other_side(tmp_path):
    async def story():
        async with pair(tmp_path) as (asking, answering):
            pushes: list[PushStream] = []
            cancelled: list[bool] = []

            def serve(body: bytes, push: PushStream, core: int) -> None:
                push.on_cancel = lambda: cancelled.append(True)
                pushes.append(push)

            answering.on_stream(COUNT, serve)
            items: list[bytes] = []
            ends: list[BaseException | None] = []
            subscription = asking.subscribe(1, COUNT, b"", items.append, ends.append)
            await wait_for(lambda: pushes)
            subscription.cancel()
            subscription.cancel()
            pushes[0].item(b"in between")
            await wait_for(lambda: cancelled)
            assert not pushes[0].open
            pushes[0].item(b"after")
            await asking.call(1, ECHO, b"")
            assert items == [] and ends == [] and cancelled == [True]

    run(story())


def test_a_broken_connection_ends_subscriptions_on_both_sides(tmp_path):
    async def story():
        async with pair(tmp_path) as (asking, answering):
            cancelled: list[bool] = []

            def serve(body: bytes, push: PushStream, core: int) -> None:
                push.on_cancel = lambda: cancelled.append(True)
                push.item(b"first")

            answering.on_stream(COUNT, serve)
            items: list[bytes] = []
            ends: list[BaseException | None] = []
            asking.subscribe(1, COUNT, b"", items.append, ends.append)
            await wait_for(lambda: items)
            asking._peers.by_core[1]._link.close()
            await wait_for(lambda: ends and cancelled)
            assert isinstance(ends[0], Unavailable)
            await asking.wait_connected()
            assert await asking.call(1, ECHO, b"back") == b"back"

    run(story())


def test_a_subscriber_that_does_not_read_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(link, "QUEUE_BYTES_MAX", 1 << 20)

    async def story():
        async with pair(tmp_path) as (_, answering):
            pushes: list[PushStream] = []
            cancelled: list[bool] = []

            def serve(body: bytes, push: PushStream, core: int) -> None:
                push.on_cancel = lambda: cancelled.append(True)
                pushes.append(push)

            answering.on_stream(COUNT, serve)
            reader = socket.socket(socket.AF_UNIX)
            reader.connect(str(tmp_path / "core-1.sock"))
            reader.sendall(
                head(1, FrameType.HELLO, PROTOCOL_VERSION, 7)
                + b"s"
                + head(0, FrameType.OPEN, COUNT, 1)
            )
            await wait_for(lambda: pushes)
            for _ in range(200):
                pushes[0].item(bytes(1 << 16))
                await asyncio.sleep(0)
            assert cancelled == [True] and not pushes[0].open
            reader.close()

    run(story())


def _drops(directory: os.PathLike[str], data: bytes) -> bytes:
    """Return the bytes that a raw client gets until the connection ends."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(directory) + "/core-1.sock")
        client.sendall(data)
        got = b""
        while piece := client.recv(65536):
            got += piece
        return got


HELLO = head(1, FrameType.HELLO, PROTOCOL_VERSION, 7) + b"s"


@pytest.mark.parametrize(
    "data",
    [
        head(1, FrameType.HELLO, PROTOCOL_VERSION, 7) + b"t",  # another start of the node
        head(1, FrameType.HELLO, PROTOCOL_VERSION + 1, 7) + b"s" + HELLO,
        head(0, FrameType.CALL, ECHO, 1),  # no hello
        HELLO + head(link.FRAME_BYTES_MAX + 1, FrameType.CALL, ECHO, 1),
        HELLO + head(0, 200, ECHO, 1),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_strangers_are_dropped_without_an_answer(tmp_path, data):
    async def story():
        async with pair(tmp_path) as (asking, _):
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(_drops, tmp_path, data) == b""
            assert await asking.call(1, ECHO, b"unharmed") == b"unharmed"

    run(story())


# the loops' fixture
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.integers(0, 8),
            st.integers(0, 65535),
            st.integers(0, 2**64 - 1),
            st.binary(max_size=80),
        )
    ),
    st.data(),
)
def test_frames_in_any_pieces_are_the_same_frames(frames, data):
    async def story():
        stream = b"".join(
            head(len(body), type_, kind, ident) + body for type_, kind, ident, body in frames
        )
        cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
        got: list[tuple[int, int, int, bytes]] = []
        receiver = link.FrameLink(lambda: None, lambda *frame: got.append(frame), lambda: None)
        receiver.up = True
        for begin, end in pairwise([0, *cuts, len(stream)]):
            if end > begin:
                receiver.data_received(stream[begin:end])
        assert got == frames

    asyncio.run(story())


def test_a_large_frame_in_small_pieces_is_not_copied_each_time():
    async def story():
        got: list[int] = []
        receiver = link.FrameLink(
            lambda: None, lambda type_, kind, ident, body: got.append(len(body)), lambda: None
        )
        receiver.up = True
        receiver.data_received(head(32 << 20, FrameType.CALL, 1, 1))
        for _ in range(2 << 10):
            receiver.data_received(bytes(16 << 10))
        assert got == [32 << 20]

    run(story())


def test_a_socket_left_by_a_killed_core_is_replaced(tmp_path):
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "core-1.sock"))
    stale.close()

    async def story():
        async with pair(tmp_path) as (asking, _):
            assert await asking.call(1, ECHO, b"new") == b"new"
        assert list(tmp_path.iterdir()) == []

    run(story())
