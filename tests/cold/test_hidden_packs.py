"""Packs that only evicted streams name: they are emptied as well, so the objects stay few."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from worlds.cold import CLUSTER, FaultyStore, Tier, no_sleep, play, play_each

from polynya.base.limits import FLUSH_BYTES
from polynya.cold import Evictor, EvictSettings, Merger, MergeSettings, StateReader, evictor
from polynya.cold.rewriting import merger
from polynya.cold.sparse_packs import VAIN_RETURNS_MAX
from polynya.stream.features.pages.commands import Return
from polynya.stream.features.pages.eviction import evicted_view, slice_of

PACK_BYTES, SPARE = 20_000, 8
SETTINGS = MergeSettings(slice_bytes_max=4000, pack_bytes_max=PACK_BYTES, packs_spare=SPARE)
EVICTION = EvictSettings(after_ms=1000, few=1)
STREAM_EACH = EvictSettings(after_ms=1000, few=1, block_streams=1)  # in a block
BYTE_EACH = EvictSettings(after_ms=1000, few=1, block_bytes=1)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core looks for small packs in each pass."""
    monkeypatch.setattr(merger, "GATHER_SECONDS", 0.0)


class Idle:
    """A tier whose streams are evicted soon after each write."""

    def __init__(
        self, store: FaultyStore | None = None, eviction: EvictSettings = EVICTION
    ) -> None:
        self.tier, self.eviction = Tier(store), eviction
        self.returned: list[str] = []
        self.tier.world.bring = self.bring
        self.merger = self.new_merger()
        self._states = StateReader(self.tier.store)
        self._evictor = Evictor(
            self.tier.world,
            self.tier.store,
            eviction,
            CLUSTER,
            in_flight=self.tier.flusher.in_flight,
            sleep=no_sleep,
        )
        self._random = Random("idle streams")

    def new_merger(self, settings: MergeSettings = SETTINGS) -> Merger:
        return self.tier.new_merger(settings, eviction=self.eviction)

    async def bring(self, group: int, names: list[str]) -> None:
        """Return evicted streams to the machine, as the rehydration does."""
        world = self.tier.world
        machine = world.machines()[group]
        states = []
        for name in names:
            view = evicted_view(machine, name)
            if view is not None:
                state = await self._states.state(slice_of(machine, view))
                states.append((name, view.uid, state))
                world.recent[view.uid] = world.now
        world.apply(group, Return(states, world.now))
        self.returned += names

    async def bring_all(self) -> None:
        for group, machine in self.tier.world.machines().items():
            await self.bring(group, list(machine.directory.evicted))

    async def write(self, packs: int, streams: int = 60, *, evicts: bool = True) -> None:
        """Store that many packs, each with a slice of three streams of many. Evict all after each."""
        for number in range(packs):
            for stream in self._random.sample(range(streams), 3):
                name = f"default/s{stream}"
                for group, machine in self.tier.world.machines().items():
                    if name in machine.directory.evicted:
                        await self.bring(group, [name])
                self.tier.append(name, b"%d;" % number * 10)
            await self.tier.flusher.flush_now()
            if evicts:
                await self.evict()

    async def evict(self) -> None:
        self.tier.world.now += 2000
        await self._evictor.evict_due()
        machines = self.tier.world.machines().values()
        assert not any(machine.directory.streams for machine in machines)

    async def merge(self, merging: Merger | None = None, *, passes: int = 4) -> None:
        """Let a core merge that many times. Evict all after each."""
        for _ in range(passes):
            await (merging or self.merger).merge_due()
            self.tier.world.deliver()
            await self.evict()

    def counted(self) -> tuple[int, int]:
        """Return the live objects and those that the bytes justify."""
        payload = sum(map(len, self.tier.written.values()))
        # a block of states for each group may be new, and another be about to be emptied
        groups = len(self.tier.world.machines())
        return len(self.tier.store.objects), SPARE + payload * 6 // (5 * PACK_BYTES) + 5 * groups


