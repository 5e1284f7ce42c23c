"""Random histories of key compaction keep their rules, and defects break them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import test_key_compaction as stories
import test_key_compaction_limits as limits
from sim.code_edits import edited_function
from worlds.cold import play
from worlds.compaction_history import History

from polynya.cold.compaction import compactor, planner, work
from polynya.cold.rewriting import merger
from polynya.stream.command import RULES
from polynya.stream.features.compaction import rules as compaction_rules
from polynya.stream.features.compaction.commands import NoteCompaction
from polynya.stream.features.packs import rules as pack_rules
from polynya.stream.parts import ABORTED

STEPS = 120
SEEDS = 12  # of which one at least finds each defect


@pytest.mark.parametrize("seed", range(6))
def test_a_random_history_keeps_its_rules(seed: int) -> None:
    play(lambda: History(seed).play(STEPS))


def edit(owner: Any, name: str, old: str, new: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, edited_function(getattr(owner, name), old, new))


def both(*edits: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    def plant(patch: pytest.MonkeyPatch) -> None:
        for each in edits:
            each(patch)

    return plant


def edit_rule(old: str, new: str) -> Callable[[pytest.MonkeyPatch], None]:
    made = edited_function(compaction_rules.apply_note_compaction, old, new)
    return lambda patch: patch.setitem(RULES, NoteCompaction, made)


def histories() -> None:
    for seed in range(SEEDS):
        play(lambda: History(seed).play(STEPS))  # noqa: B023 (it is played at once)


HELD = "is_shorter and _is_held(stream, cold.record, cold.record + cold.records)"
DEFECTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]] = {
    "`cleaned` is raised after a refused slice": (
        edit(compactor.Compactor, "_complete", "not result.is_complete", "False"),
        lambda: limits.test_a_slice_that_is_needed_after_the_plan_is_refused("claim"),
    ),
    "`cleaned` is raised under a pin": (
        both(
            edit(
                compactor.Compactor,
                "_complete",
                "made.extent.below or result.damage",
                "result.damage",
            ),
            edit_rule("pinned_until(stream) > first", "False"),
        ),
        limits.test_a_pin_keeps_its_records_and_all_tombstones_behind_them,
    ),
    "a tombstone is dropped above a pin": (
        edit(
            compactor,
            "tombstones_until",
            "began.tombstones if made.drops and began.horizon_ms and now_ms >= began.horizon_ms else 0",
            "made.limit",
        ),
        limits.test_a_pin_keeps_its_records_and_all_tombstones_behind_them,
    ),
    "a tombstone is dropped before its time": (
        edit(compactor, "tombstones_until", "now_ms >= began.horizon_ms", "True"),
        stories.test_a_tombstone_stays_while_another_pass_runs,
    ),
    "an abort marker is dropped with its data": (
        edit(
            compactor.Compactor,
            "_rewrite",
            "made.began.cleaned if made.drops else 0",
            "made.limit",
        ),
        limits.test_markers_have_no_keys,
    ),
    "the last batch is removed": (
        edit(
            compactor.Compactor,
            "_rewrite",
            "made.limit if count == made.extent.end else NEVER",
            "NEVER",
        ),
        limits.test_a_marker_at_the_end_stays,
    ),
    "control batches are keyed": (
        both(
            edit(
                work.CompactionWork,
                "_put",
                "found.batch_flags[number] & HIDDEN",
                "found.batch_flags[number] & ABORTED",
            ),
            edit(work.CompactionWork, "_shortened", "flags & HIDDEN", "flags & ABORTED"),
            lambda patch: patch.setattr(work, "ABORTED", ABORTED, raising=False),
        ),
        limits.test_markers_have_no_keys,
    ),
    "a merge ignores a pass": (
        edit(merger.Merger, "_merge", "run.uid not in self.in_hand.uids", "True"),
        limits.test_a_merge_that_was_read_before_a_pass_does_not_bring_values_back,
    ),
    "an aborted value wins a key": (
        edit(
            work.CompactionWork,
            "_put",
            "found.batch_flags[number] & HIDDEN",
            "found.batch_flags[number] & CONTROL",
        ),
        histories,
    ),
    "the newest of a key is dropped too": (
        edit(work.CompactionWork, "_shortened", "newest(key) > record", "newest(key) >= record"),
        histories,
    ),
    "a pinned slice is rewritten": (
        both(
            edit(planner, "_begin", "pinned > begin", "False"),
            edit(pack_rules, "_replace", HELD, "False"),
        ),
        histories,
    ),
    "a slice that was pinned after the plan is taken": (
        edit(pack_rules, "_replace", HELD, "False"),
        histories,
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, story = DEFECTS[defect]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        story()
