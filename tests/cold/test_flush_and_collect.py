"""The life of packs: flush, merge, collection. Under all failures nothing is lost, published twice
or left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest
from worlds.cold import GROUPS, FaultyStore, Tier, play, play_each

from polynya.admin.store_checks import GRACE_SECONDS_MIN
from polynya.base.errors import Unavailable
from polynya.base.names import group_of
from polynya.cold import Collector, CollectorSettings, FlushSettings, PackGone, Swept, collector
from polynya.cold.steps import WRITE_MS_MAX
from polynya.jobs import pause_after
from polynya.stream.features.packs.commands import PackWritten, PublishSlices, ReleasePack
from polynya.stream.replies import Code
from polynya.stream.state import pack_tables, sorted_rows
from polynya.wire.pack import read_footer


def test_a_flush_moves_everything_and_all_reads_back() -> None:
    async def story() -> None:
        tier = Tier()
        tier.fill()
        await tier.flusher.flush_now()
        assert tier.world.hot_bytes() == 0
        await tier.check()
        tier.fill(appends=2)
        await tier.check()
        assert tier.flusher.counters.bytes + tier.world.hot_bytes() == sum(
            map(len, tier.written.values())
        )
        assert not tier.flusher.in_flight

    play(story)


def test_only_streams_under_the_prefix_are_flushed_on_demand() -> None:
    async def story() -> None:
        tier = Tier()
        tier.append("default/a/1", b"x")
        tier.append("default/b/1", b"y")
        await tier.flusher.flush_now("default/a/")
        assert tier.world.hot_bytes() == 1
        assert next(
            machine.directory.hot
            for machine in tier.world.machines().values()
            if machine.directory.hot
        ).keys() == {
            tier.world.machines()[group_of("default/b/1", GROUPS)]
            .directory.streams["default/b/1"]
            .uid
        }
        await tier.flusher.flush_now("default/nothing/")
        await tier.check()

    play(story)


def test_packs_are_self_describing() -> None:
    async def story() -> None:
        tier = Tier(settings=FlushSettings(slice_bytes_max=400))
        tier.fill(streams=2, appends=5)
        await tier.flusher.flush_now()
        ((key, (data, _, _)),) = tier.store.objects.items()
        footer = read_footer(data)
        assert key.startswith("c1/packs/20231114-22/")
        assert {entry.path for entry in footer.entries if entry.base_record == 0} == {
            "default/s0",
            "default/s1",
        }
        assert all(
            entry.content_type == ("text/plain" if entry.base_record == 0 else "")
            for entry in footer.entries
        )
        assert len(footer.entries) == 6

    play(story)


def test_nothing_happens_before_it_is_due() -> None:
    async def story() -> None:
        tier = Tier()
        tier.append("default/a", b"x" * 3999)
        assert await tier.flusher.flush_due() == 0
        tier.append("default/b", b"y")
        assert await tier.flusher.flush_due() == 1
        # half of the bound is let stand: the small one waits for company
        assert tier.world.hot_bytes() == 1
        tier.world.now += 9_999
        assert await tier.flusher.flush_due() == 0
        tier.world.now += 400
        assert await tier.flusher.flush_due() == 1
        assert tier.world.hot_bytes() == 0
        await tier.check()

    play(story)


def test_the_loop_flushes_by_itself_and_when_woken() -> None:
    async def story() -> None:
        tier = Tier(settings=FlushSettings(from_bytes=100, interval_ms=3_600_000))
        task = asyncio.create_task(tier.flusher.run())
        tier.append("default/a", b"x" * 100)
        await until(lambda: tier.world.hot_bytes() == 0)
        await turns(50)
        tier.append("default/a", b"x" * 100)
        await turns(50)
        assert tier.world.hot_bytes() == 100  # the next look is an hour away
        tier.flusher.wake()
        await until(lambda: tier.world.hot_bytes() == 0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await tier.check()

    play(story)


def test_a_burst_is_not_left_waiting_for_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polynya.cold.flusher.PRESSURE_BYTES_MIN", 300)
    monkeypatch.setattr("polynya.cold.flusher.PRESSURE_POLL_SECONDS", 0.001)

    async def story() -> None:
        tier = Tier(settings=FlushSettings(from_bytes=100, interval_ms=3_600_000))
        task = asyncio.create_task(tier.flusher.run())
        await turns(5)
        tier.append("default/a", b"x" * 399)
        await turns(50)
        assert tier.world.hot_bytes() == 399
        tier.append("default/a", b"x")
        await until(lambda: tier.world.hot_bytes() == 0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    play(story)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


def test_appends_during_a_flush_stay_in_order() -> None:
    async def story() -> None:
        tier = Tier()
        for round_number in range(20):
            tier.fill(streams=3, appends=2)
            flushes = [asyncio.create_task(tier.flusher.flush_now()) for _ in range(3)]
            await turns(round_number)
            tier.fill(streams=3, appends=1)
            await asyncio.gather(*flushes)
            await tier.check()
        assert tier.flusher.counters.refused == 0

    play(story)


@pytest.mark.parametrize("after", [False, True])
def test_any_call_of_the_store_may_fail(after: bool) -> None:
    async def story(number: int) -> int:
        tier = Tier(FaultyStore(number, after=after))
        tier.fill()
        await tier.flusher.flush_now()
        tier.fill(appends=1)
        await tier.flusher.flush_now()
        assert tier.world.hot_bytes() == 0
        assert tier.flusher.counters.bytes == sum(map(len, tier.written.values()))
        assert tier.flusher.counters.failures == 0, "one failed call is repeated under the same key"
        calls = tier.store.calls
        tier.store.fail_at = 0
        await tier.check()
        for name in list(tier.written)[1:]:
            tier.world.delete(name)
            del tier.written[name]
        tier.world.deliver()
        tier.store.fail_at = tier.store.calls + number
        await tier.settle_all()
        tier.store.fail_at = 0
        await tier.settle_all()
        await tier.check()
        assert set(tier.store.objects) == tier.live()
        return calls

    play_each(story, over=3)


@pytest.mark.parametrize("how", ["before", "after", "lost"])
@pytest.mark.parametrize("in_a_row", [1, 3])
def test_any_proposal_may_fail(how: str, in_a_row: int) -> None:
    """Three in a row make the flusher give the pack up; it is planned again, and the lost one is
    settled and deleted."""

    async def story(number: int) -> int:
        tier = Tier()
        tier.world.fail = lambda nth, command: how if number <= nth < number + in_a_row else ""
        tier.fill()
        await tier.flusher.flush_now()
        assert tier.world.hot_bytes() == 0
        calls = len(tier.world.proposed)
        tier.world.fail = lambda nth, command: ""
        await tier.settle_all()
        await tier.check()
        tier.check_nothing_leaks()
        return calls

    play_each(story, over=5)


def test_lost_packs_among_many_old_ones_are_settled_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most packs are rows, and each pass looks at one of them."""
    monkeypatch.setattr(pack_tables, "RECENT_MAX", 2)
    monkeypatch.setattr(sorted_rows, "LEAF_ROWS", 2)
    monkeypatch.setattr(collector, "LOOK_MAX", 1)

    async def story() -> None:
        tier, lost = Tier(), list[object]()

        def lose(number: int, command: object) -> str:
            """Each other pack gives up after three tries, and is planned again."""
            if not isinstance(command, PublishSlices):
                return ""
            lost.append(command)
            return "lost" if len(lost) % 4 else ""

        tier.world.fail = lose
        for turn in range(16):
            tier.append("default/a", b"%d" % turn)
            await tier.flusher.flush_now()
        tier.world.fail = lambda number, command: ""
        packs = [machine.packs.owned for machine in tier.world.machines().values()]
        assert sum(len(each._rows) for each in packs) > 6
        assert {key for each in packs for key in each} > tier.live(), "packs were lost"
        for _ in range(16):
            await tier.settle_all()
        await tier.check()
        tier.check_nothing_leaks()

    play(story)


