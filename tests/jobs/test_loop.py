"""The loop of a background job: when it runs, what it retries, how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import inf
from types import SimpleNamespace

import pytest
from sim.loop import run_simulated

from polynya.jobs import Failures, pause_after, repeat

log = logging.getLogger("polynya.test")


def times_of(
    outcomes: list[float | Exception | None],
    failures: Failures | None = None,
    *,
    wake_at: float = inf,
    at_once: bool = True,
) -> list[float]:
    """Return when a job with an interval of 10 s runs; it ends after these outcomes."""
    times: list[float] = []

    async def story() -> None:
        loop, wake = asyncio.get_running_loop(), asyncio.Event()
        began, left = loop.time(), iter(outcomes)
        if wake_at < inf:
            loop.call_at(began + wake_at, wake.set)

        async def work() -> float | None:
            times.append(round(loop.time() - began, 3))
            outcome = next(left, asyncio.CancelledError())
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        with pytest.raises(asyncio.CancelledError):
            await repeat(work, 10, failures, wake=wake if wake_at < inf else None, at_once=at_once)

    run_simulated(story())
    return times


def test_work_runs_at_once_or_after_a_rest_that_it_may_choose() -> None:
    assert times_of([None, None]) == [0, 10, 20]
    assert times_of([None, None], at_once=False) == [10, 20, 30]
    assert times_of([3, 0, None]) == [0, 3, 3, 13]


def test_an_event_ends_a_rest_and_one_during_the_work_the_next_rest() -> None:
    assert times_of([None, None], wake_at=4) == [0, 4, 14]
    assert times_of([inf, None], wake_at=25) == [0, 25, 35]

    async def story() -> float:
        loop, wake = asyncio.get_running_loop(), asyncio.Event()

        async def work() -> float:
            if runs:
                raise asyncio.CancelledError
            runs.append(loop.time())
            await asyncio.sleep(1)
            wake.set()
            return inf

        runs: list[float] = []
        with pytest.raises(asyncio.CancelledError):
            await repeat(work, 10, wake=wake)
        return loop.time() - runs[0]

    assert run_simulated(story()) == 1


def test_a_fault_is_retried_and_logged_once_until_the_work_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counters = SimpleNamespace(failures=0)
    failures = Failures(log, "cannot work; retrying", OSError, counters=counters)
    outcomes: list[float | Exception | None] = [OSError("a"), OSError("a"), OSError("b"), None]
    assert times_of([*outcomes, OSError("b")], failures) == [0, 10, 20, 30, 40, 50]
    assert [each.error for each in caplog.records] == ["a", "b", "b"]  # type: ignore[attr-defined]
    assert counters.failures == 4
    assert (failures.in_a_row, failures.reason) == (1, "b")


def test_any_other_fault_ends_the_job() -> None:
    async def work() -> None:
        raise ValueError("a defect")

    story: Callable[[], Awaitable[None]] = lambda: repeat(work, 1, Failures(log, "", OSError))  # noqa: E731
    with pytest.raises(ValueError, match="a defect"):
        run_simulated(story())


def test_pauses_double_up_to_half_a_minute() -> None:
    assert [pause_after(failures) for failures in (1, 2, 3, 7, 10_000)] == [0.5, 1, 2, 30, 30]
