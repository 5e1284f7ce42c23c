"""Defects of appends on a condition; sim/mutants.py tries them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function

from polynya.stream.features.appends import conditions

CONDITIONS: dict[str, tuple[Any, str, Any]] = {
    "a condition is compared with the end in bytes": (
        conditions,
        "is_met",
        lambda stream, record: record == stream.next_byte,
    ),
    "a condition is met beside an open transaction": (
        conditions,
        "is_met",
        lambda stream, record: record == stream.next_record,
    ),
    "a condition is judged before the producer": (
        conditions.apply_append_if,
        "__code__",
        edited_function(
            conditions.apply_append_if,
            "return reply or refusal_of_condition(stream, command.record)",
            "return refusal_of_condition(stream, command.record)",
        ).__code__,
    ),
}
CONDITION_STORIES = {
    "a condition is compared with the end in bytes": (
        "front/test_conditional_appends.py::test_the_order_of_the_checks"
    ),
    "a condition is met beside an open transaction": (
        "front/test_two_ends.py::test_a_condition_at_an_open_transaction_waits_for_its_end"
    ),
    "a condition is judged before the producer": (
        "front/test_conditional_appends.py::"
        "test_a_producers_repeat_succeeds_although_the_tail_has_moved"
    ),
}
