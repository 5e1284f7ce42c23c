"""Defects that only schedules and clients of the newest worlds reveal: leased streams, changes of
the profile, consumer groups (sim/leased.py, sim/switched.py, sim/groups.py); sim/mutants.py tries
them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function
from sim.knobs import Knobs

from polynya.cold.collector import Collector
from polynya.stream.features.consumer_groups import rules
from polynya.stream.features.consumer_groups.modern import ModernGroup
from polynya.stream.features.profiles import rules as profiles
from polynya.stream.features.segments import rules as segments

WORLD: dict[str, tuple[Any, str, Any]] = {
    "a rollover of an older epoch is taken": (
        segments.apply_rollover,
        "__code__",
        edited_function(
            segments.apply_rollover,
            "segments.epoch == command.epoch",
            "segments.epoch >= command.epoch",
        ).__code__,
    ),
    "a change to diskless does not wait for hot records": (
        profiles.apply_set_profile,
        "__code__",
        edited_function(
            profiles.apply_set_profile,
            "command.profile == Profile.REPLICATED or stream.hot is None",
            "True",
        ).__code__,
    ),
    "a commit of an older generation is taken": (
        rules,
        "judge_member",
        edited_function(
            rules.judge_member,
            "command.generation != group.generation",
            "command.generation > group.generation",
        ),
    ),
    "orphans are swept without a grace": (
        Collector,
        "_find_packs",
        edited_function(Collector._find_packs, "info.modified_ms + grace_ms <= now_ms", "True"),
    ),
    "a partition is given before it is revoked": (
        ModernGroup,
        "_advance",
        edited_function(
            ModernGroup._advance,
            "self._owners.setdefault(partition, member.id) == member.id",
            "self._owners.update({partition: member.id}) is None",
        ),
    ),
    "a member is told what is not yet in the log": (
        ModernGroup,
        "_log",
        edited_function(
            ModernGroup._log,
            "self._effects.append(Log(put, answers))",
            "self._effects.extend([*answers, Log(put, [])])",
        ),
    ),
}
WORLD_CAUGHT_BY = {  # some are of other lists, and caught by a story as well
    "a rollover of an older epoch is taken": ("leased", Knobs.draw(2)),
    "a change to diskless does not wait for hot records": ("switched", Knobs.draw(3), 5),
    "a commit of an older generation is taken": ("groups", Knobs.draw(5), 5),
    "a commit is taken however late it is": ("switched", Knobs.draw(17), 5),
    "an entry goes on over a refused batch": ("switched", Knobs.draw(2), 5),
    "orphans are swept without a grace": ("switched", Knobs.draw(4), 5),
    "a partition is given before it is revoked": ("members", Knobs.draw(0), 5),
    "a member is told what is not yet in the log": ("members", Knobs.draw(2), 25),
}
