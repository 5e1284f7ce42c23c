"""A node that does not know the level at which the cluster works is not let in, and both are told
why."""

import pytest

from polynya.transport.handshake import Hello, judge


@pytest.mark.parametrize(
    ("level", "works_at", "reason"),
    [
        (3, 2, ""),
        (2, 0, ""),
        (5, 3, ""),
        (
            1,
            1,
            "its release (9.8) supports log levels up to 1, the cluster works at level 2: start "
            "it with release 9.9 or newer",
        ),
        (0, 0, "its release (9.8) supports log levels up to 1"),
        (
            5,
            4,
            "the cluster works at level 4, release 9.9 of this node supports log levels up to 3: "
            "start this node with release 9.8 or",
        ),
    ],
)
def test_who_knows_the_level_may_come_in(level, works_at, reason):
    own = Hello(1, 1, "c", 1, 4, 1, 0, 1, "s", "9.9", 3, 2)
    found = judge(
        own,
        Hello(1, 1, "c", 1, 4, 2, 0, 1, "t", "9.8", level, works_at),
        expected=2,
        certified=None,
    )
    assert found.startswith(reason) if reason else found == ""
