"""Choice of runs to merge: indexes stay short, and no byte is rewritten too often."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polynya.cold import MergeSettings
from polynya.cold.planner import SLICES_MAX
from polynya.cold.rewriting.merge_planner import (
    FAN_IN,
    LINE_ENTRIES_MIN,
    OPEN_ENTRIES_MAX,
    MergeRun,
    cut_segments,
    plan_packs,
    plan_runs,
)

MAX = 4096


class History:
    """An index over time: lengths of its entries, and of each how often it was written."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.written: list[
            list[tuple[int, int]]
        ] = []  # per entry: (length of an original slice, times written again)

    def append(self, length: int) -> None:
        self.lengths.append(length)
        self.written.append([(length, 0)])

    def merge(self, bounds: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """Merge until there is nothing to do."""
        while True:
            runs, settled = plan_runs(self.lengths, cut_segments(len(self.lengths), bounds), MAX)
            assert not any(begin < settled for begin, _ in runs)
            if not runs:
                return
            for begin, end in reversed(runs):
                assert end - begin >= 2
                assert not any(begin < bound < end for bound in bounds)
                assert sum(self.lengths[begin:end]) <= MAX
                self.lengths[begin:end] = [sum(self.lengths[begin:end])]
                self.written[begin:end] = [
                    [(size, times + 1) for each in self.written[begin:end] for size, times in each]
                ]
                bounds = {
                    bound if bound <= begin else bound - (end - begin - 1) for bound in bounds
                }

    def amplification(self) -> float:
        sizes = [(size, times) for each in self.written for size, times in each]
        return sum(size * times for size, times in sizes) / sum(size for size, _ in sizes)


def entries_max(total: int) -> int:
    """Closed lines: two neighbours do not fit into one slice."""
    return OPEN_ENTRIES_MAX + (LINE_ENTRIES_MIN - 1) * (2 * total // MAX + 1)


def test_equal_slices_are_written_again_two_or_three_times() -> None:
    history = History()
    for _ in range(20_000):
        history.append(MAX // 256)  # as 16 KiB to 4 MiB
        history.merge()
        assert len(history.lengths) <= entries_max(sum(history.lengths))
    assert len(history.lengths) < OPEN_ENTRIES_MAX + 2 * 20_000 // 256
    assert 1.8 < history.amplification() < 3
    assert max(times for each in history.written for _, times in each) <= 3


@given(
    st.lists(
        st.one_of(st.integers(1, 5), st.integers(1, 300), st.integers(1, 2 * MAX)), max_size=400
    )
)
def test_any_slices_leave_a_short_index(lengths: list[int]) -> None:
    history = History()
    for length in lengths:
        history.append(length)
        history.merge()
    assert len(history.lengths) <= entries_max(sum(history.lengths))
    assert sum(history.lengths) == sum(lengths)
    assert max((times for each in history.written for _, times in each), default=0) <= 8


@given(st.lists(st.integers(1, 300), max_size=300), st.sets(st.integers(0, 300), max_size=4))
def test_bounds_are_kept(lengths: list[int], bounds: set[int]) -> None:
    history = History()
    for length in lengths:
        history.append(length)
    history.merge(bounds)
    assert len(history.lengths) <= entries_max(sum(lengths)) + OPEN_ENTRIES_MAX * len(bounds)


def test_what_rests_is_left_out() -> None:
    assert cut_segments(10, [3, 3, 12, -1], [(5, 7)]) == [(0, 3), (3, 5), (7, 10)]
    assert cut_segments(10, [], [(-3, 7)]) == [(7, 10)]
    assert cut_segments(10, [], [(0, 10)]) == []
    assert cut_segments(0, []) == []


def test_nearly_full_slices_are_left_alone() -> None:
    assert plan_runs([MAX - 1] * 100, [(0, 100)], MAX) == ([], 99)
    assert plan_runs([MAX // 3] * 99, [(0, 99)], MAX) == ([], 96)
    assert plan_runs([1] * (FAN_IN - 1), [(0, FAN_IN - 1)], MAX) == ([], 0)
    assert plan_runs([1] * FAN_IN, [(0, FAN_IN)], MAX) == ([(0, FAN_IN)], 0)


def test_a_large_slice_is_not_written_again_for_small_ones() -> None:
    runs, _ = plan_runs([1000] + [1] * 40, [(0, 41)], MAX)
    assert runs == [(1, 41)]
    runs, _ = plan_runs([1000] + [1] * OPEN_ENTRIES_MAX + [900], [(0, OPEN_ENTRIES_MAX + 2)], MAX)
    assert runs == [(0, OPEN_ENTRIES_MAX + 2)], "too many: whatever it costs"


def test_packs_are_filled_with_neighbours() -> None:
    settings = MergeSettings(pack_bytes_max=100)
    runs = [MergeRun(group, uid, 0, 9, 20, 40) for uid in (3, 1, 2) for group in (2, 1)]
    packs = plan_packs(runs, settings)
    assert [[(run.group, run.uid) for run in pack] for pack in packs] == [
        [(1, 1), (1, 2)],
        [(1, 3), (2, 1)],
        [(2, 2), (2, 3)],
    ]
    assert [
        len(pack)
        for pack in plan_packs(
            [MergeRun(1, uid, 0, 9, 2, 0) for uid in range(SLICES_MAX + 1)], settings
        )
    ] == [SLICES_MAX, 1]
    assert [
        len(pack)
        for pack in plan_packs([MergeRun(1, uid, 0, 9, 2000, 1) for uid in range(3)], settings)
    ] == [2, 1]
