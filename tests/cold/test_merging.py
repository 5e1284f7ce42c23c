"""Small slices become larger ones: nothing is lost, nothing leaks, whatever fails; readers and
tables notice nothing."""

from __future__ import annotations

import asyncio

import pytest
from long_tests import long
from polling import wait_for
from worlds.cold import GROUPS, MERGE_SETTINGS, FaultyStore, Tier, play, play_each

from polynya.base.errors import Unavailable
from polynya.base.names import group_of
from polynya.cold import CollectorSettings, MergeSettings, PackGone
from polynya.cold.requests import cut_requests
from polynya.stream.features.packs.commands import ReplaceSlices
from polynya.stream.features.tables.commands import ClaimRanges
from polynya.stream.parts import ColdSlice
from polynya.wire.pack import read_footer

NAME = "default/s0"


async def many_slices(tier: Tier, streams: int = 5, slices: int = 20) -> None:
    """Give each stream that many small slices, in as many packs."""
    for _ in range(slices):
        tier.fill(streams=streams, appends=1)
        await tier.flusher.flush_now()


def test_many_small_slices_become_few() -> None:
    async def story() -> None:
        tier = Tier()
        await many_slices(tier)
        assert {len(slices) for slices in tier.indexes().values()} == {20}
        assert await tier.merger.merge_due() == 3, "five slices of 3,200 bytes in packs of 8,000"
        assert {len(slices) for slices in tier.indexes().values()} == {1}
        await tier.check()
        assert await tier.merger.merge_due() == 0
        tier.world.deliver()
        await tier.settle_all()
        assert set(tier.store.objects) == tier.live()
        assert len(tier.store.objects) == 3
        counters = tier.merger.counters
        assert (counters.packs, counters.slices, counters.failures, counters.refused) == (
            3,
            100,
            0,
            0,
        )
        assert counters.bytes == sum(map(len, tier.written.values()))
        await tier.check()

    play(story)


def test_merged_packs_are_self_describing() -> None:
    async def story() -> None:
        tier = Tier()
        await many_slices(tier, streams=2)
        before = set(tier.store.objects)
        await tier.merger.merge_due()
        (key,) = set(tier.store.objects) - before
        footer = read_footer(tier.store.objects[key][0])
        assert [(entry.path, entry.content_type) for entry in footer.entries] == [
            (name, "text/plain") for name in sorted(tier.written)
        ] or [(entry.path, entry.content_type) for entry in footer.entries] == [
            (name, "text/plain") for name in sorted(tier.written, reverse=True)
        ]
        assert {
            (entry.base_record, entry.base_byte, entry.records) for entry in footer.entries
        } == {(0, 0, 20)}

    play(story)


def test_an_index_stays_short_for_ever() -> None:
    async def story() -> None:
        tier = Tier()
        for number in range(400):
            tier.append(NAME, b"%d;" % number * 10)
            await tier.flusher.flush_now()
            await tier.merger.merge_due()
            assert len(tier.indexes()[NAME]) < 40
            if number % 50 == 0:
                tier.world.deliver()
                await tier.settle_all()
                assert set(tier.store.objects) == tier.live()
        await tier.check()

    play(story)


def test_long_indexes_are_looked_at_from_where_they_are_not_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polynya.cold.rewriting.merger.SETTLED_MIN", 3)

    async def story() -> None:
        tier = Tier()
        for number in range(600):
            tier.append(NAME, b"%d;" % number * 30)
            await tier.flusher.flush_now()
            await tier.merger.merge_due()
        assert tier.merger._settled
        assert len(tier.indexes()[NAME]) < 40 + sum(map(len, tier.written.values())) // 2000
        await tier.check()

    play(story)


@pytest.mark.parametrize("after", [False, True])
def test_any_call_of_the_store_may_fail(after: bool) -> None:
    async def story(number: int) -> int:
        tier = Tier(FaultyStore(after=after))
        await many_slices(tier, streams=3)
        begin = tier.store.calls
        tier.store.fail_at = begin + number
        for _ in range(3):
            await tier.merger.merge_due()
        calls = tier.store.calls - begin
        tier.store.fail_at = 0
        await tier.check_merged()
        return calls

    play_each(story, over=20)


@pytest.mark.parametrize("how", ["before", "after", "lost"])
@pytest.mark.parametrize("in_a_row", [1, *long([3])])
def test_any_proposal_may_fail(how: str, in_a_row: int) -> None:
    async def story(number: int) -> int:
        tier = Tier()
        await many_slices(tier, streams=5)
        begin = len(tier.world.proposed)
        tier.world.fail = lambda nth, command: (
            how if number <= nth - begin < number + in_a_row else ""
        )
        for _ in range(3):
            await tier.merger.merge_due()
        calls = len(tier.world.proposed) - begin
        tier.world.fail = lambda nth, command: ""
        await tier.check_merged()
        return calls

    play_each(story, over=4)


