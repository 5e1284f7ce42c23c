"""The tasks of simulated processes: one that is freed before its end is a defect, except in a dead
process. Tasks of a dying process end in the order of their creation."""

from __future__ import annotations

import asyncio
import gc

import pytest
from sim.loop import in_order, run_simulated
from sim.process import Process


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def freed(*, over: bool) -> str:
    """A process begins a task that nothing holds and nothing ends."""
    process = Process()
    process.run(lambda: asyncio.ensure_future(never()))
    await asyncio.sleep(0.01)
    process.over = over
    gc.collect()
    return "the end"


def test_no_task_of_a_process_that_died_ends() -> None:
    assert run_simulated(freed(over=True)) == "the end"


def test_a_task_that_nothing_holds_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="destroyed but it is pending"):
        run_simulated(freed(over=False))


def test_tasks_that_are_cancelled_are_so_in_the_order_in_which_they_began() -> None:
    async def story() -> list[int]:
        ended: list[int] = []

        async def work(number: int) -> None:
            try:
                await never()
            finally:
                ended.append(number)

        tasks = {asyncio.ensure_future(work(number)) for number in range(100)}
        await asyncio.sleep(0)
        for task in in_order(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return ended

    assert run_simulated(story()) == list(range(100))
