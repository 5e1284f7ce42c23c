"""Defects in slices of which entries name a part, or in which records are missing; sim/mutants.py
tries them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function

from polynya.cold.rewriting import merged_slices
from polynya.local.reads import pieces
from polynya.wire.slices import Slice

SLICE: dict[str, tuple[Any, str, Any]] = {
    "a part begins one batch late": (
        Slice,
        "part",
        edited_function(
            Slice.part,
            "self._cut_part(first, first + count)",
            "self._cut_part(min(first + 1, self.batches - count), min(first + 1, self.batches - count) + count)",
        ),
    ),
    "a part is cached without its place": (
        Slice,
        "part",
        edited_function(
            Slice.part,
            "self._parts.get((first, count))",
            "next(iter(self._parts.values()), None)",
        ),
    ),
    "a merge forgets what is missing between slices": (
        merged_slices,
        "_with_gaps",
        lambda entries, parsed: list(parsed),
    ),
    "records of a diskless stream are sent by the replica": (
        pieces,
        "_stays",
        lambda stream: False,
    ),
}
_PARTS = "cold/test_parts_of_slices.py::"
SLICE_STORIES = {
    "a part begins one batch late": f"{_PARTS}test_times_are_looked_up_in_the_part_alone",
    "a part is cached without its place": (
        f"{_PARTS}test_parts_of_a_slice_share_one_fetch_and_each_has_its_own_batches"
    ),
    "a merge forgets what is missing between slices": (
        f"{_PARTS}test_a_slice_of_a_wider_span_than_its_entry_is_damage"
    ),
    "records of a diskless stream are sent by the replica": (
        "routing/test_diskless_reads.py::test_the_core_that_reads_fetches_the_slices_itself"
    ),
}
