"""Defects of key compaction that the compacted worlds find (sim/compacted.py); sim/mutants.py tries
them. Those of refused slices are found by the histories of `cold/test_key_compaction_histories.py`."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function
from sim.knobs import Knobs

from polynya.cold.compaction import compactor, planner, work
from polynya.cold.compaction.key_map import KeyMap
from polynya.stream.features.forks.pinned import pinned_until


def _edited(owner: Any, name: str, old: str, new: str) -> tuple[Any, str, Any]:
    return owner, name, edited_function(getattr(owner, name), old, new)


COMPACTION: dict[str, tuple[Any, str, Any]] = {
    "an aborted value wins a key": _edited(
        work.CompactionWork,
        "_put",
        "found.batch_flags[number] & HIDDEN",
        "found.batch_flags[number] & CONTROL",
    ),
    "an undecided batch is taken for a committed one": _edited(
        work, "_parsed", "piece.entry.flags & UNDECIDED", "False"
    ),
    "a pass goes beyond the stable end": _edited(
        planner, "_limit", "not is_stable(stream)", "False"
    ),
    "the newest of a key goes too": _edited(
        work.CompactionWork, "_shortened", "newest(key) > record", "newest(key) >= record"
    ),
    "the first of a key stays in the map": _edited(
        KeyMap, "put", "records[at] = record + 1", "records[at] = records[at] or record + 1"
    ),
    "a pass without room counts as whole": _edited(
        compactor.Compactor, "_map_until_full", "return number", "return made.extent.end"
    ),
    "a pass takes what a table holds": _edited(planner, "_limit", "watch is not None", "False"),
    "a pass drops what a fork still reads": (
        pinned_until,
        "__code__",
        edited_function(pinned_until, "pin.record + (pin.prefix > 0)", "0").__code__,
    ),
    "a batch that cannot be decoded goes": _edited(
        work.CompactionWork,
        "_without_older",
        "raise UnreadableBatch(_named(piece, found, number, fault)) from None",
        'kept = b"" if fault else None',
    ),
    "a pass ends at a batch that cannot be decoded": _edited(
        compactor.Compactor, "_map_until_full", "answer.is_full", "answer.is_full or answer.damage"
    ),
    "a pass of a fork ignores its base": _edited(
        planner, "_begin", "stream.fork is not None", "False"
    ),
}
COMPACTION_CAUGHT_BY = {
    **dict.fromkeys(COMPACTION, ("compacted", Knobs.draw(0), 10)),
    "an aborted value wins a key": ("compacted", Knobs.draw(2), 10),
    "an undecided batch is taken for a committed one": ("compacted", Knobs.draw(4), 10),
    "a pass goes beyond the stable end": ("compacted", Knobs.draw(6), 10),
    "a pass without room counts as whole": ("compacted", Knobs.draw(6), 10),
    "a pass takes what a table holds": ("compacted", Knobs.draw(1), 10),
    "a pass drops what a fork still reads": ("compacted", Knobs.draw(1), 10),
    "a pass of a fork ignores its base": ("compacted", Knobs.draw(4), 10),
}