def test_packs_that_only_evicted_streams_name_do_not_stay() -> None:
    async def story() -> None:
        idle = Idle()
        for _ in range(4):
            await idle.write(30)
            await idle.merge()
            await idle.tier.settle_all()
            objects, wanted = idle.counted()
            assert objects <= wanted
        await idle.bring_all()
        await idle.tier.check()
        idle.tier.world.deliver()
        await idle.tier.settle_all()
        idle.tier.check_nothing_leaks()
        written = sum(map(len, idle.tier.written.values()))
        assert idle.merger.counters.bytes < 4 * written, "a byte moves a few times at most"

    play(story)


def test_with_the_defaults_the_objects_of_a_core_stay_below_the_bound() -> None:
    async def story() -> None:
        idle = Idle()
        merging = idle.new_merger(MergeSettings())
        for _ in range(3):
            await idle.write(70, streams=500)
            await idle.merge(merging)
            await idle.tier.settle_all()
            payload = sum(map(len, idle.tier.written.values()))
            assert len(idle.tier.store.objects) <= payload * 1.2 / FLUSH_BYTES + 100
        assert len(idle.tier.written) > 300

    play(story)


@pytest.mark.parametrize("eviction", [EVICTION, STREAM_EACH, BYTE_EACH])
def test_nothing_is_read_while_nothing_is_written(
    eviction: EvictSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are streams returned that the evictor would write into as many blocks again."""
    monkeypatch.setattr(evictor, "ENCODED_AT_ONCE", 1)

    async def story() -> None:
        idle = Idle(eviction=eviction)
        await idle.write(40)
        await idle.merge(passes=8)
        calls, returned = idle.tier.store.calls, len(idle.returned)
        for _ in range(5):
            await idle.merger.merge_due()
        assert idle.tier.store.calls == calls
        assert len(idle.returned) == returned

    play(story)


def test_streams_rest_whose_packs_cannot_be_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop returning streams whose packs cannot be emptied: a few attempts, then none before other
    packs appear."""

    async def story() -> None:
        idle = Idle()

        async def returned_in(passes: int) -> int:
            before = len(idle.returned)
            for _ in range(passes):
                await idle.merger.merge_due()  # streams return
                await idle.merge(passes=1)  # they are in memory, and evicted again
            return len(idle.returned) - before

        await idle.write(40)
        with monkeypatch.context() as nothing_gained:
            nothing_gained.setattr(merger, "is_worth", lambda emptied, written: False)
            assert await returned_in(VAIN_RETURNS_MAX) > 0
            assert await returned_in(5) == 0
            await idle.write(10)
            assert await returned_in(1) > 0
        await idle.write(10)
        await idle.merge(passes=8)
        await idle.tier.settle_all()
        objects, wanted = idle.counted()
        assert objects <= wanted

    play(story)


def test_states_are_not_read_as_long_as_the_packs_are_few_for_their_bytes() -> None:
    async def story() -> None:
        idle = Idle()
        await idle.write(2 * SPARE, evicts=False)
        await idle.evict()
        many_bytes = idle.new_merger(msgspec.structs.replace(SETTINGS, pack_bytes_max=100))
        calls = idle.tier.store.calls
        await many_bytes.merge_due()
        assert idle.tier.store.calls == calls
        await idle.merger.merge_due()
        assert idle.tier.store.calls > calls

    play(story)


@pytest.mark.parametrize("after", [False, True])
def test_any_call_of_the_store_may_fail_meanwhile(after: bool) -> None:
    async def story(number: int) -> int:
        idle = Idle(FaultyStore(0, after=after))
        await idle.write(14, streams=20)
        store = idle.tier.store
        store.calls, store.fail_at = 0, number
        await idle.merger.merge_due()
        calls, store.fail_at = store.calls, 0
        await idle.merge()
        await idle.tier.settle_all()
        objects, wanted = idle.counted()
        assert objects <= wanted
        await idle.bring_all()
        await idle.tier.check()
        return calls

    play_each(story, over=5)