def test_a_crash_between_any_two_steps_leaves_nothing_behind() -> None:
    async def story(later: int) -> bool:
        tier = Tier()
        await many_slices(tier)
        merge = asyncio.create_task(tier.merger.merge_due())
        for _ in range(later):
            await asyncio.sleep(0)
        ended = merge.done()
        merge.cancel()
        await asyncio.gather(merge, return_exceptions=True)
        assert not tier.flusher.in_flight
        await tier.check()
        tier.world.deliver()
        await tier.settle_all()
        await tier.check()
        assert set(tier.store.objects) == tier.live()
        await tier.new_merger().merge_due()
        assert {len(slices) for slices in tier.indexes().values()} == {1}
        await tier.check()
        return ended

    later = 0
    while not asyncio.run(story(later)):
        later += 1 if later < 60 else 25  # the thread that builds the pack takes some time
    assert later > 20


def test_readers_during_a_merge_read_on() -> None:
    async def story() -> None:
        tier = Tier()
        await many_slices(tier)
        plans = {
            name: tier.world.machines()[group_of(name, GROUPS)].packs.index_of(
                tier.world.machines()[group_of(name, GROUPS)].directory.streams[name]
            )[:]
            for name in tier.written
        }
        merge = asyncio.create_task(tier.merger.merge_due())
        while not merge.done():
            await tier.check()
            await asyncio.sleep(0)
        tier.world.deliver()
        await tier.collector.collect()
        old = [cold for slices in plans.values() for cold in slices]
        reader = tier.new_reader()
        for cold in old:
            assert await reader.batches(cold), (
                "within the grace every position that a reader may hold is there"
            )
        await tier.settle_all()
        with pytest.raises(PackGone):
            await tier.new_reader().batches(old[0])
        await tier.check()

    play(story)


def test_streams_that_change_during_a_merge() -> None:
    async def story() -> None:
        for later in range(0, 60, 3):
            tier = Tier()
            await many_slices(tier)
            tier.world.log_turns = 3
            merge = asyncio.create_task(tier.merger.merge_due())
            for _ in range(later):
                await asyncio.sleep(0)
            tier.world.delete(NAME)
            del tier.written[NAME]
            tier.append(NAME, b"another life")
            tier.fill(streams=5, appends=2)
            await tier.flusher.flush_now()
            await merge
            tier.world.deliver()
            await tier.check()
            await tier.settle_all()
            await tier.check()
            assert set(tier.store.objects) == tier.live()

    play(story)


def test_slices_that_cannot_be_read_stop_nobody_else() -> None:
    async def story() -> None:
        tier = Tier()
        await many_slices(tier)
        lost, damaged = (tier.indexes()[name][7] for name in ("default/s1", "default/s2"))
        data, version, modified = tier.store.objects[damaged.pack]
        at = damaged.offset + damaged.stored - 1
        tier.store.objects[damaged.pack] = (data[:at] + b"?" + data[at + 1 :], version, modified)
        del tier.store.objects[lost.pack]
        for name in ("default/s0", "default/s3", "default/s4"):  # all but s1 were in another pack
            assert all(cold.pack != lost.pack for cold in tier.indexes()[name]) or name
        await tier.merger.merge_due()
        counts = {name: len(slices) for name, slices in tier.indexes().items()}
        assert counts["default/s1"] == counts["default/s2"] == 20
        assert tier.merger.counters.failures == len(
            [count for count in counts.values() if count == 20]
        )
        failures = tier.merger.counters.failures
        await tier.merger.merge_due()
        assert tier.merger.counters.failures == failures, "it is said once"

    play(story)


def claim(tier: Tier, job: int, committed: int) -> list[tuple[int, int]]:
    """Return the ranges that a table's job claims of the stream: first record and end."""
    group = group_of(NAME, GROUPS)
    reply = tier.world.apply(
        group, ClaimRanges(7, job, committed, "default/", [], 1 << 30, fresh=True)
    )
    return [
        (part.slices[0].record, part.slices[-1].record + part.slices[-1].records)
        for part in reply.detail
        if part.name == NAME
    ]


async def grow(tier: Tier, slices: int) -> None:
    for _ in range(slices):
        tier.append(NAME, b"x" * 9)
        await tier.flusher.flush_now()


def test_a_job_finds_the_same_records_after_a_merge() -> None:
    async def story() -> None:
        tier = Tier()
        tier.merger = tier.new_merger(
            MergeSettings(slice_bytes_max=4000, pack_bytes_max=8000, claim_rest_ms=1000)
        )
        await grow(tier, 20)
        assert claim(tier, 1, 0) == [(0, 20)]
        await grow(tier, 20)
        await tier.merger.merge_due()
        assert [(cold.record, cold.records) for cold in tier.indexes()[NAME]] == [
            (at, 1) for at in range(20)
        ] + [(20, 20)]
        tier.world.now += 1001
        await tier.merger.merge_due()
        assert [(cold.record, cold.records) for cold in tier.indexes()[NAME]] == [
            (0, 20),
            (20, 20),
        ], "an hour later its driver is gone"
        assert claim(tier, 1, 0) == [(0, 20)]
        assert claim(tier, 2, 1) == [(20, 40)]
        await tier.check()

    play(story)