def test_a_pack_that_waits_for_a_slot_is_of_the_term_in_which_it_was_planned() -> None:
    async def story() -> None:
        tier = Tier()
        tier.fill(streams=1, appends=1)
        term = 1
        tier.world.term = lambda group: term  # type: ignore[method-assign]
        tier.flusher._slots = asyncio.Semaphore(0)
        flush = asyncio.create_task(tier.flusher.flush_now())
        for _ in range(20):
            await asyncio.sleep(0)
        term = 2
        tier.flusher._slots.release()
        await flush
        sent = [command for _, command in tier.world.proposed]
        assert [each.term for each in sent if isinstance(each, PublishSlices)] == [1]

    play(story)


def test_a_late_publish_of_a_lost_pack_changes_nothing() -> None:
    async def story() -> None:
        tier = Tier()
        tier.append("default/a", b"once")
        late: list[tuple[int, PublishSlices]] = []

        def lose(number: int, command: object) -> str:
            if isinstance(command, PublishSlices) and len(late) < 3:
                late.append(tier.world.proposed[-1])  # type: ignore[arg-type]
                return "lost"
            return ""

        tier.world.fail = lose
        await tier.flusher.flush_now()
        await tier.settle_all()
        for group, command in late:
            assert tier.world.apply(group, command).detail == []
        await tier.check()
        assert len(tier.store.objects) == 1

    play(story)


