"""Defects in commits of packs and in changes of the profile; sim/mutants.py tries them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function
from sim.knobs import Knobs

from polynya.routing.forwarding import Forwarding
from polynya.stream.features.appends import rules as writes
from polynya.stream.features.profiles import commits
from polynya.stream.features.profiles import rules as profiles

COMMIT: dict[str, tuple[Any, str, Any]] = {
    "a repeated commit gets new offsets": (
        commits,
        "_judge_writer",
        edited_function(
            commits._judge_writer,
            "command.sequence > known.sequence",
            "command.sequence >= known.sequence",
        ),
    ),
    "a commit with a lower number is judged again": (
        commits,
        "_judge_writer",
        edited_function(
            commits._judge_writer, "return Reply(Code.FENCED, detail=known.sequence)", "return None"
        ),
    ),
    "a commit names a pack that the group has released": (
        commits,
        "_judge_pack",
        edited_function(commits._judge_pack, "command.pack in machine.packs.released", "False"),
    ),
    "a commit is taken however late it is": (
        commits,
        "_judge_pack",
        edited_function(
            commits._judge_pack,
            "abs(machine.counters.log_ms - command.intent_ms) > WRITE_MS_MAX",
            "False",
        ),
    ),
    "producers are not judged by the commit": (
        commits._Runs,
        "_judge",
        edited_function(
            commits._Runs._judge,
            "structs.replace(packed.command, now_ms=self._command.now_ms)",
            "structs.replace(packed.command, now_ms=self._command.now_ms, producer=None)",
        ),
    ),
    "an entry goes on over a refused batch": (
        commits._Runs,
        "_judge",
        edited_function(commits._Runs._judge, "accepted == self._accepted", "False"),
    ),
    "the times of an index decrease": (
        commits._Runs,
        "_publish",
        edited_function(
            commits._Runs._publish, "max(run.time_ms_max, largest_ms)", "run.time_ms_max"
        ),
    ),
    "a commit does not wait for hot batches": (
        commits,
        "judge_packed",
        edited_function(
            profiles.judge_packed,
            "stream.hot or profile_epoch_of(stream).changing_since_ms",
            "profile_epoch_of(stream).changing_since_ms",
        ),
    ),
    "a profile_epoch is sealed with hot batches": (
        profiles,
        "_judge_seal",
        edited_function(profiles._judge_seal, "Code.NOT_YET if stream.hot else Code.OK", "Code.OK"),
    ),
    "appends go on while the profile changes": (
        writes,
        "judge_logged",
        edited_function(
            profiles.judge_logged, "return tail_reply(Code.NOT_YET, stream)", "return None"
        ),
    ),
    "a commit to a replicated stream is taken": (
        commits,
        "judge_packed",
        edited_function(
            profiles.judge_packed, "stream.uid not in machine.diskless.streams", "False"
        ),
    ),
}
COMMIT["an append that waited for another way keeps its old time"] = (
    Forwarding,
    "_propose_waited",
    edited_function(Forwarding._propose_waited, "self._local.stamped(command)", "command"),
)
COMMIT_CAUGHT_BY = {
    "an append that waited for another way keeps its old time": (
        "swarm",
        Knobs(2, {}, {}, {"diskless": 1, "switches": 0.3}),
        15,
    )
}
_STORY = "stream/test_stories.py::test_story[{}]"
_JUDGED = _STORY.format("a_pack_is_judged_append_by_append")
_ONCE = _STORY.format("a_commit_is_answered_once")
_CHANGES = _STORY.format("a_profile_changes_when_nothing_is_hot")
COMMIT_STORIES = {
    "a repeated commit gets new offsets": (
        "stream/test_diskless_interleavings.py::"
        "test_each_append_is_there_once_whatever_the_order[into]"
    ),
    "a commit with a lower number is judged again": _ONCE,
    "a commit names a pack that the group has released": _ONCE,
    "a commit is taken however late it is": _ONCE,
    "producers are not judged by the commit": _JUDGED,
    "an entry goes on over a refused batch": _JUDGED,
    "the times of an index decrease": (
        "stream/test_commit_slices.py::test_append_times_along_an_index_never_decrease"
    ),
    "a commit does not wait for hot batches": _CHANGES,
    "a profile_epoch is sealed with hot batches": _CHANGES,
    "appends go on while the profile changes": _CHANGES,
    "a commit to a replicated stream is taken": _JUDGED,
}
