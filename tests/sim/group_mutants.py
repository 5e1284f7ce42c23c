"""Defects in consumer groups; sim/mutants.py tries them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function
from sim.knobs import Knobs

from polynya.service.consumer_groups import coordinator
from polynya.stream.features.consumer_groups import rules

GROUP: dict[str, tuple[Any, str, Any]] = {
    "a commit is acknowledged before it is in the log": (
        coordinator,
        "_logged",
        edited_function(coordinator._logged, "return await future", "return Reply(Code.OK)"),
    ),
    "the generation of a commit is not judged": (
        rules,
        "judge_member",
        edited_function(rules.judge_member, "command.generation != group.generation", "False"),
    ),
    "the member of a commit is not judged": (
        rules,
        "judge_member",
        edited_function(rules.judge_member, "member.id == command.member", "member.id"),
    ),
}
_STORY = "stream/test_consumer_groups.py::test_a_commit_is_judged_by_the_logged_generation"
GROUP_STORIES = dict.fromkeys(
    ("the generation of a commit is not judged", "the member of a commit is not judged"), _STORY
)
GROUP_CAUGHT_BY = dict.fromkeys(GROUP.keys() - GROUP_STORIES.keys(), ("groups", Knobs(1)))