def test_every_record_is_in_one_job_whatever_is_merged_between() -> None:
    async def story() -> None:
        tier = Tier()
        tier.merger = tier.new_merger(
            MergeSettings(slice_bytes_max=4000, pack_bytes_max=8000, claim_rest_ms=0)
        )
        at = 0
        for job in range(1, 8):
            await grow(tier, 13 + job)
            await tier.merger.merge_due()
            # the third job never committed
            taken = claim(tier, job, job - 1 if job != 4 else job - 2)
            await tier.merger.merge_due()
            expected = sum(13 + each for each in range(1, job + 1))
            begin = at if job != 4 else at - (13 + 3)
            assert taken == [(begin, expected)]
            assert claim(tier, job, job - 1 if job != 4 else job - 2) == taken
            at = expected
        await tier.check()

    play(story)


def test_the_task_merges_by_itself_and_has_patience() -> None:
    async def story() -> None:
        tier = Tier()
        await many_slices(tier)
        pauses: list[float] = []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            await asyncio.sleep(0)
            if len(pauses) == 3:
                tier.store.down = False

        tier.store.down = True
        tier.merger = tier.new_merger(MERGE_SETTINGS, sleep=sleep)
        task = asyncio.create_task(tier.merger.run())
        await wait_for(lambda: len(tier.live()) <= 3, what="the slices are merged")
        await wait_for(lambda: 1.0 in pauses[3:], what="the merger rests")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert pauses[:3] == [0.5, 1.0, 2.0]
        assert tier.merger.counters.failures == 3
        await tier.check()
        async with asyncio.timeout(60):
            await tier.new_merger(MergeSettings(interval_ms=0)).run()

    play(story)


def test_the_most_eager_collector_leaves_merged_packs_on_their_way_alone() -> None:
    async def story() -> None:
        tier = Tier()
        await many_slices(tier)
        tier.world.log_turns = 20
        tier.world.covered = 0
        eager = tier.new_collector(
            CollectorSettings(orphan_ms=-(10**15), settle_after_ms=0, grace_ms=0, sweep_every_ms=0)
        )
        merge = asyncio.create_task(tier.merger.merge_due())
        while not merge.done():
            await eager.collect()
            tier.world.deliver()
        assert (eager.counters.orphans, eager.counters.settled, eager.counters.deleted) == (0, 0, 0)
        await tier.check()

    play(story)


def test_a_late_replacement_of_a_lost_pack_changes_nothing() -> None:
    async def story() -> None:
        tier = Tier()
        await many_slices(tier)
        late: list[tuple[int, ReplaceSlices]] = []

        def lose(number: int, command: object) -> str:
            if isinstance(command, ReplaceSlices) and (not late or command.pack == late[0][1].pack):
                late.append(tier.world.proposed[-1])  # type: ignore[arg-type]
                return "lost"
            return ""

        tier.world.fail = lose
        assert await tier.merger.merge_due() == 0
        await tier.settle_all()
        for group, command in late:
            assert tier.world.apply(group, command).detail == []
        await tier.merger.merge_due()
        await tier.settle_all()
        await tier.check()
        assert set(tier.store.objects) == tier.live()

    play(story)


def test_a_merge_is_of_the_term_in_which_its_slices_were_looked_up() -> None:
    async def story() -> None:
        tier = Tier()
        await many_slices(tier)
        read, terms = tier.store.get_range, [1]

        async def elected(key: str, start: int, length: int) -> bytes:
            terms.append(2)
            return await read(key, start, length)

        tier.store.get_range = elected  # type: ignore[method-assign]
        tier.world.term = lambda group: terms[-1]  # type: ignore[method-assign]
        begin = len(tier.world.proposed)
        await tier.merger.merge_due()
        sent = [command for _, command in tier.world.proposed[begin:]]
        replacing = [command for command in sent if isinstance(command, ReplaceSlices)]
        assert {command.term for command in replacing[:1]} == {1}

    play(story)


def test_neighbours_are_fetched_together() -> None:
    def cold(pack: str, offset: int, stored: int) -> ColdSlice:
        return ColdSlice(0, 0, 1, stored, pack, offset, stored, 0)

    slices = [
        cold("b", 0, 10),
        cold("a", 16, 10),
        cold("a", 0, 10),
        cold("a", 70_000, 10),
        cold("a", 70_016, 4 << 20),
    ]
    assert [[(each.pack, each.offset) for each in request] for request in cut_requests(slices)] == [
        [("a", 0), ("a", 16)],
        [("a", 70_000)],
        [("a", 70_016)],
        [("b", 0)],
    ]
    assert cut_requests([]) == []


def test_a_store_that_is_down_is_waited_for() -> None:
    async def story() -> None:
        tier = Tier()
        await many_slices(tier)
        tier.store.down = True
        assert await tier.merger.merge_due() == 0
        assert tier.merger.counters.failures == 1
        with pytest.raises(Unavailable):
            await tier.new_reader().batches(tier.indexes()[NAME][0])
        tier.store.down = False
        assert await tier.merger.merge_due() == 3

    play(story)
