"""Blocks of states: written, named, read back, let go, whatever fails on the way."""

from __future__ import annotations

import asyncio

import pytest
from worlds.cold import CLUSTER, GROUPS, FaultyStore, Tier, no_sleep, play, play_each

from polynya.base.errors import CorruptData, Unavailable
from polynya.base.names import group_of
from polynya.cold import Evictor, EvictSettings, PackGone, PackVerifier, StateReader
from polynya.stream.features.pages.commands import Evict, Return
from polynya.stream.features.pages.eviction import evicted_views, slice_of, whole_of
from polynya.stream.snapshots.encode import snapshot_of
from polynya.wire.pack import damaged_slices, read_footer

SETTINGS = EvictSettings(after_ms=1000, few=1, block_streams=3)


def evictor_of(tier: Tier, settings: EvictSettings = SETTINGS) -> Evictor:
    return Evictor(
        tier.world, tier.store, settings, CLUSTER, in_flight=tier.flusher.in_flight, sleep=no_sleep
    )


def evicted(tier: Tier) -> set[str]:
    return {
        name for machine in tier.world.machines().values() for name in machine.directory.evicted
    }


async def bring_all(tier: Tier) -> None:
    """Rehydrate all evicted streams."""
    states = StateReader(tier.store)
    for group, machine in tier.world.machines().items():
        for view in list(evicted_views(machine)):
            state = await states.state(slice_of(machine, view))
            assert whole_of(view, state).name == view.name
            tier.world.apply(group, Return([(view.name, view.uid, state)], tier.world.now))


async def back_as_before(tier: Tier) -> None:
    """All streams, whole; and nothing else is left, in the store and in the machines."""
    await bring_all(tier)
    assert not evicted(tier)
    await tier.check()
    tier.world.deliver()
    await tier.settle_all()
    tier.check_nothing_leaks()


async def idle(tier: Tier) -> None:
    tier.fill()
    await tier.flusher.flush_now()
    tier.world.now += 1000


def test_idle_streams_go_in_blocks_of_their_group_and_come_back() -> None:
    async def story() -> None:
        tier = Tier()
        await idle(tier)
        before = {group: snapshot_of(machine) for group, machine in tier.world.machines().items()}
        packs = set(tier.store.objects)
        evictor = evictor_of(tier)
        assert await evictor.evict_due() == len(tier.written)
        assert evicted(tier) == set(tier.written)
        for key in set(tier.store.objects) - packs:
            data = tier.store.objects[key][0]
            (entry,) = read_footer(data).entries
            assert (entry.base_record, entry.uid) == (-1, 0), "nothing takes it for records"
            assert not damaged_slices(data)
        await back_as_before(tier)
        assert set(tier.store.objects) == packs
        assert before.keys() == tier.world.machines().keys()

    play(story)


@pytest.mark.parametrize("after", [False, True])
def test_any_call_of_the_store_may_fail(after: bool) -> None:
    async def story(number: int) -> int:
        tier = Tier()
        await idle(tier)
        tier.store.calls, tier.store.fail_at, tier.store.after = 0, number, after
        evictor = evictor_of(tier)
        await evictor.evict_due()
        assert evicted(tier) == set(tier.written), "one failed call is repeated under the same key"
        calls = tier.store.calls
        tier.store.fail_at = 0
        await back_as_before(tier)
        return calls

    play_each(story, over=2)


@pytest.mark.parametrize("how", ["before", "after", "lost"])
@pytest.mark.parametrize("in_a_row", [1, 3])
def test_any_proposal_may_fail(how: str, in_a_row: int) -> None:
    async def story(number: int) -> int:
        tier = Tier()
        await idle(tier)
        tier.world.proposed.clear()
        tier.world.fail = lambda at, command: how if number <= at < number + in_a_row else ""
        evictor = evictor_of(tier)
        await evictor.evict_due()
        calls = len(tier.world.proposed)
        tier.world.fail = lambda at, command: ""
        await evictor.evict_due()
        assert evicted(tier) == set(tier.written)
        await tier.settle_all()
        await back_as_before(tier)
        return calls

    play_each(story, over=5)


def test_a_stream_that_is_written_to_meanwhile_stays() -> None:
    async def story() -> None:
        tier = Tier()
        await idle(tier)
        name = next(iter(tier.written))
        group = group_of(name, GROUPS)
        propose = tier.world.propose

        async def late(number, command):  # type: ignore[no-untyped-def]
            if isinstance(command, Evict) and number == group:
                tier.append(name, b"late")
            return await propose(number, command)

        tier.world.propose = late  # type: ignore[method-assign]
        evictor = evictor_of(tier, EvictSettings(after_ms=1000, few=1, block_streams=1000))
        assert await evictor.evict_due() == len(tier.written) - 1
        assert evictor.counters.refused == 1
        assert name not in evicted(tier)
        assert tier.world.machines()[group].directory.streams[name].hot is not None

    play(story)


def test_few_streams_wait_for_company() -> None:
    async def story() -> None:
        tier = Tier()
        await idle(tier)
        evictor = evictor_of(tier, EvictSettings(after_ms=1000, few=100))
        assert await evictor.evict_due() == 0
        tier.world.now += 1000
        assert await evictor.evict_due() == len(tier.written)
        never = evictor_of(tier, EvictSettings(after_ms=0))
        async with asyncio.timeout(5):
            await never.run()

    play(story)


def test_states_are_fetched_once_and_checked() -> None:
    async def story() -> None:
        tier = Tier()
        await idle(tier)
        await evictor_of(tier).evict_due()
        machine = next(
            machine for machine in tier.world.machines().values() if machine.directory.evicted
        )
        view = next(evicted_views(machine))
        position = slice_of(machine, view)
        states = StateReader(tier.store)
        assert (
            len(
                {
                    id(state)
                    for state in await asyncio.gather(*(states.state(position) for _ in range(5)))
                }
            )
            == 1
        )
        assert states.counters.loads == 1
        key = position.pack
        data, version, at = tier.store.objects[key]
        tier.store.objects[key] = (
            data[: position.offset] + b"?" + data[position.offset + 1 :],
            version,
            at,
        )
        assert await states.state(position), "what is known is known"
        with pytest.raises(CorruptData):
            await StateReader(tier.store).state(position)
        part = await PackVerifier(tier.world, tier.store).verify("", tier.world.machines())
        assert [(fault.pack, fault.kind) for fault in part.faults] == [(key, "damaged")]
        assert view.name in part.faults[0].streams
        del tier.store.objects[key]
        with pytest.raises(PackGone):
            await StateReader(tier.store).state(position)
        tier.store.down = True
        with pytest.raises(Unavailable):
            await StateReader(tier.store).state(position)

    play(story)


def test_the_packs_that_only_evicted_streams_name_are_verified_too() -> None:
    async def story() -> None:
        tier = Tier(FaultyStore())
        await idle(tier)
        packs = set(tier.store.objects)
        await evictor_of(tier).evict_due()
        whole = await PackVerifier(tier.world, tier.store).verify("", tier.world.machines())
        assert not whole.faults and whole.packs == len(tier.store.objects)
        lost = min(packs)
        del tier.store.objects[lost]
        part = await PackVerifier(tier.world, tier.store).verify("", tier.world.machines())
        assert [(fault.pack, fault.kind) for fault in part.faults] == [(lost, "missing")]

    play(story)
