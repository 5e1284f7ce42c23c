"""Copies of states in the store: their schedule, the releases that wait for them, and the ones
that a recovery starts from."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from worlds.cold import FaultyStore
from worlds.led_group import GROUPS, NAME, WHOLE, Led, owned
from worlds.stream import raw_batch

from polynya.backup import copies
from polynya.backup.copies import CompleteMark
from polynya.backup.group_file import Header
from polynya.base.errors import ConfigError, CorruptData
from polynya.objectstore import StoreUnavailable
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding
from polynya.stream.snapshots.encode import snapshot_of
from polynya.tiering.state_copies import EVERY_SECONDS, StateCopyWorker


def copier_of(led: Led, store: FaultyStore) -> StateCopyWorker:
    return StateCopyWorker(led, store, WHOLE, owned, soon_seconds=0.0)  # type: ignore[arg-type]


def test_a_release_waits_until_a_copy_contains_it() -> None:
    async def test() -> None:
        led, store = Led(), FaultyStore()
        copier = copier_of(led, store)
        led.a_stream_in_a_pack_goes()
        led.outbox_sender.pump()
        await led.outbox_sender.sweep()
        assert led.releases() == []
        store.down = True
        with pytest.raises(StoreUnavailable):
            await copier.look()
        await led.outbox_sender.sweep()
        assert led.releases() == []
        store.down = False
        await copier.look()
        await led.outbox_sender.sweep()
        assert led.releases() == ["p"]

    asyncio.run(test())


def test_without_a_store_nothing_waits() -> None:
    async def test() -> None:
        led = Led()
        led.a_stream_in_a_pack_goes()
        led.outbox_sender.pump()
        assert led.releases() == ["p"]

    asyncio.run(test())


def test_what_has_not_changed_is_not_copied_and_one_copy_of_a_group_is_kept() -> None:
    async def test() -> None:
        led, store = Led(), FaultyStore()
        copier = copier_of(led, store)
        await copier.look()
        await copier.look()
        assert copier.counters.stored == 1
        led.a_stream_in_a_pack_goes()
        await copier.look()
        assert copier.counters.stored == 2
        whole, found = await copies.newest(store, "c1")
        assert (whole, [copy.index for copy in found.values()]) == (WHOLE, [3])
        assert len([key for key in store.objects if "/00001/" in key]) == 1
        file = await copies.read(store, found[1])
        assert file.state == snapshot_of(led.world.machines[1])

    asyncio.run(test())


def test_a_group_that_is_only_written_to_is_copied_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        led, store = Led(), FaultyStore()
        copier = copier_of(led, store)
        now = 0.0
        monkeypatch.setattr(copier, "_loop", SimpleNamespace(time=lambda: now))
        led.apply(Create(NAME, 1, "text/plain", Encoding.BYTES))
        await copier.look()
        led.apply(Append(NAME, 1, "text/plain", raw_batch(b"x")))
        await copier.look()
        assert copier.counters.stored == 1
        now = EVERY_SECONDS
        await copier.look()
        assert copier.counters.stored == 2

    asyncio.run(test())


def test_the_newest_history_with_a_mark_counts() -> None:
    async def test() -> None:
        store = FaultyStore()
        with pytest.raises(ConfigError, match="no copies"):
            await copies.newest(store, "c1")
        await copies.mark(store, WHOLE)
        await copies.mark(store, WHOLE)
        for history, index in ((1, 5), (1, 9), (7, 1)):
            await copies.write(store, ("c1", history), Header(1, 1, index, 0, 1, 0, 0), [b"x"])
        # 7 was interrupted
        assert {copy.index for copy in (await copies.newest(store, "c1"))[1].values()} == {9}
        await copies.mark(store, CompleteMark("c1", 7, GROUPS))
        whole, found = await copies.newest(store, "c1")
        assert (whole.history, {copy.index for copy in found.values()}) == (7, {1})
        with pytest.raises(CorruptData, match="damaged"):
            await copies.read(store, found[1])

    asyncio.run(test())
