"""Rejected entries produce rate-limited log lines and no traceback."""

from __future__ import annotations

import pytest

from polynya.base.errors import InvalidMessage
from polynya.engine.entry_validation import EntryValidator


def test_a_message_that_was_held_back_and_makes_no_sense_is_said_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    doubts = EntryValidator()
    for at in range(100):
        doubts.dropped(
            3,
            InvalidMessage(f"a message for member {at} of group 3 came to member 2 of group 3"),
            1000 + at,
        )
    doubts.dropped(2, InvalidMessage("another"), 2000)
    doubts.dropped(3, InvalidMessage("again"), 70_000)
    assert [(record.node, record.times) for record in caplog.records] == [(3, 1), (2, 1), (3, 100)]  # type: ignore[attr-defined]
    assert not any(record.exc_info for record in caplog.records)
