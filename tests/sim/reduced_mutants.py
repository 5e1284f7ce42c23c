"""Defects of the snapshots of reducers; sim/mutants.py tries them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function
from sim.knobs import Knobs

from polynya.stream.features.marks import rules

REDUCED: dict[str, tuple[Any, str, Any]] = {
    "another state of the same records is taken": (
        rules,
        "_judge_marks",
        edited_function(
            rules._judge_marks, "any(mark.origin == command.origin for mark in at)", "False"
        ),
    ),
    "a body is trimmed that a snapshot names": (
        rules,
        "unneeded_of",
        lambda own, marks, now_ms: (own.next_record, own.next_byte),
    ),
    "a trim to the snapshots passes them": (
        rules,
        "_trim_to_marks",
        edited_function(
            rules._trim_to_marks,
            "(own[0].record, own[0].byte)",
            "(stream.next_record, stream.next_byte)",
        ),
    ),
}
REDUCED_CAUGHT_BY = {
    "another state of the same records is taken": ("reduced", Knobs.draw(3), 12),
    "a body is trimmed that a snapshot names": ("reduced", Knobs.draw(2), 12),
    "a trim to the snapshots passes them": ("reduced", Knobs.draw(4), 12),
}
