"""Defects of appends to several groups; sim/mutants.py tries them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function
from sim.knobs import Knobs

from polynya.service.transactions import appends
from polynya.stream.features.appends import undecided
from polynya.stream.features.markers import rules as markers

TOGETHER: dict[str, tuple[Any, str, Any]] = {
    "the refusal of one group is passed over": (
        appends._Attempt,
        "run",
        edited_function(
            appends._Attempt.run, "reply.code == Code.OK and self._number", "self._number"
        ),
    ),
    "an aborted append is seen": (
        markers,
        "end_append",
        edited_function(undecided.end_append, "0 if commit else ABORTED", "0"),
    ),
    "an aborted append keeps its sequence": (
        undecided,
        "_forget_sequence",
        lambda stream, batch: None,
    ),
    "after an unknown outcome all is said to be applied": (
        appends._Attempt,
        "_decide",
        edited_function(
            appends._Attempt._decide,
            "None if reply.detail is None else bool(reply.detail[0])",
            "True",
        ),
    ),
}
TOGETHER_CAUGHT_BY = {
    **dict.fromkeys(TOGETHER, ("together", Knobs.draw(0), 8)),
    "after an unknown outcome all is said to be applied": ("together", Knobs.draw(1), 8),
}
