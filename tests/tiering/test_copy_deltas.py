"""Deltas of copies: when they are stored, and their diskless streams after a recovery from the
store alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any

from google_crc32c import value as crc32c
from sim.loop import run_simulated
from worlds.cold import FaultyStore
from worlds.led_group import NAME, WHOLE, Led, owned
from worlds.packed import commit_of
from worlds.stream import raw_batch

from polynya.cold.verifier import DAMAGED
from polynya.engine.snapshots.encode import encode_delta
from polynya.objectstore import claim_root
from polynya.recovery.from_store import FromStore
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.profiles.commands import Profile, SetProfile
from polynya.stream.features.retention.commands import Trim
from polynya.stream.parts import Encoding, Producer
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import Image, snapshot_of, write_image
from polynya.stream.state.model import HotBatch
from polynya.tiering.copy_deltas import CopyDeltaWorker
from polynya.tiering.copy_verifier import CopyVerifier
from polynya.tiering.state_copies import StateCopyWorker
from polynya.wire.pack import PackBuilder, pack_key
from polynya.wire.slice_building import build_slice

TEXT = "text/plain"
OTHER = f"{NAME}-replicated"
INTERVAL = 10.0


class DisklessCore:
    """A core that leads one group with a diskless stream and a replicated one, and its workers."""

    def __init__(self) -> None:
        self.led, self.store, self.commits = Led(), FaultyStore(), 0
        self.group = self.led.group
        for name, profile in ((NAME, Profile.DISKLESS), (OTHER, Profile.REPLICATED)):
            self.led.apply(Create(name, 1, TEXT, Encoding.BYTES, profile=profile))
        engine: Any = self.led
        self.copier = StateCopyWorker(engine, self.store, WHOLE, owned, diskless_seconds=INTERVAL)
        self.deltas = CopyDeltaWorker(engine, self.store, WHOLE, INTERVAL)

    def commit(self, *appends: Append | Produce, pack: str = "") -> list[Code]:
        self.commits += 1
        appends = appends or (append(b"x"),)
        writer = ("w", self.commits)
        command = commit_of(self.led.world, pack or f"p{self.commits}", writer, appends, now_ms=2)
        return [reply.code for reply in self.led.apply(command).detail]

    @property
    def counts(self) -> tuple[int, int]:
        """Copies and deltas that were stored."""
        return self.copier.counters.stored, self.deltas.counters.stored

    def deltas_in_store(self) -> list[str]:
        return sorted(key for key in self.store.objects if key.count("-") == 2)

    async def recovered(self, warnings: int = 0) -> Image:
        """The state that the store alone gives."""
        states = await FromStore.open(self.store)
        found = await states.state(1)
        others = [each for each in states.warnings if "is missing from the store" not in each]
        assert len(others) == warnings, others
        return found.image

    async def check(self, warnings: int = 0) -> None:
        """The recovered state is that of the group."""
        assert write_image(await self.recovered(warnings)) == snapshot_of(self.group.machine)


def copies_in(objects: Iterable[str]) -> list[str]:
    return [key for key in objects if "/copies/" in key and key.count("-") == 1]


def append(data: bytes, name: str = NAME) -> Append:
    return Append(name, 2, TEXT, raw_batch(data))


def core_story(story: Callable[[DisklessCore], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a story in virtual time, from half a second after the first copy on."""

    async def run() -> None:
        core = DisklessCore()
        await claim_root(core.store, WHOLE.cluster, 1, "lost")
        running = [asyncio.ensure_future(each.run()) for each in (core.copier, core.deltas)]
        await asyncio.sleep(0.5)
        assert core.counts == (1, 0)
        await story(core)
        assert not any(each.done() for each in running), running
        for each in running:
            each.cancel()
        await asyncio.wait(running)

    def test() -> None:
        run_simulated(run())

    return test


