"""Commands that turn key compaction of a stream on and complete its passes: tags 19 and 39."""

from __future__ import annotations

from polynya.base.levels import COMPACTION_LEVEL
from polynya.stream.command import Command, command, its_name
from polynya.stream.command_validation import COUNTER, TIME, WIDE


@command(since=COMPACTION_LEVEL, bounds={"uid": WIDE, "now_ms": TIME}, names=its_name)
class SetCompaction(Command, tag=19, frozen=True, gc=False):
    """Turn the key compaction of a stream on or off. `uid`: the expected incarnation; 0: any.
    Level 4."""

    name: str
    is_wanted: bool
    now_ms: int
    uid: int = 0


@command(
    since=COMPACTION_LEVEL,
    bounds={
        "uid": WIDE,
        "cleaned": COUNTER,
        "horizon_ms": TIME,
        "generation": COUNTER,
        "tombstones": COUNTER,
        "term": WIDE,
        "now_ms": TIME,
    },
)
class NoteCompaction(Command, tag=39, frozen=True, gc=False):
    """Complete a pass of key compaction, all of whose slices are in the index: no key has two records
    before `cleaned`. Level 4.

    `generation`: that with which the pass began. `tombstones`: those before this record go in a pass
    from `horizon_ms` on; 0: none wait. `term` is the term of the plan."""

    uid: int
    cleaned: int
    horizon_ms: int
    generation: int
    tombstones: int
    term: int
    now_ms: int
