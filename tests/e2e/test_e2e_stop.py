"""SIGTERM: waiting requests are answered, those in flight are answered or cut. Acknowledged data
stays, and the node exits soon and cleanly."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
from e2e_crashes import PlainWriter, at_work
from e2e_world import JSON, World, address, drain, live_readers, metric, read_until
from long_tests import long
from polling import wait_until
from product import ColdNode

pytestmark = pytest.mark.process
STOP_SECONDS = 15.0  # the readers would wait for a minute


@pytest.mark.parametrize("cores", [2, *long([1])])
def test_a_stop_with_waiting_readers_is_quick_and_clean(world: World, cores: int) -> None:
    world.kind = ColdNode  # the whole way of a signal
    world.start("--cores", str(cores), "--long-poll-timeout", "60")
    assert world.ask("PUT", "/v1/stream/stop/s", b"[1]", **JSON).status == 201
    with contextlib.ExitStack() as stack:
        polls = live_readers(world, "stop/s?offset=now&live=long-poll", 50, stack)
        events = live_readers(world, "stop/s?offset=now&live=sse", 50, stack)
        half = stack.enter_context(socket.create_connection(address(world.url), timeout=60))
        half.sendall(b"POST /v1/stream/stop/s HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        idle = stack.enter_context(socket.create_connection(address(world.url), timeout=60))
        for connection in events:
            assert b"streamNextOffset" in read_until(connection, b"streamNextOffset")
        wait_until(
            lambda: metric(world, "polynya_http_long_polls_total") >= 50, what="long-polls to wait"
        )
        began = time.monotonic()
        code = world.stop()
        took = time.monotonic() - began
        assert code == 0, world.log
        assert took < STOP_SECONDS, f"{took:.1f} s"
        answers = [drain(connection) for connection in polls]
        assert all(answer.startswith(b"HTTP/1.1 204") for answer in answers if answer), answers
        assert sum(map(bool, answers)) >= 45  # one that had not been read yet is cut
        assert all(drain(connection).endswith(b"0\r\n\r\n") for connection in events)
        assert drain(idle) == b""
    world.wait_gone()


@pytest.mark.parametrize("slow", [1, *long([0])])
def test_no_core_goes_away_before_all_have_answered(world: World, slow: int) -> None:
    """Delay SIGTERM of one core, perhaps the stream's, by a second: waiting requests at both cores
    are still answered."""
    world.start("--cores", "2", "--long-poll-timeout", "60")
    assert world.ask("PUT", "/v1/stream/stop/s", b"[1]", **JSON).status == 201
    with contextlib.ExitStack() as stack:
        polls = live_readers(world, "stop/s?offset=now&live=long-poll", 30, stack)
        wait_until(
            lambda: metric(world, "polynya_http_long_polls_total") >= 30, what="long-polls to wait"
        )
        late = world.cores()[slow]
        late.suspend()
        codes: list[int] = []
        stopper = threading.Thread(target=lambda: codes.append(world.stop()))
        stopper.start()
        stopper.join(1.0)
        assert stopper.is_alive(), "the node waits for the core that is late"
        late.resume()
        stopper.join(STOP_SECONDS)
        assert codes == [0], world.log
        assert [drain(connection)[:12] for connection in polls] == [b"HTTP/1.1 204"] * 30
    world.wait_gone()


def test_a_stop_under_load_keeps_what_was_acknowledged(world: World) -> None:
    flags = ("--cores", "2")
    world.start(*flags)
    writers = [PlainWriter(world, f"stop/w{number}") for number in range(6)]
    codes: list[int] = []
    with at_work(list(writers)) as progress:
        progress(300)
        stopper = threading.Thread(target=lambda: codes.append(world.stop()))
        began = time.monotonic()
        stopper.start()
        stopper.join(20)
        assert codes == [0], world.log
        assert time.monotonic() - began < STOP_SECONDS
        world.start(*flags)
        progress(100)
    for writer in writers:
        writer.check()