@core_story
async def test_commits_since_the_copy_are_recovered(core: DisklessCore) -> None:
    first = Produce(NAME, 2, raw_batch(b"a"), Producer("7", 0, 0, 0, 1))
    assert core.commit(first, append(b"b")) == [Code.OK, Code.OK]
    await asyncio.sleep(1)
    assert core.counts == (1, 1)
    await core.check()
    (stream, _) = (await core.recovered()).streams
    assert (stream.name, stream.next_record, len(stream.producers or {})) == (NAME, 2, 1)


@core_story
async def test_there_is_one_delta_an_interval_and_none_without_commits(core: DisklessCore) -> None:
    for _ in range(10):
        core.commit()
        await asyncio.sleep(1)
    assert core.counts == (1, 1), "the first at once, the next after the interval"
    await asyncio.sleep(1)
    assert core.counts == (1, 2)
    await core.check()
    for _ in range(15):
        core.led.apply(append(b"y", OTHER))
        await asyncio.sleep(1)
    assert core.counts == (1, 2), "replicated streams need none"


@core_story
async def test_all_that_happens_to_a_diskless_stream_is_recovered(core: DisklessCore) -> None:
    machine, late = core.group.machine, f"{NAME}-late"
    core.commit()
    steps: list[Callable[[], Any]] = [
        lambda: core.led.apply(Trim([(machine.directory.streams[NAME].uid, 1, 1)], 3)),
        lambda: core.led.apply(SetProfile(NAME, Profile.REPLICATED, 3)),
        lambda: core.led.apply(SetProfile(NAME, Profile.DISKLESS, 3)),
        lambda: core.led.apply(Delete(NAME, 3)),
        lambda: core.led.apply(Create(NAME, 4, TEXT, Encoding.BYTES, profile=Profile.DISKLESS)),
        core.commit,
        lambda: core.led.apply(Create(late, 4, TEXT, Encoding.BYTES, profile=Profile.DISKLESS)),
        lambda: core.commit(append(b"z", late)),
        lambda: core.led.apply(Delete(late, 5)),
    ]
    for number, step in enumerate(steps, 1):
        if number % 3 == 0:  # snapshots on the disk know nothing of copies
            await encode_delta(core.group, whole=False)
        before = sum(core.counts)
        step()
        await asyncio.sleep(INTERVAL + 1)
        assert sum(core.counts) > before, f"after step {number}"
        await core.check()


@core_story
async def test_a_store_that_is_away_loses_nothing(core: DisklessCore) -> None:
    core.store.down = True
    core.commit()
    await asyncio.sleep(30)
    assert core.counts == (1, 0) and core.deltas.counters.failures == 3
    core.store.down = False
    await asyncio.sleep(INTERVAL)
    assert core.counts == (1, 1)
    await core.check()


@core_story
async def test_a_copy_that_fails_is_no_base(core: DisklessCore) -> None:
    core.commit()
    await asyncio.sleep(28)
    core.store.down = True
    core.commit()
    await asyncio.sleep(5)
    assert core.counts == (1, 1) and core.copier.counters.failures
    core.store.down = False
    core.commit()
    await asyncio.sleep(INTERVAL + 1)
    assert core.counts == (1, 2), "the delta builds on the copy before"
    await core.check()
    await asyncio.sleep(30)
    assert core.counts == (2, 2)
    core.commit()
    await asyncio.sleep(INTERVAL + 1)
    assert core.counts == (2, 3)
    await core.check()


@core_story
async def test_a_damaged_delta_gives_way_to_an_older_one(core: DisklessCore) -> None:
    core.commit()
    await asyncio.sleep(1)
    before = snapshot_of(core.group.machine)
    core.commit()
    await asyncio.sleep(INTERVAL)
    older, newer = core.deltas_in_store()
    data, *rest = core.store.objects[newer]
    core.store.objects[newer] = (data[:-1] + b"?", *rest)  # type: ignore[assignment]
    assert write_image(await core.recovered(warnings=1)) == before
    faults = await CopyVerifier(core.store, (WHOLE.cluster, WHOLE.history)).faults([0, 1, 2])
    assert [(fault.pack, fault.kind) for fault in faults] == [(newer, DAMAGED)]
    del core.store.objects[older], core.store.objects[newer]
    (stream, _) = (await core.recovered()).streams
    assert stream.next_record == 0, "the copy alone"