def test_a_pack_whose_intent_is_repeated_after_its_deletion_is_deleted_again() -> None:
    """Repeat a pack's intent after the group released the pack and its owner group dropped the
    record of it."""

    async def story() -> None:
        tier = Tier()
        tier.append("default/a", b"once")
        tier.world.fail = lambda number, command: (
            "lost" if isinstance(command, PublishSlices) else ""
        )
        with pytest.raises(Unavailable, match="could not be flushed"):
            await tier.flusher.flush_now()
        tier.world.fail = lambda number, command: ""
        intents = [each for each in tier.world.proposed if isinstance(each[1], PackWritten)]
        for _ in range(2):
            tier.world.now += 4_000_000
            await tier.collector.collect()
        assert ReleasePack not in [type(each) for _, each in tier.world.proposed], (
            "the release waits for the state that a recovery would start from"
        )
        tier.world.deliver()
        await tier.settle_all()
        tier.check_nothing_leaks()
        again = [each for each in intents if tier.world.apply(*each).code == Code.CREATED]
        for _, command in again:
            assert isinstance(command, PackWritten)
            await tier.store.put(command.pack, b"again")
        assert again
        await tier.settle_all()
        await tier.check()
        tier.check_nothing_leaks()

    play(story)


def test_a_store_that_is_down_keeps_all_in_memory_and_recovers() -> None:
    async def story() -> None:
        tier = Tier()
        tier.store.down = True
        tier.fill()
        with pytest.raises(Unavailable, match="retry later"):
            await tier.flusher.flush_now()
        assert await tier.flusher.flush_due() == 0
        assert tier.flusher._failures == 1
        assert "packs cannot be written" in (tier.flusher.trouble() or "")
        assert pause_after(tier.flusher._failures) == 0.5
        hot = tier.world.hot_bytes()
        assert hot == sum(map(len, tier.written.values()))
        assert not any(isinstance(command, PackWritten) for _, command in tier.world.proposed)
        tier.store.down = False
        await tier.flusher.flush_now()
        assert tier.world.hot_bytes() == 0
        await tier.flusher.flush_due()
        assert tier.flusher._failures == 0 and tier.flusher.trouble() is None
        await tier.check()

    play(story)


def test_a_caller_that_leaves_blocks_nobody() -> None:
    async def story() -> None:
        for later in range(12):
            tier = Tier()
            tier.fill(streams=5, appends=3)
            leaving = asyncio.create_task(tier.flusher.flush_now())
            await turns(later)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            async with asyncio.timeout(60):
                await tier.flusher.flush_now()
            assert tier.world.hot_bytes() == 0
            await tier.settle_all()
            await tier.check()
            live = {
                cold.pack
                for m in tier.world.machines().values()
                for s in m.directory.streams.values()
                for cold in m.packs.index_of(s)
            }
            assert set(tier.store.objects) == live

    play(story)


def test_a_stream_deleted_during_its_flush_leaves_nothing() -> None:
    async def story() -> None:
        for later in range(12):
            tier = Tier()
            tier.append("default/a", b"x")
            tier.append("default/b", b"y")
            flush = asyncio.create_task(tier.flusher.flush_now())
            await turns(later)
            for name in list(tier.written):
                tier.world.delete(name)
            tier.written.clear()
            await flush
            tier.world.deliver()
            await tier.settle_all()
            assert tier.store.objects == {}
            assert not any(machine.packs.owned for machine in tier.world.machines().values())

    play(story)


