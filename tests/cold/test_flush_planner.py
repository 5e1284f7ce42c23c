"""Order of flushing: bounds hold, no stream starves, order is kept."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from polynya.cold import FlushSettings
from polynya.cold.planner import (
    SLICES_MAX,
    STREAMS_MAX,
    Candidate,
    Waiting,
    choose,
    cut_runs,
    plan_packs,
)
from polynya.stream.state.model import HotBatch

sizes = st.lists(st.integers(0, 60), min_size=1, max_size=8)


def candidate(uid: int, lengths: list[int], *, group: int = 1, first: bool = True) -> Candidate:
    batches = []
    byte = 1000
    for number, length in enumerate(lengths):
        batches.append(HotBatch(number, byte, 1, bytes(length), b"", 0, number, 0, 0, 0))
        byte += length
    return Candidate(group, uid, f"default/{uid}", "text/plain", first, batches)


def settings(**changes: int) -> FlushSettings:
    return FlushSettings(
        **{"from_bytes": 100, "pack_bytes_max": 100, "slice_bytes_max": 40, "age_ms_max": 1000}
        | changes
    )


def waiting(uid: int, size: int, oldest_ms: int = 0) -> Waiting:
    return Waiting(1, uid, size, oldest_ms)


def test_the_largest_go_first_until_half_of_the_bound_is_left() -> None:
    found = [waiting(1, 30), waiting(2, 50), waiting(3, 10), waiting(4, 40)]
    assert [each.uid for each in choose(found, settings(), 0)] == [2, 4]
    assert choose(found, settings(from_bytes=131), 0) == []


def test_among_equals_the_older_goes_first() -> None:
    found = [waiting(1, 50, 3), waiting(2, 50, 1), waiting(3, 50, 2)]
    assert [each.uid for each in choose(found, settings(), 10)] == [2, 3]


def test_old_bytes_go_however_few() -> None:
    found = [waiting(1, 1, 500), waiting(2, 1, 0)]
    assert choose(found, settings(), 999) == []
    assert [each.uid for each in choose(found, settings(), 1000)] == [2]
    assert [each.uid for each in choose(found, settings(), 1500)] == [2, 1]


def test_one_planning_takes_a_bounded_number_the_oldest_first() -> None:
    found = [waiting(uid, 1, 10_000 - uid) for uid in range(STREAMS_MAX + 5)]
    for now_ms, from_bytes in ((1_000_000, 1 << 20), (0, 1)):
        chosen = choose(found, settings(from_bytes=from_bytes), now_ms)
        assert {each.uid for each in chosen} == set(range(5, STREAMS_MAX + 5))


def test_one_pack_has_a_bounded_number_of_slices() -> None:
    packs = plan_packs([candidate(uid, [0]) for uid in range(SLICES_MAX + 1)], settings())
    assert [len(pack.slices) for pack in packs] == [SLICES_MAX, 1]


def test_a_large_stream_takes_one_pack_and_the_small_ones_the_next() -> None:
    packs = plan_packs(
        [candidate(1, [30] * 10, group=2), candidate(2, [20]), candidate(3, [20], group=3)],
        settings(),
    )
    assert [[(each.uid, len(each.batches)) for each in pack.slices] for pack in packs] == [
        [(1, 1), (1, 1), (1, 1)],
        [(2, 1), (3, 1)],
    ]
    assert [pack.owner_group for pack in packs] == [2, 1]
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


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30)), min_size=1, max_size=20),
    st.integers(1, 100),
)
def test_a_run_has_one_encoding(drawn: list[tuple[int, int]], bytes_max: int) -> None:
    batches = list(candidate(1, [size for _, size in drawn]).batches)
    for batch, (encoding, _) in zip(batches, drawn, strict=True):
        batch.encoding = encoding
    runs = cut_runs(batches, bytes_max)
    assert [batch for run in runs for batch in run] == batches
    assert all(len({batch.encoding for batch in run}) == 1 for run in runs)
    assert len(cut_runs(batches, 1 << 30)) == 1 + sum(
        one[0] != other[0] for one, other in pairwise(drawn)
    )
    pack = plan_packs(
        [Candidate(1, 1, "default/1", "text/plain", True, batches)],
        settings(pack_bytes_max=1 << 30),
    )[0]
    assert all(each.encoding == batch.encoding for each in pack.slices for batch in each.batches)


def test_a_run_ends_before_its_records_are_too_many() -> None:
    batches, record = list(candidate(1, [10] * 4).batches), 0
    for batch, records in zip(batches, (2**31, 2**31 - 1, 1, 2**32 - 1), strict=True):
        batch.encoding, batch.record, batch.records = 2, record, records
        record += records
    assert [len(run) for run in cut_runs(batches, 1000)] == [2, 1, 1]


@given(st.lists(sizes, min_size=1, max_size=8))
def test_packs_keep_the_bound_and_begin_at_each_streams_first_batch(
    streams: list[list[int]],
) -> None:
    candidates = [candidate(uid, lengths, group=uid % 3 + 1) for uid, lengths in enumerate(streams)]
    packs = plan_packs(candidates, settings())
    seen: dict[int, list[HotBatch]] = {}
    for pack in packs:
        assert pack.size == sum(
            len(batch.payload) for each in pack.slices for batch in each.batches
        )
        assert pack.size <= 100 or len(pack.slices) == 1
        assert not pack.uids & seen.keys()
        for each in pack.slices:
            seen.setdefault(each.uid, []).extend(each.batches)
    for each in candidates:
        assert seen[each.uid] == list(each.batches)[: len(seen[each.uid])] != []
