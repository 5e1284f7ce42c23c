"""Packs that have few bytes alive: they are emptied into larger ones before they are too many."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds.cold import Tier, play

from polynya.cold import MergeSettings
from polynya.cold.rewriting import merger
from polynya.cold.sparse_packs import PackLimits, choose_packs, runs_in

SIZE, SPARE = 8000, 8
LIMITS = PackLimits(
    pack_bytes=SIZE, pack_slices=1024, spare=SPARE, bytes_max=10 * SIZE, slices_max=4096
)
SETTINGS = MergeSettings(slice_bytes_max=4000, pack_bytes_max=SIZE, packs_spare=SPARE)


async def rare_writes(tier: Tier, packs: int, streams: int = 60) -> None:
    """Store that many packs, each with a slice of three streams of many."""
    random = Random("rare writes")
    for number in range(packs):
        for stream in random.sample(range(streams), 3):
            tier.append(f"default/s{stream}", b"%d;" % number * 10)
        await tier.flusher.flush_now()


def test_streams_that_are_written_rarely_do_not_keep_all_their_small_packs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merger, "GATHER_SECONDS", 0.0)

    async def story() -> None:
        tier = Tier()
        plain = tier.new_merger(msgspec.structs.replace(SETTINGS, packs_spare=10_000))
        gathering = tier.new_merger(SETTINGS)
        for _ in range(4):
            await rare_writes(tier, 30)
            assert await plain.merge_due() == 0, "no stream has enough slices of its own"
            assert await gathering.merge_due() > 0
            tier.world.deliver()
            await tier.settle_all()
            assert set(tier.store.objects) == tier.live()
            wanted = LIMITS.wanted(sum(map(len, tier.written.values())))
            assert len(tier.store.objects) <= wanted
            await tier.check()
        written = sum(map(len, tier.written.values()))
        assert gathering.counters.bytes < 4 * written, "a byte moves a few times at most"
        packs = gathering.counters.packs
        await gathering.merge_due()
        assert gathering.counters.packs == packs, "nothing moves while nothing is written"

    play(story)


@given(
    packs=st.lists(st.tuples(st.integers(1, 2 * SIZE), st.integers(1, 9)), max_size=60),
    spare=st.integers(1, 20),
    slices_max=st.integers(1, 100),
    bytes_max=st.integers(1, 20 * SIZE),
)
@settings(max_examples=200, deadline=None)
def test_the_smallest_packs_are_chosen_and_no_more_than_needed(
    packs: list[tuple[int, int]], spare: int, slices_max: int, bytes_max: int
) -> None:
    live = {f"{number}": pack for number, pack in enumerate(packs)}
    limits = PackLimits(
        pack_bytes=SIZE, pack_slices=slices_max, spare=spare, bytes_max=bytes_max, slices_max=200
    )
    chosen = choose_packs(live, limits)
    moved = sorted(live[key] for key in chosen)
    size, slices = sum(size for size, _ in moved), sum(count for _, count in moved)
    wanted = limits.wanted(sum(size for size, _ in packs))
    assert size <= bytes_max and slices <= 200
    assert moved == sorted(packs)[: len(chosen)]
    if chosen:
        assert len(live) > wanted
        assert 2 * limits.filled(size, slices) <= len(chosen), "they become half as many at most"


def test_packs_are_emptied_until_half_of_the_spare_ones_are_free() -> None:
    many = {f"{number:02}": (100 + number, 1) for number in range(20)}
    full = {"full": (SIZE, 1)}
    assert choose_packs({**many, **full}, LIMITS) == sorted(many)[:17]
    few = msgspec.structs.replace(LIMITS, bytes_max=450)
    assert choose_packs({**many, **full}, few) == sorted(many)[:4]
    few = msgspec.structs.replace(LIMITS, slices_max=3)
    assert choose_packs({**many, **full}, few) == sorted(many)[:3]
    assert choose_packs(dict(list(many.items())[:8]), LIMITS) == []
    crowded = dict.fromkeys(many, (100, 1000))
    assert choose_packs(crowded, LIMITS) == [], "a pack has so few slices at most"


@given(
    entries=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), max_size=40),
    chosen=st.sets(st.sampled_from("0123")),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_each_slice_of_a_chosen_pack_is_in_one_run_that_is_small_enough(
    entries: list[tuple[int, int]], chosen: set[str], data: st.DataObject
) -> None:
    packs, lengths = [str(pack) for pack, _ in entries], [length for _, length in entries]
    middle = data.draw(st.integers(0, len(entries)))
    segments = [(0, middle), (middle, len(entries))]
    runs = list(runs_in(packs, lengths, segments, chosen, 100))
    found = Counter(at for begin, end in runs for at in range(begin, end))
    assert found == Counter(at for at, pack in enumerate(packs) if pack in chosen)
    for begin, end in runs:
        assert end - begin == 1 or sum(lengths[begin:end]) <= 100
        assert not begin < middle < end
