"""Log time: monotonic, slewed towards the wall clock, stepped forward only, and read once per loop
pass."""

from __future__ import annotations

import asyncio

import pytest

from polynya.engine import log_clock
from polynya.engine.log_clock import LogClock


class Times:
    """The two clocks of a machine, in seconds."""

    CLOCK_BOOTTIME = 7

    def __init__(self) -> None:
        self.boot = 100.0
        self.wall = 1_700_000_000.0

    def clock_gettime(self, which: int) -> float:
        return self.boot

    def time(self) -> float:
        return self.wall

    def go(self, boot: float, wall: float) -> None:
        self.boot += boot
        self.wall += wall


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    made = Times()
    monkeypatch.setattr(log_clock, "time", made)
    return made


def test_it_goes_with_the_boot_clock(times: Times) -> None:
    log = LogClock()
    begin = log.now_ms()
    times.go(10, 10)
    assert log.now_ms() == begin + 10_000


def test_a_wall_that_is_set_back_slows_it_a_little_and_never_turns_it(times: Times) -> None:
    log = LogClock()
    begin = log.now_ms()
    times.go(100, -3600)
    assert begin + 99_900 <= log.now_ms() < begin + 100_000
    times.go(0, -1)
    assert log.now_ms() >= begin + 99_900


def test_a_wall_that_is_far_ahead_is_followed_at_once_and_a_little_ahead_slowly(
    times: Times,
) -> None:
    log = LogClock()
    begin = log.now_ms()
    times.go(1, 3601)
    assert log.now_ms() == begin + 3_601_000
    times.go(10, 10.5)
    assert begin + 3_611_000 <= log.now_ms() <= begin + 3_611_010


def test_it_goes_on_where_the_log_ended(times: Times) -> None:
    floor = int(times.wall * 1000) + 5000
    log = LogClock(floor)
    assert log.now_ms() == floor
    times.go(1, 1)
    assert log.now_ms() > floor


def test_a_pass_of_the_loop_reads_it_once(times: Times) -> None:
    async def run() -> None:
        log = LogClock(loop=asyncio.get_running_loop())
        begin = log.now_ms()
        times.go(1, 1)
        assert log.now_ms() == begin
        await asyncio.sleep(0)
        assert log.now_ms() == begin + 1000
        times.go(1, 1)
        assert log.now_ms() == begin + 1000

    asyncio.run(run())