@core_story
async def test_only_packs_without_a_commit_are_reported(core: DisklessCore) -> None:
    """A pack whose records were deleted again stays for a while."""
    batch = HotBatch(-1, -1, 1, b"x", b"", crc32c(b"x"), 2, 0, Encoding.BYTES, 0)
    uid = core.group.machine.directory.streams[NAME].uid
    keys = []
    for number in range(2):
        builder = PackBuilder()
        builder.add(uid, 1, build_slice(Encoding.BYTES, -1, -1, [batch]))
        keys.append(pack_key(WHOLE.cluster, owner_group=1, now_ms=2, random=bytes([number] * 16)))
        await core.store.put(keys[-1], b"".join(builder.finish(owner_group=1, created_ms=2)[0]))
    core.commit(pack=keys[0])
    core.led.apply(Delete(NAME, 3))
    await asyncio.sleep(1)
    (warning,) = (await FromStore.open(core.store)).warnings
    assert warning.startswith(f"{keys[1]} has 1 slices of diskless streams")


@core_story
async def test_deltas_go_with_the_next_copy_and_fit_it(core: DisklessCore) -> None:
    for _ in range(2):
        core.commit()
        await asyncio.sleep(INTERVAL + 1)
    assert core.counts == (1, 2) and len(core.deltas_in_store()) == 2
    older = dict(core.store.objects)
    core.commit()
    await asyncio.sleep(INTERVAL + 1)
    assert core.counts == (2, 3) and len(core.deltas_in_store()) <= 1
    core.commit()
    await asyncio.sleep(INTERVAL + 1)
    await core.check()
    (copy,) = copies_in(core.store.objects)
    newest = core.deltas_in_store()[-1]
    index = newest.rsplit("/")[-1][:20]
    base = min(copies_in(older)).rsplit("/")[-1][:20]
    data = core.store.objects.pop(newest)
    core.store.objects[f"{newest[: newest.rindex('-')]}-{base}"] = data
    assert base < copy.rsplit("/")[-1][:20] < index
    await core.check()


@core_story
async def test_a_core_that_led_before_begins_with_a_copy(core: DisklessCore) -> None:
    machine = core.group.machine
    core.led.local.led.clear()
    core.commit()
    await asyncio.sleep(2)
    assert machine.kept.since_copy is None, "nothing is noted where nobody copies"
    core.led.local.led[1] = machine
    core.led.local.turns += 1
    await asyncio.sleep(INTERVAL + 1)
    assert core.counts == (2, 0)
    core.commit()
    await asyncio.sleep(1)
    assert core.counts == (2, 1)
    await core.check()


@core_story
async def test_a_late_diskless_stream_gets_a_copy_to_build_on(core: DisklessCore) -> None:
    core.led.apply(Delete(NAME, 3))
    await asyncio.sleep(70)
    assert core.group.machine.kept.since_copy is None
    before = core.counts
    core.led.apply(Create(NAME, 4, TEXT, Encoding.BYTES, profile=Profile.DISKLESS))
    core.commit()
    await asyncio.sleep(INTERVAL + 1)
    assert sum(core.counts) == sum(before) + 1
    await core.check()


def test_the_meta_group_is_copied_soon_when_topics_changed() -> None:
    async def run() -> None:
        led, store = Led(), FaultyStore()
        machine = led.world.machines[0]
        led.local.led.clear()
        led.local.led[0] = machine
        led.storage.core_replicas.groups[0] = SimpleNamespace(
            term=1, applied_index=0, machine=machine
        )
        copier = StateCopyWorker(led, store, WHOLE, owned, diskless_seconds=INTERVAL)  # type: ignore[arg-type]
        await copier.look()
        machine.meta.topic_changes.revision += 1
        led.storage.core_replicas.groups[0].applied_index += 1
        led.local.turns += 1
        await asyncio.sleep(INTERVAL / 2)
        await copier.look()
        assert copier.counters.stored == 1
        await asyncio.sleep(INTERVAL)
        await copier.look()
        assert copier.counters.stored == 2

    run_simulated(run())
