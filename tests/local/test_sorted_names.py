"""Names in order against a plain sorted list, and pages of streams while others come and go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories.service import story
from worlds.service import World

from polynya.local import local_streams as streams_module
from polynya.local import name_index as names_module
from polynya.local.name_index import SortedNames

NAME = st.text("ab/\U0010ffff", max_size=4)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names_module, "BLOCK", 2)
        patch.setattr(streams_module, "LIST_STEP", 3)
        yield


@given(
    st.sets(NAME, max_size=12),
    st.lists(st.tuples(st.booleans(), NAME), max_size=40),
    st.lists(st.tuples(NAME, NAME), max_size=10),
)
def test_names_are_a_sorted_set(
    first: set[str], changes: list[tuple[bool, str]], asked: list[tuple[str, str]]
) -> None:
    known, names = set(first), SortedNames(first)
    for come, name in changes:
        if come:
            known.add(name)
            names.add(name)
        else:
            known.discard(name)
            names.discard(name)
        assert len(names) == len(known)
    for prefix, after in [*asked, ("", ""), ("a", "a"), ("a", "aa")]:
        expected = sorted(name for name in known if name > after and name.startswith(prefix))
        for count in (1, 2, 3, 100):
            assert names.page(prefix, after, count) == expected[:count]
    assert names.page("", "", 100) == sorted(known - {""})


@story
async def test_pages_hold_all_that_live_throughout_while_streams_come_and_go(world: World) -> None:
    chance = random.Random(3)
    steady = [f"test/{number:03d}" for number in range(0, 60, 2)]
    passing = [f"test/{number:03d}" for number in range(1, 60, 2)]
    for name in steady:
        await world.create(name)
    done = asyncio.Event()

    async def come_and_go() -> None:
        there: set[str] = set()
        while not done.is_set():
            name = chance.choice(passing)
            if name in there:
                assert (await world.delete(name)).code == 0
                there.discard(name)
            else:
                await world.create(name)
                there.add(name)

    others = asyncio.create_task(come_and_go())
    for _ in range(20):
        found: list[str] = []
        while page := await world.service.list_streams("test/", found[-1] if found else "", 7):
            found += [info.name for info in page]
        assert found == sorted(set(found)), "in order, none twice"
        assert [name for name in found if name in steady] == steady
    done.set()
    await others


@story
async def test_what_was_deleted_or_has_expired_is_not_listed_and_another_life_is(
    world: World,
) -> None:
    for name in ("test/a", "test/b", "test/c"):
        await world.create(name, ttl_seconds=8 if name == "test/c" else None)
    await world.delete("test/b")

    async def listed() -> list[str]:
        return [info.name for info in await world.service.list_streams("test/", "", 100)]

    assert await listed() == ["test/a", "test/c"]
    world.clock.ms += 8000
    assert await listed() == ["test/a"]
    await world.create("test/b")
    await world.create("test/c")
    for _ in range(2):
        assert await listed() == ["test/a", "test/b", "test/c"]
        world.kill()
