"""Defects in the deltas of state copies, and in the recovery from these; sim/mutants.py tries them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function
from sim.knobs import Knobs

from polynya.engine.snapshots import encode
from polynya.recovery.from_store import FromStore
from polynya.stream.snapshots import store_recovery
from polynya.stream.state.changes import KeptChanges
from polynya.tiering import copy_deltas


async def _no_delta(states: FromStore, group: int) -> None:
    """Find none."""


COPY_DELTA: dict[str, tuple[Any, str, Any]] = {
    "a delta of a copy lacks the last commits": (
        KeptChanges,
        "take",
        edited_function(
            KeptChanges.take,
            "self.since_copy.changes.include(fresh)",
            "self.since_copy.changes.include(Changes())",
        ),
    ),
    "a delta of a copy lacks the streams of its last pass": (
        encode.encode_since_copy,
        "__code__",
        edited_function(
            encode.encode_since_copy,
            "not left "
            "or len(machine.changes.streams) + len(machine.changes.evicted) <= len(keys) >> 6",
            "len(machine.changes.streams) + len(machine.changes.evicted) <= len(keys) >> 6",
        ).__code__,
    ),
    "deltas of copies are not stored": (copy_deltas, "lacks_commits", lambda machine: False),
    "a copy that was not stored is the base of deltas": (
        KeptChanges,
        "join",
        lambda kept, before: None,
    ),
    "a recovery looks for no deltas of copies": (FromStore, "_delta", _no_delta),
    "a recovery keeps slices that another one replaces": (
        store_recovery,
        "_drop_from",
        lambda image, stream, record: None,
    ),
}
_STORY = "tiering/test_copy_deltas.py::{}"
_RECOVERED = _STORY.format("test_commits_since_the_copy_are_recovered")
COPY_DELTA_STORIES = {
    "a delta of a copy lacks the streams of its last pass": (
        "engine/test_snapshot_capture.py::test_the_changes_since_a_copy_are_all_of_one_moment"
    ),
    "deltas of copies are not stored": _RECOVERED,
    "a copy that was not stored is the base of deltas": _STORY.format(
        "test_a_copy_that_fails_is_no_base"
    ),
    "a recovery looks for no deltas of copies": _RECOVERED,
    "a recovery keeps slices that another one replaces": (
        "stream/test_salvage.py::"
        "test_a_stream_with_forks_goes_on_behind_what_was_put_and_never_named"
    ),
}
COPY_DELTA_CAUGHT_BY = {
    "a delta of a copy lacks the last commits": ("swarm", Knobs(2, {}, {}, {"diskless": 3}), 15)
}