def test_a_name_that_is_used_again_during_its_flush_has_its_own_data() -> None:
    """Delete and re-create the stream between any two steps, and delete the old data without
    grace: the new incarnation keeps its own."""

    async def story() -> None:
        for later in range(24):
            tier = Tier()
            eager = tier.new_collector(
                CollectorSettings(orphan_ms=0, settle_after_ms=0, grace_ms=0, sweep_every_ms=0)
            )
            tier.append("default/a", b"old")
            if later % 2:
                await tier.flusher.flush_now()
                tier.append("default/a", b"and hot")
            flush = asyncio.create_task(tier.flusher.flush_now())
            await turns(later // 2)
            tier.world.delete("default/a")
            tier.written.clear()
            tier.append("default/a", b"new")
            tier.world.deliver()
            await flush
            await tier.flusher.flush_now()
            tier.append("default/a", b"er")
            await eager.collect()
            await tier.check()
            await tier.settle_all()
            tier.reader = tier.new_reader()
            await tier.check()
            tier.check_nothing_leaks()
            assert len(tier.store.objects) == 1

    play(story)


def test_a_pack_is_logged_by_an_entry_for_each_of_its_groups_however_many_streams_are_in_it() -> (
    None
):
    async def story() -> None:
        tier = Tier(settings=FlushSettings(pack_bytes_max=1 << 20, slice_bytes_max=100))
        tier.fill(streams=60, appends=2)
        await tier.flusher.flush_now()
        assert tier.flusher.counters.packs == 1 and tier.flusher.counters.slices >= 60
        kinds = [type(command) for _, command in tier.world.proposed]
        assert (kinds.count(PackWritten), kinds.count(PublishSlices)) == (1, GROUPS)
        assert len(kinds) == 1 + GROUPS
        await tier.check()

    play(story)


def test_the_most_eager_collector_leaves_packs_on_their_way_alone() -> None:
    async def story() -> None:
        tier = Tier()
        tier.fill(streams=5, appends=3)
        tier.world.log_turns = 20
        eager = tier.new_collector(
            CollectorSettings(orphan_ms=-(10**15), settle_after_ms=0, grace_ms=0, sweep_every_ms=0)
        )
        flush = asyncio.create_task(tier.flusher.flush_now())
        while not flush.done():
            await eager.collect()
            tier.world.deliver()
        await flush
        await eager.collect()
        assert (eager.counters.orphans, eager.counters.settled, eager.counters.deleted) == (0, 0, 0)
        await tier.check()

    play(story)


def test_a_pack_that_was_so_slow_that_it_was_swept_is_not_named() -> None:
    """Move the leadership of the owner group meanwhile: the new leader knows nothing of packs in
    flight."""

    async def story() -> None:
        tier = Tier()
        tier.fill()
        other = tier.new_collector()
        other._in_flight = frozenset()

        class Slow(FaultyStore):
            async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
                await super().put(key, parts)
                self.objects[key] = (self.objects[key][0], 1, tier.world.now)
                if "/packs/" not in key:
                    return
                tier.world.now += GRACE_SECONDS_MIN * 1000
                await other.sweep(grace_ms=GRACE_SECONDS_MIN * 1000)
                assert key not in self.objects  # by this sweep, or that of the pack beside it

        tier.store = other._store = tier.flusher._steps.store = Slow()  # type: ignore[assignment]
        with pytest.raises(Unavailable):
            await tier.flusher.flush_now()
        assert tier.world.hot_bytes() == sum(map(len, tier.written.values()))
        await tier.check()

    play(story)
    assert 2 * WRITE_MS_MAX <= GRACE_SECONDS_MIN * 1000 <= CollectorSettings().orphan_ms, (
        "the clocks of store and node differ by less"
    )


def test_age_goes_by_the_clock_of_the_store() -> None:
    """Log time is ahead for good once a leader's clock was: what another leader has just put, and
    not logged yet, is no orphan."""

    async def story() -> None:
        tier = Tier()
        tier.fill()
        key = f"c1/packs/20200101-00/2-{'0' * 32}"
        await tier.store.put(key, b"x")
        tier.world.now = int(time.time() * 1000) + 10 * CollectorSettings().orphan_ms
        collector = tier.new_collector()
        assert (await collector.sweep()).orphans == [] and tier.store.objects.keys() == {key}
        tier.store.objects[key] = (
            b"x",
            1,
            int(time.time() * 1000) - CollectorSettings().orphan_ms - 1,
        )
        assert (await collector.sweep()).orphans == [key] and not tier.store.objects

    play(story)


def test_two_sweeps_at_the_same_time_do_not_disturb_each_other() -> None:
    """Run the hourly sweep and an operator's."""

    async def story() -> None:
        for later in range(8):
            tier = Tier()
            collector = tier.new_collector()

            async def after(count: int, collector: Collector = collector) -> Swept:
                await turns(count)
                return await collector.sweep()

            assert await asyncio.gather(after(0), after(later)) == [Swept([]), Swept([])]
            assert not tier.store.objects

    play(story)


def test_what_has_become_known_since_it_was_found_is_not_swept() -> None:
    """Pause the process between the search and the sweep."""

    async def story() -> None:
        tier = Tier()
        tier.fill()
        known, lost = (f"c1/packs/20200101-00/2-{digit * 32}" for digit in "01")
        for key in (known, lost):
            await tier.store.put(key, b"x")
            tier.store.objects[key] = (b"x", 1, 0)

        async def stood_still() -> bool:
            tier.world.apply(2, PackWritten(known, [2], tier.world.now))
            return True

        swept = await tier.new_collector(owner=stood_still).sweep()
        assert swept.orphans == [known, lost] and tier.store.objects.keys() == {known}

    play(story)


def test_condemned_packs_wait_for_grace_snapshots_and_ownership() -> None:
    async def story() -> None:
        tier = Tier()
        tier.append("default/a", b"x")
        await tier.flusher.flush_now()
        tier.world.now += 1000
        tier.world.delete("default/a")
        tier.world.deliver()
        await tier.collector.collect()
        assert len(tier.store.objects) == 1, "the grace is not over"
        tier.world.covered = tier.world.now - 1
        tier.world.now += 60_000
        await tier.collector.collect()
        assert len(tier.store.objects) == 1, "a snapshot still needs it"
        assert tier.world.snapshots_wanted == 1
        tier.world.covered = None

        async def not_owner() -> bool:
            return False

        await tier.new_collector(owner=not_owner).collect()
        assert len(tier.store.objects) == 1, "another start owns the root"
        await tier.collector.collect()
        assert tier.store.objects == {}
        assert tier.collector.counters.deleted == 1
        assert not any(machine.packs.owned for machine in tier.world.machines().values())

    play(story)


def test_the_sweep_finds_orphans_of_its_own_groups_only() -> None:
    async def story() -> None:
        tier = Tier()
        tier.append("default/a", b"x")
        await tier.flusher.flush_now()
        (known,) = tier.store.objects
        name = "00" * 16
        for key in (
            f"c1/packs/20200101-00/2-{name}",
            f"c1/packs/20200101-00/9-{name}",
            "c1/packs/20200101-00/strange",
            f"c1/other/2-{name}",
        ):
            await tier.store.put(key, b"")
            tier.store.objects[key] = (b"", 1, 0)
        tier.store.objects[known] = (tier.store.objects[known][0], 1, 0)
        await tier.store.put(f"c1/packs/20200101-00/3-{name}", b"young")
        tier.store.objects[f"c1/packs/20200101-00/3-{name}"] = (b"young", 1, tier.world.now - 1000)
        before = set(tier.store.objects)
        assert (await tier.new_collector(sweep_deletes=False).sweep()).orphans == [
            f"c1/packs/20200101-00/2-{name}"
        ]
        assert set(tier.store.objects) == before
        await tier.collector.collect()
        assert set(tier.store.objects) == before - {f"c1/packs/20200101-00/2-{name}"}
        await tier.check()

    play(story)


def test_a_reader_of_a_deleted_pack_is_told_to_plan_again() -> None:
    async def story() -> None:
        tier = Tier()
        tier.append("default/a", b"x")
        await tier.flusher.flush_now()
        machine = tier.world.machines()[group_of("default/a", GROUPS)]
        (cold,) = machine.packs.index_of(machine.directory.streams["default/a"])
        tier.store.down = True
        with pytest.raises(Unavailable, match="cannot be read"):
            await tier.reader.batches(cold)
        tier.store.down = False
        tier.store.objects.clear()
        with pytest.raises(PackGone):
            await tier.reader.batches(cold)

    play(story)
