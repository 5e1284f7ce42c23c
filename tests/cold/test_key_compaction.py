"""Key compaction of packs: of each key the last value stays, readers reach the end, and no failure
loses a value or brings a deleted key back."""

from __future__ import annotations

import random

import pytest
from worlds.cold import FaultyStore, play, play_each
from worlds.compaction import NAME, KeyedTier, Pair
from worlds.in_process import HereWorker

from polynya.cold.compaction.child import CompactionFailed
from polynya.cold.compaction.planner import CompactionPolicy
from polynya.cold.compaction.work import Answer, MapPiece, Request
from polynya.stream.features.compaction.progress import compaction_of
from polynya.wire.kafka import codecs

DAY_MS = 86_400_000


async def churn(tier: KeyedTier, batches: int = 20, keys: int = 5, *, codec: int = 0) -> None:
    """Write batches of five records, a slice each three."""
    for number in range(batches):
        pairs = [(b"k%d" % ((number * 5 + at) % keys), b"%d-%d" % (number, at)) for at in range(5)]
        tier.produce(*pairs, codec=codec)
        if number % 3 == 2:
            await tier.flush()
    await tier.flush()


@pytest.mark.parametrize("codec", range(len(codecs.NAMES)), ids=codecs.NAMES)
def test_only_the_last_value_of_each_key_stays(codec: int) -> None:
    async def story() -> None:
        tier = KeyedTier()
        await churn(tier, codec=codec)
        assert await tier.compactor.compact_due() == 1
        found = await tier.check_keys()
        assert len(found) == 5, "100 updates of 5 keys"
        assert tier.compactor.counters.dropped_records == 95
        assert compaction_of(tier.stream()).cleaned == 100
        assert await tier.compactor.compact_due() == 0, "nothing is dirty"
        for record in range(100):  # a reader from anywhere gets what is behind it
            assert await tier.read_pairs(record=record) == {
                at: pair for at, pair in found.items() if at >= record or at >= 95
            }
        await tier.settle_all()
        tier.check_nothing_leaks()

    play(story)


class EndingWorker(HereWorker):
    """A worker that a slice with this text ends, until it is repaired."""

    text = b"poison"
    is_repaired = False

    async def run(self, request: Request) -> Answer:
        is_step = isinstance(request, MapPiece) and not self.is_repaired
        if is_step and self.text in request.piece.data:
            raise CompactionFailed("the compaction process failed: planted")
        return await super().run(request)


def test_a_stream_whose_pass_fails_does_not_hold_up_others() -> None:
    async def story() -> None:
        tier = KeyedTier()
        other = "kafka/t/1"
        tier.policies[other] = tier.policies[NAME]
        worker = EndingWorker()
        tier.compactor = tier.new_compactor(worker)
        for number in range(10):
            tier.produce((worker.text, b"%d" % number))
            tier.produce((b"a", b"%d" % number), name=other)
        await tier.flush()
        tier.compactor.force(NAME)
        tier.compactor.force(other)
        for _ in range(3):
            await tier.compactor.compact_due()
        assert len(await tier.check_keys(other)) == 1
        assert len(await tier.check_keys()) == 10
        assert tier.compactor.is_waiting(NAME)
        worker.is_repaired = True
        assert await tier.compactor.compact_due() == 1
        assert len(await tier.check_keys()) == 1

    play(story)


def test_offsets_stay_and_later_passes_go_on_where_the_first_ended() -> None:
    async def story() -> None:
        tier = KeyedTier()
        await churn(tier)
        await tier.compactor.compact_due()
        await churn(tier, batches=3, keys=2)
        assert await tier.compactor.compact_due() == 1
        found = await tier.check_keys()
        assert len(found) == 5
        assert sorted(found)[:3] == [97, 98, 99]
        assert tier.stream().next_record == 115

    play(story)


def test_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    async def story() -> None:
        tier = KeyedTier(policy=CompactionPolicy(delete_retention_ms=DAY_MS))
        await churn(tier)
        tier.produce((b"k0", None))
        tier.produce((b"k1", b"last"))
        await tier.flush()
        await tier.compact()
        assert (b"k0", None) in (await tier.check_keys()).values()
        assert compaction_of(tier.stream()).horizon_ms == tier.world.now + DAY_MS
        tier.world.now += DAY_MS - 1
        assert await tier.compactor.compact_due() == 0
        tier.world.now += 1
        assert await tier.compactor.compact_due() == 1
        await tier.check_keys(gone=[b"k0"])
        assert compaction_of(tier.stream()).horizon_ms == 0, "an idle stream is left alone"
        tier.world.now += 10 * DAY_MS
        assert await tier.compactor.compact_due() == 0

    play(story)


