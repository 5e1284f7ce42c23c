"""Defects in the coordinator of transactions; sim/mutants.py tries them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function
from sim.knobs import Knobs

from polynya.service.transactions.marker_sender import MarkerSender
from polynya.stream.features.transactions import rules

COORDINATOR: dict[str, tuple[Any, str, Any]] = {
    "a new instance gets the epoch of the one before": (
        rules,
        "_bump",
        edited_function(rules._bump, "transaction.epoch + 1", "transaction.epoch"),
    ),
    "the epoch of an end is not judged": (
        rules,
        "_judge",
        edited_function(
            rules._judge, "(command.producer, command.epoch) == transaction.pair", "True"
        ),
    ),
    "the last group gets no markers": (
        rules,
        "_targets",
        edited_function(rules._targets, "sorted(targets)", "sorted(targets)[:1]"),
    ),
    "a group that does not answer counts as told": (
        MarkerSender,
        "_answered",
        edited_function(
            MarkerSender._answered,
            "isinstance(reply, BaseException) or reply.code in (Code.DISK_FULL, Code.EVICTED)",
            "not isinstance(reply, BaseException) and reply.code == Code.DISK_FULL",
        ),
    ),
}
COORDINATOR_CAUGHT_BY = {
    "a new instance gets the epoch of the one before": ("coordinated", Knobs.draw(1), 8),
    "the epoch of an end is not judged": ("coordinated", Knobs.draw(0), 8),
    "the last group gets no markers": ("coordinated", Knobs.draw(1), 8),
    "a group that does not answer counts as told": ("coordinated", Knobs.draw(1), 8),
}
