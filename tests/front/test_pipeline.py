"""The pipeline of a connection: responses in order, reading under pressure, and idle time."""

from __future__ import annotations

import asyncio
from typing import Any

from polynya.front.common.pipeline import IdleClock, ReadPressure, ResponseQueue, Ticks


class _Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.steps: list[str] = []
        self.closing = False
        self.unread = 0

    def write(self, data: Any) -> None:
        self.sent += data

    def writelines(self, pieces: Any) -> None:
        self.sent += b"".join(pieces)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.steps.append("pause")

    def resume_reading(self) -> None:
        self.steps.append("resume")


def queue_on(wire: _Wire, sent: list[int]) -> ResponseQueue:
    queue = ResponseQueue(lambda: sent.append(queue.sent))
    queue.transport = wire
    return queue


def test_responses_leave_in_the_order_of_their_requests() -> None:
    wire, sent = _Wire(), list[int]()
    queue = queue_on(wire, sent)
    assert [queue.take() for _ in range(4)] == [0, 1, 2, 3]
    queue.send(2, [b"c", memoryview(b"C")])
    queue.send(1, [])  # the request gets no response
    assert (wire.sent, queue.in_flight, sent) == (b"", 4, [])
    queue.is_watched = True
    queue.send(0, b"a")
    assert (wire.sent, queue.in_flight, sent) == (b"acC", 1, [3])
    queue.send(3, b"d")
    assert (wire.sent, queue.in_flight, sent) == (b"acCd", 0, [3, 4])


def test_nothing_follows_the_last_response() -> None:
    wire, sent = _Wire(), list[int]()
    queue = queue_on(wire, sent)
    for _ in range(3):
        queue.take()
    queue.send(2, b"c")
    queue.end_after(1)
    queue.send(1, b"b")
    queue.send(0, b"a")
    assert wire.sent == b"ab" and queue.sent > queue.last and sent == [2]


def test_a_lost_connection_sends_nothing_and_wakes_its_writer() -> None:
    async def story() -> None:
        wire, sent = _Wire(), list[int]()
        queue = queue_on(wire, sent)
        queue.write_paused = queue.is_watched = True
        waiting = [asyncio.ensure_future(queue.wait_writable()) for _ in range(2)]
        await asyncio.sleep(0)
        queue.end()
        assert await asyncio.gather(*waiting) == [False, False]
        queue.send(queue.take(), b"a")
        assert not wire.sent and not sent

    asyncio.run(story())


def test_reading_pauses_once_and_never_on_a_closing_transport() -> None:
    pressure, wire = ReadPressure(), _Wire()
    assert not pressure.steer(full=True), "there is no transport yet"
    pressure.transport = wire
    assert [pressure.steer(full=full) for full in (False, True, True, False)] == [
        False,
        True,
        False,
        True,
    ]
    wire.closing = True
    assert not pressure.steer(full=True)
    assert wire.steps == ["pause", "resume"]


def test_the_idle_time_begins_at_the_last_progress() -> None:
    ticks, wire = Ticks(), _Wire()
    clock, queue = IdleClock(ticks), queue_on(wire, [])
    ticks.now = 10
    assert clock.waited(10, queue) == 10
    queue.send(queue.take(), b"a")  # in the second 10
    assert clock.waited(14, queue) == 4
    wire.unread = 7
    assert clock.waited(16, queue) == 0
    assert clock.waited(20, queue) == 4
    ticks.now = 20
    clock.touch()
    assert clock.waited(21, queue) == 1