def test_a_tombstone_stays_while_another_pass_runs() -> None:
    async def story() -> None:
        tier = KeyedTier(policy=CompactionPolicy(delete_retention_ms=DAY_MS))
        tier.produce((b"a", b"1"))
        tier.produce((b"a", None))
        for number in range(4):
            tier.produce((b"b", b"%d" % number))
            await tier.flush()
            await tier.compact()
            assert (b"a", None) in (await tier.check_keys()).values()
        tier.world.now += DAY_MS
        await tier.compactor.compact_due()
        await tier.check_keys(gone=[b"a"])

    play(story)


def test_the_last_batch_stays_even_if_it_is_a_tombstone() -> None:
    async def story() -> None:
        tier = KeyedTier(policy=CompactionPolicy(delete_retention_ms=0))
        tier.produce((b"a", b"1"))
        tier.produce((b"a", None))
        await tier.flush()
        for _ in range(3):
            await tier.compact()
            tier.world.now += DAY_MS
        assert await tier.check_keys() == {1: (b"a", None)}
        assert await tier.compactor.compact_due() == 0

    play(story)


def test_records_without_a_key_stay() -> None:
    async def story() -> None:
        tier = KeyedTier()
        for number in range(10):
            tier.produce((b"a", b"%d" % number), (None, b"n%d" % number))
            await tier.flush()
        await tier.compact()
        assert len(await tier.check_keys()) == 11

    play(story)


@pytest.mark.parametrize("after", [False, True])
def test_any_call_of_the_store_may_fail(after: bool) -> None:
    async def story(number: int) -> int:
        tier = KeyedTier(FaultyStore(after=after))
        await churn(tier)
        calls = 0
        for _ in range(3):
            begin = tier.store.calls
            tier.store.fail_at = begin + number - calls
            await tier.compactor.compact_due()
            calls, tier.store.fail_at = calls + tier.store.calls - begin, 0
            await tier.check_keys()
            tier.world.now += 60_000
        assert len(await tier.check_keys()) == 5
        await tier.settle_all()
        tier.check_nothing_leaks()
        return calls

    play_each(story, over=3)


@pytest.mark.parametrize("how", ["before", "after", "lost"])
def test_any_entry_of_the_log_may_fail(how: str) -> None:
    async def story(number: int) -> int:
        tier = KeyedTier()
        await churn(tier)
        begin = len(tier.world.proposed)
        tier.world.fail = lambda at, command: how if at == begin + number else ""
        for _ in range(3):
            await tier.compactor.compact_due()
            await tier.check_keys()
            tier.world.now += 60_000
        assert len(await tier.check_keys()) == 5
        return len(tier.world.proposed) - begin

    play_each(story, over=2)


@pytest.mark.parametrize("seed", range(8))
def test_random_histories_keep_the_model(seed: int) -> None:
    async def story() -> None:
        chance = random.Random(seed)
        tier = KeyedTier(policy=CompactionPolicy(delete_retention_ms=1000))
        for _ in range(60):
            for _ in range(chance.randrange(1, 4)):
                pairs: list[Pair] = []
                for _ in range(chance.randrange(1, 8)):
                    key = chance.choice([b"a", b"b", b"c", b"d", b"e" * 40, b"", None])
                    value = None if chance.random() < 0.2 else chance.randbytes(20)
                    pairs.append((key, value))
                tier.produce(*pairs, codec=chance.randrange(5))
            if chance.random() < 0.6:
                await tier.flush()
            if chance.random() < 0.3:
                await tier.merger.merge_due()
            if chance.random() < 0.4:
                await tier.compactor.compact_due()
            tier.world.now += chance.randrange(800)
            await check_history(tier)

    play(story)


async def check_history(tier: KeyedTier) -> None:
    """A key whose last record is a tombstone may be gone, but has no older value then."""
    found = await tier.read_pairs()
    assert found.items() <= tier.records[NAME].items()
    last: dict[bytes | None, tuple[int, bytes | None]] = {
        key: (at, value) for at, (key, value) in found.items()
    }
    for key, (at, value) in {
        key: (at, value) for at, (key, value) in tier.records[NAME].items() if key is not None
    }.items():
        if value is None and key not in last:
            continue
        assert last.get(key) == (at, value)
