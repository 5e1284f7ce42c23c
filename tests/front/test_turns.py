"""The turns of the streams of one connection: in order, few at a time, and the slow ones apart."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from polynya.base.limits import LIVE_READS_MAX
from polynya.front.http.live.turns import Turns


class World:
    """Members whose names begin with `slow` wait until they are released."""

    def __init__(self) -> None:
        self.given: list[str] = []
        self.running = self.most = self.drained = 0
        self.left: dict[str, int] = {}
        self.released = asyncio.Event()
        self.turns = Turns[str](
            self.spawn,
            self.wait,
            self.give,
            self.note,
            is_slow=lambda member: member.startswith("slow"),
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    async def wait(self) -> bool:
        return True

    def note(self) -> None:
        self.drained += 1

    async def give(self, member: str) -> float | None:
        self.given.append(member)
        self.running += 1
        self.most = max(self.most, self.running)
        await (self.released.wait() if member.startswith("slow") else asyncio.sleep(0))
        self.running -= 1
        self.left[member] = self.left.get(member, 1) - 1
        return 0.0 if self.left[member] > 0 else None

    async def until_drained(self) -> None:
        while not self.drained:  # noqa: ASYNC110 (bounded by the test's own time limit)
            await asyncio.sleep(0)


def test_all_have_their_turns_in_order_and_a_busy_one_waits_for_the_others() -> None:
    async def story() -> None:
        world = World()
        names = [f"s{number}" for number in range(50)]
        world.left["s0"] = 3
        for name in names:
            world.turns.add(name)
        world.turns.add("s7")  # waits already
        await world.until_drained()
        assert world.given == [*names, "s0", "s0"]
        assert world.most == LIVE_READS_MAX and world.running == 0

    asyncio.run(story())


def test_slow_ones_leave_half_of_the_tasks_to_the_others() -> None:
    async def story() -> None:
        world = World()
        for number in range(20):
            world.turns.add(f"slow{number}")
        while world.running < LIVE_READS_MAX // 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        names = [f"s{number}" for number in range(20)]
        for name in names:
            world.turns.add(name)
        while not {*names} <= {*world.given}:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert len([name for name in world.given if name.startswith("slow")]) == LIVE_READS_MAX // 2
        world.released.set()
        await world.until_drained()
        assert len(world.given) == 40

    asyncio.run(story())


def test_a_member_that_is_added_during_its_turn_has_another_one() -> None:
    async def story() -> None:
        world = World()
        world.turns.add("slow")
        while not world.given:  # noqa: ASYNC110
            await asyncio.sleep(0)
        world.turns.add("slow")
        world.released.set()
        await world.until_drained()
        assert world.given == ["slow", "slow"]

    asyncio.run(story())
