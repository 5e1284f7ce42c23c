"""Incremental snapshots: after any interruption the state comes back, and deleted data stays
deleted."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from stories.service import story_of
from worlds.fake_disk import FakeDisk
from worlds.service import World, name_in

from polynya.base.errors import PolynyaError
from polynya.engine.snapshots import encode as encoding
from polynya.engine.snapshots import merge_process
from polynya.engine.snapshots.merge_process import due, fold_beside
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.machine import Machine
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code
from polynya.stream.snapshots import deltas
from polynya.stream.snapshots.encode import snapshot_of
from polynya.wal.snapshots import SnapshotLink, SnapshotStore

NAMES = [name_in(group, hint=f"s{number}-") for number in range(30) for group in (1, 2)]
story = story_of(World)


def links(world: World, group: int = 1) -> list[SnapshotLink]:
    return world.engine.storage.snapshots.links(group)


def written(world: World) -> int:
    return world.engine.snapshotter.counters.bytes


@story
async def test_a_round_writes_what_changed(world: World) -> None:
    for name in NAMES:
        await world.create(name)
    await world.snapshot()
    first = written(world)
    await world.append(NAMES[0], b"x")
    await world.delete(NAMES[2])
    await world.snapshot()
    assert 0 < written(world) - first < first / 4
    assert [link.delta for link in links(world)] == [True, True]
    state, before = world.state(), written(world)
    await world.snapshot()
    assert written(world) == before, "nothing has changed"
    world.kill()
    assert world.state() == state
    await world.append(NAMES[0], b"y")
    await world.snapshot()
    assert written(world) < first / 4, "a new life goes on from the chain on the disk"
    state = world.state()
    world.power_cut()
    assert world.state() == state
    assert (await world.read(NAMES[0]), await world.code_of(NAMES[2])) == (b"xy", Code.NOT_FOUND)


@story
async def test_snapshots_that_somebody_deleted_are_written_anew(world: World) -> None:
    """All that they said is in memory: a start would find a journal with a hole."""
    for name in NAMES:
        await world.create(name)
    await world.snapshot()
    for number in range(36):
        await world.append(NAMES[0], b"%d;" % number * 1000)
        await world.service.flush("")
        await world.snapshot()
    snapshotter = world.engine.snapshotter
    await snapshotter.look()
    assert not snapshotter._wanted
    before = written(world)
    first, second = (
        [path for path in world.disk.files if path.name.startswith(f"g0000{group}")]
        for group in (1, 2)
    )
    assert len(first) > 1 and second
    for path in (first[0], *second):  # one part of a chain, and all of another
        world.disk.unlink(path)
    await snapshotter.look()
    assert snapshotter.due()
    await world.snapshot()
    assert written(world) > before and not snapshotter.due()
    state = world.state()
    world.power_cut()
    assert world.state() == state


@story
async def test_snapshots_that_are_damaged_are_written_anew(world: World) -> None:
    """Rewrite damaged snapshots: the merge detects them; no start could continue from them."""
    for name in NAMES:
        await world.create(name)
    await world.snapshot()
    await world.append(NAMES[0], b"x")
    await world.snapshot()
    first, last = links(world)
    world.disk.flip(Path(f"/core-0/snapshots/g00001-{first.index:020d}.snap"), -1)
    for number in range(20):
        await world.append(NAMES[number % 10 * 2], b"y")
        await world.snapshot()
    assert links(world)[0].index > last.index
    state = world.state()
    world.power_cut()
    assert world.state() == state


@story
async def test_the_chain_stays_short_and_small(world: World) -> None:
    for name in NAMES:
        await world.create(name)
    await world.snapshot()
    for number in range(100):
        await world.append(NAMES[number % 7 * 2], b"x")
        await world.snapshot()
        if number % 10 == 0:
            await world.service.flush("")
        chain = links(world)
        assert len(chain) < 8 and sum(link.length for link in chain) < 3 * len(
            snapshot_of(world.local.machines[1])
        )
    assert world.engine.snapshotter.counters.folded > 50
    state = world.state()
    world.kill()
    assert world.state() == state


@story
async def test_slices_go_on_while_the_log_does(world: World) -> None:
    """Streams that change, come and go while others are encoded are what they are at the end."""
    for name in NAMES:
        await world.create(name)
    old, encoding.SLICE_BYTES = encoding.SLICE_BYTES, 1
    turned = asyncio.Event()

    async def pause(_: float) -> None:
        """Something is written between two slices, however long that takes."""
        turned.clear()
        await turned.wait()

    encoding.asyncio = SimpleNamespace(sleep=pause)  # type: ignore[attr-defined]
    try:
        work = asyncio.ensure_future(world.snapshot())
        turns = 0
        while not work.done():
            turns += 1
            name = NAMES[turns % 30 * 2]
            await world.delete(name) if turns % 3 == 0 else await world.create(name)
            await world.append(name, b"x" * turns)
            turned.set()
        await work
    finally:
        encoding.SLICE_BYTES, encoding.asyncio = old, asyncio  # type: ignore[attr-defined]
    assert turns > 10, "there were slices"
    await world.engine.core.drain()
    state = world.state()
    world.kill()
    assert world.state() == state


def test_a_part_is_larger_than_all_that_build_on_it() -> None:
    def chain(*lengths: int) -> list[SnapshotLink]:
        return [
            SnapshotLink(1, 1, 1 + at, length, 0, delta=True, base=at)
            for at, length in enumerate(lengths)
        ]

    assert [
        due(chain(*lengths))
        for lengths in ((9,), (9, 1), (9, 1, 1), (9, 3, 1, 1), (5, 3, 1, 1), (1, 9))
    ] == [0, 0, 2, 2, 4, 2]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["create", "append", "delete", "flush", "snapshot", "kill", "power_cut", "trim"]
        ),
        st.integers(0, 5),
    ),
    max_size=60,
)


@settings(max_examples=examples(40), deadline=None)
@given(steps=STEPS, fail=st.integers(0, 400))
def test_nothing_is_lost_and_nothing_comes_back(steps: list[tuple[str, int]], fail: int) -> None:
    """Against a dict, with deaths anywhere and a disk of which one call fails."""

    async def story() -> None:
        world = World()
        world.segment_bytes = 4096
        world.start()
        model: dict[str, bytes] = {}
        disk: FakeDisk = world.disk
        after = fail
        for what, number in steps:
            name = NAMES[number]
            if what == "create":
                await world.create(name)
                model.setdefault(name, b"")
            elif what == "append" and name in model:
                payload = b"%d" % len(model[name]) * 50
                await world.append(name, payload)
                model[name] += payload
            elif what == "delete" and name in model:
                await world.delete(name)
                del model[name]
            elif what == "flush":
                await world.service.flush("")
            elif what == "snapshot":
                disk.fail_at, disk.error = (disk.calls + after if after else 0), errno.ENOSPC
                try:
                    await world.snapshot()
                except (OSError, PolynyaError):
                    pass
                finally:
                    disk.fail_at = after = 0
                if world.faults:
                    world.kill()
            elif what in ("kill", "power_cut"):
                world.kill() if what == "kill" else world.power_cut(number / 5)
            for each in NAMES[:6]:
                assert (await world.code_of(each) == 0) == (each in model), each
        world.power_cut()
        for each in NAMES[:6]:
            if each in model:
                assert await world.read(each) == model[each]
            else:
                assert await world.code_of(each) == Code.NOT_FOUND
        await world.stop()

    asyncio.run(story())


@pytest.mark.process
def test_parts_are_merged_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real one. What it cannot read fails, and changes nothing."""
    monkeypatch.setenv("PYTHONPATH", str(Path(merge_process.__file__).parents[2]))
    machine = Machine(1, 4)
    machine.apply(Create(NAMES[0], 1, "text/plain", Encoding.BYTES))
    store = SnapshotStore(tmp_path)
    store.write(1, 1, 1, snapshot_of(machine))
    machine.take_changes()
    machine.apply(Create(NAMES[2], 2, "text/plain", Encoding.BYTES))
    machine.apply(Delete(NAMES[0], 3))
    changes = machine.take_changes()
    count, streams = deltas.encode_streams(machine, iter(changes.streams))
    head = deltas.encode_head(machine, changes, count, whole=False)
    store.write_delta(1, 1, 3, [head, streams], 1)
    asyncio.run(fold_beside(store, [(1, 2)]))
    (snapshot,) = store.chain(1)
    assert snapshot.body == snapshot_of(machine) and not snapshot.delta
    store.write_delta(1, 1, 4, [b"no delta"], 3)
    with pytest.raises(
        OSError, match=r"(?s)snapshots could not be merged, exit code 1: .*CorruptData"
    ):
        asyncio.run(fold_beside(store, [(1, 2)]))
    assert [link.index for link in store.links(1)] == [3, 4]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".snap", ".snap"]
