"""Schemas that would take too long to compare are refused by a count of steps, not by time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polynya.registry.schemas import Candidate, judge

UNION = [{"type": "record", "name": f"U{number}", "fields": []} for number in range(600)]
CASES = {"anyOf": [{"type": "object", "required": [str(number)]} for number in range(200)]}
WIDE = {"properties": {f"p{number}": {"type": "integer"} for number in range(5000)}}


@pytest.mark.parametrize(
    ("type_", "schema", "earlier", "is_refused"),
    [
        ("AVRO", UNION, UNION[::-1], True),
        ("JSON", CASES, {"anyOf": [*CASES["anyOf"][1:], {"required": ["x"]}]}, True),
        ("JSON", WIDE, WIDE, False),
    ],
)
def test_a_comparison_with_too_many_steps_is_refused(
    type_: str, schema: Any, earlier: Any, is_refused: bool
) -> None:
    wanted, before = (Candidate(json.dumps(each), version=1) for each in (schema, earlier))
    found = judge(type_, "BACKWARD", wanted, [before])
    assert ["TOO_COMPLEX" in each for each in found] == ([True] if is_refused else [])
