"""States that a core keeps: a query applies what came since the last one, whatever happened between."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from front_world import World
from reducer_world import bind, work
from test_reducers_over_http import URL, as_json, fill, run, state

from polynya.local.api import Page, ReadQuery, Refusal
from polynya.service.reducers import kept_states


def reads_of(world: World, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The names and first records of the reads from now on."""
    seen: list[tuple[str, int]] = []
    read = world.service.read

    async def noted(query: ReadQuery) -> Page | Refusal:
        seen.append((query.name, query.record))
        return await read(query)

    monkeypatch.setattr(world.service, "read", noted)
    return seen


def test_a_query_applies_what_came_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await bind(world, builtin="count")
        await fill(world, *range(5))
        seen = reads_of(world, monkeypatch)
        several = await asyncio.gather(*(state(world) for _ in range(5)))
        assert [as_json(answer)["records"] for answer in several] == [5] * 5
        assert seen == [("carts/ann", 0)], "one of them computed it"
        await fill(world, 5, 6)
        assert as_json(await state(world, "?key=records")) == 7
        assert seen == [("carts/ann", 0), ("carts/ann", 5)]

    run(story)


def test_a_state_that_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_states, "REDUCER_KEPT_STATE_BYTES", 20)

    async def story(world: World) -> None:
        await bind(world, builtin="count")
        await fill(world, *range(50))
        seen = reads_of(world, monkeypatch)
        for _ in range(3):
            await state(world)
        assert seen == [("carts/ann", 0)] * 3
        assert not world.service.reducers.kept._kept

    run(story)


def test_of_many_states_those_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_states, "REDUCER_KEPT_BYTES", 25)

    async def story(world: World) -> None:
        await bind(world, builtin="count")
        for name in ("carts/a", "carts/b", "carts/c"):
            await fill(world, *range(5), name=name)
            await state(world, url=f"/v1/stream/{name}")
        seen = reads_of(world, monkeypatch)
        for name in ("carts/b", "carts/c", "carts/a"):
            await state(world, url=f"/v1/stream/{name}")
        assert seen == [("carts/a", 0)]

    run(story)


def test_kept_states_are_those_of_a_fresh_computation() -> None:
    async def story(world: World) -> None:
        chance = random.Random(3)
        await bind(world, retain=True)
        model: dict[str, Any] = {}
        record = 0
        for _ in range(120):
            act = chance.random()
            if act < 0.5 or not record:
                key, value = f"k{chance.randrange(4)}", chance.choice([None, record])
                await fill(world, value, record_key=key)
                model.pop(key, None)
                if value is not None:
                    model[key] = {"record": record, "value": value}
                record += 1
            elif act < 0.6:
                world.service.clock += 600_000
                await work(world)
            elif act < 0.65:
                await world.ask("DELETE", URL)
                model, record = {}, 0
            elif act < 0.7:
                await bind(world, retain=True, every_records=chance.randrange(1, 99))
            else:
                assert as_json(await state(world)) == model

    run(story)
