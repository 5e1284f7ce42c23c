"""What is flushed when: bounds hold, nobody starves, order is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polynya.cold.planner import Candidate, FlushSettings, choose, cut_runs, plan_packs
from polynya.stream.model import HotBatch

sizes = st.lists(st.integers(0, 60), min_size=1, max_size=8)


def candidate(uid: int, lengths: list[int], *, time_ms: int = 0, group: int = 1, first: bool = True) -> Candidate:
    batches = []
    byte = 1000
    for number, length in enumerate(lengths):
        batches.append(HotBatch(number, byte, 1, bytes(length), b"", 0, time_ms + number, 0, 0, 0))
        byte += length
    return Candidate(group, uid, f"default/{uid}", "text/plain", 0, first, batches)


def settings(**changes: int) -> FlushSettings:
    return FlushSettings(**{"from_bytes": 100, "pack_bytes_max": 100, "slice_bytes_max": 40, "age_ms_max": 1000} | changes)


def test_the_largest_go_first_until_half_of_the_bound_is_left() -> None:
    candidates = [candidate(1, [30]), candidate(2, [50]), candidate(3, [10]), candidate(4, [40])]
    assert [each.uid for each in choose(candidates, settings(), 0)] == [2, 4]
    assert choose(candidates, settings(from_bytes=131), 0) == []


def test_among_equals_the_older_goes_first() -> None:
    candidates = [candidate(1, [50], time_ms=3), candidate(2, [50], time_ms=1), candidate(3, [50], time_ms=2)]
    assert [each.uid for each in choose(candidates, settings(), 10)] == [2, 3]


def test_old_bytes_go_however_few() -> None:
    candidates = [candidate(1, [1], time_ms=0), candidate(2, [1], time_ms=500)]
    assert choose(candidates, settings(), 999) == []
    assert [each.uid for each in choose(candidates, settings(), 1000)] == [1]
    assert [each.uid for each in choose(candidates, settings(), 1500)] == [1, 2]


def test_a_large_stream_takes_one_pack_and_the_small_ones_the_next() -> None:
    packs = plan_packs([candidate(1, [30] * 10, group=2), candidate(2, [20]), candidate(3, [20], group=3)], settings())
    assert [[(each.uid, len(each.batches)) for each in pack.slices] for pack in packs] == [[(1, 1), (1, 1), (1, 1)], [(2, 1), (3, 1)]]
    assert [pack.home_group for pack in packs] == [2, 1]
    assert [pack.groups for pack in packs] == [[2], [1, 3]]
    assert [each.path for each in packs[0].slices] == ["default/1", "", ""]


def test_a_batch_beyond_every_bound_goes_alone() -> None:
    packs = plan_packs([candidate(1, [10, 500, 10])], settings())
    assert [[len(each.batches) for each in pack.slices] for pack in packs] == [[1]]
    packs = plan_packs([candidate(1, [500, 10])], settings())
    assert [pack.size for pack in packs] == [500]


@given(sizes, st.integers(1, 100))
def test_runs_cover_all_in_order_and_keep_the_bound(lengths: list[int], bytes_max: int) -> None:
    batches = candidate(1, lengths).batches
    runs = cut_runs(batches, bytes_max)
    assert [batch for run in runs for batch in run] == list(batches)
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        size = sum(len(batch.payload) for batch in run)
        assert size <= bytes_max or len(run) == 1
        assert following is None or size + len(following[0].payload) > bytes_max


@given(st.lists(sizes, min_size=1, max_size=8))
def test_packs_keep_the_bound_and_begin_at_each_streams_first_batch(streams: list[list[int]]) -> None:
    candidates = [candidate(uid, lengths, group=uid % 3 + 1) for uid, lengths in enumerate(streams)]
    packs = plan_packs(candidates, settings())
    seen: dict[int, list[HotBatch]] = {}
    for pack in packs:
        assert pack.size == sum(len(batch.payload) for each in pack.slices for batch in each.batches)
        assert pack.size <= 100 or len(pack.slices) == 1
        assert not pack.uids & seen.keys()
        for each in pack.slices:
            seen.setdefault(each.uid, []).extend(each.batches)
    for each in candidates:
        assert seen[each.uid] == list(each.batches)[: len(seen[each.uid])] != []
