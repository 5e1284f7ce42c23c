"""The verifier finds exactly the missing and changed slices, under concurrent work."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from worlds.cold import Tier, play

from polynya.cold import PackVerifier, verifier
from polynya.cold.verifier import DAMAGED, MISSING, Fault, VerifiedPart
from polynya.objectstore import StoreUnavailable
from polynya.stream.features.lifetimes.commands import Delete
from polynya.stream.features.retention.commands import Trim


async def whole(found: PackVerifier, groups: Collection[int]) -> list[VerifiedPart]:
    parts = [await found.verify("", groups)]
    while parts[-1].after:
        parts.append(await found.verify(parts[-1].after, groups))
    return parts


async def filled(times: int = 4) -> Tier:
    tier = Tier()
    for number in range(times):
        tier.fill(streams=3, appends=number + 1)
        await tier.flusher.flush_now()
    return tier


def faults(parts: list[VerifiedPart]) -> list[tuple[str, str]]:
    return sorted((fault.pack, fault.kind) for part in parts for fault in part.faults)


def test_a_store_in_order_has_no_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        tier = await filled()
        live = tier.live()
        parts = await whole(PackVerifier(tier.world, tier.store), tier.world.machines())
        assert faults(parts) == []
        assert sum(part.packs for part in parts) == len(live)
        assert sum(part.slices for part in parts) == sum(map(len, tier.indexes().values()))
        monkeypatch.setattr(verifier, "PART_PACKS", 1)
        parts = await whole(PackVerifier(tier.world, tier.store), tier.world.machines())
        assert [part.packs for part in parts] == [1] * len(live), "a part at a time"

    play(story)


def test_what_is_missing_cut_or_changed_is_found_and_who_needs_it_is_named() -> None:
    async def story() -> None:
        tier = await filled()
        first, second, third, *_ = sorted(tier.live())
        data, *rest = tier.store.objects[first]
        changed = bytearray(data)
        where = next(
            cold for slices in tier.indexes().values() for cold in slices if cold.pack == first
        )
        changed[where.offset + where.stored - 1] ^= 1
        tier.store.objects[first] = (bytes(changed), *rest)  # type: ignore[assignment]
        tier.store.objects[second] = (tier.store.objects[second][0][:40], *rest)  # type: ignore[assignment]
        del tier.store.objects[third]
        parts = await whole(PackVerifier(tier.world, tier.store), tier.world.machines())
        assert faults(parts) == [(first, DAMAGED), (second, DAMAGED), (third, MISSING)]
        named: dict[str, Fault] = {fault.pack: fault for part in parts for fault in part.faults}
        needed = sorted(
            name
            for name, slices in tier.indexes().items()
            if any(cold.pack == third for cold in slices)
        )
        assert sorted(named[third].streams) == needed

    play(story)


def test_what_lies_between_slices_is_nobodys() -> None:
    """A check that finds damage where none is would be as bad: each byte outside the slices may be
    anything."""

    async def story() -> None:
        tier = await filled(1)
        (key,) = tier.live()
        data, *rest = tier.store.objects[key]
        slices = [cold for listed in tier.indexes().values() for cold in listed]
        inside = {at for cold in slices for at in range(cold.offset, cold.offset + cold.stored)}
        for at in range(0, len(data), 7):
            changed = bytearray(data)
            changed[at] ^= 1
            tier.store.objects[key] = (bytes(changed), *rest)  # type: ignore[assignment]
            assert bool(
                faults(await whole(PackVerifier(tier.world, tier.store), tier.world.machines()))
            ) == (at in inside)

    play(story)


def test_what_is_released_meanwhile_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        tier = await filled()
        monkeypatch.setattr(verifier, "PART_PACKS", 1)
        found = PackVerifier(tier.world, tier.store)
        part = await found.verify("", tier.world.machines())
        for name in list(tier.written):
            machine = next(
                each for each in tier.world.machines().values() if name in each.directory.streams
            )
            stream = machine.directory.streams[name]
            command = (
                Delete(name, tier.world.now)
                if name.endswith("1")
                else Trim([(stream.uid, stream.next_record, 0)], tier.world.now)
            )
            await tier.world.propose(machine.group, command)
        tier.store.objects.clear()
        while part.after:
            part = await found.verify(part.after, tier.world.machines())
            assert not part.faults

    play(story)


def test_a_store_that_is_down_is_said_and_no_fault() -> None:
    async def story() -> None:
        tier = await filled(1)
        tier.store.down = True
        with pytest.raises(StoreUnavailable):
            await PackVerifier(tier.world, tier.store).verify("", tier.world.machines())

    play(story)


def test_a_sweep_by_hand_lists_or_deletes() -> None:
    async def story() -> None:
        tier = await filled(1)
        orphan = f"c1/packs/20200101-00/2-{'00' * 16}"
        await tier.store.put(orphan, b"12345")
        tier.store.objects[orphan] = (b"12345", 1, tier.world.now - 120_000)
        collector = tier.new_collector()
        assert (await collector.sweep(delete=False)).orphans == [], "younger than the usual grace"
        listed = await collector.sweep(delete=False, grace_ms=60_000)
        assert (listed.orphans, listed.bytes, listed.deleted) == ([orphan], 5, False)
        assert orphan in tier.store.objects
        assert (await collector.sweep(grace_ms=60_000)).deleted
        assert orphan not in tier.store.objects
        assert (
            faults(await whole(PackVerifier(tier.world, tier.store), tier.world.machines())) == []
        )

    play(story)
