"""Repeated refusals do not fill the log."""

from __future__ import annotations

from polynya.base.log_throttle import AGAIN_SECONDS, KEPT_MAX, LogThrottle


def test_the_same_is_said_once_and_again_after_a_minute_with_how_often():
    complaints = LogThrottle()
    assert complaints.due(0.0, "refused", "10.0.0.2", "expired") == 1
    assert [
        complaints.due(second, "refused", "10.0.0.2", "expired")
        for second in (1.0, 2.0, AGAIN_SECONDS - 0.1)
    ] == [0, 0, 0]
    assert complaints.due(3.0, "refused", "10.0.0.3", "expired") == 1, "another one"
    assert complaints.due(AGAIN_SECONDS, "refused", "10.0.0.2", "expired") == 4
    assert complaints.due(AGAIN_SECONDS + 1, "refused", "10.0.0.2", "expired") == 0


def test_what_is_remembered_is_bounded():
    complaints = LogThrottle()
    for number in range(3 * KEPT_MAX):
        assert complaints.due(0.0, str(number)) == 1
    assert len(complaints._said) <= KEPT_MAX
