"""Times as users write them."""

from __future__ import annotations

import pytest

from polynya.wire.headers import BadField
from polynya.wire.times import parse_duration_ms, parse_time_ms

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", NOW - 600_000),
        ("15min", NOW - 900_000),
        ("1.5h", NOW - 5_400_000),
        ("250ms", NOW - 250),
        ("7d", NOW - 7 * 86_400_000),
        ("9999999w", 0),
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("2026-11-01T00:00:00Z", 1_793_491_200_000),
        ("2026-11-01T01:00:00+01:00", 1_793_491_200_000),
        ("2026-11-01T01:00:00 01:00", 1_793_491_200_000),
        ("2026-11-01T00:00Z", 1_793_491_200_000),
        ("2026-11-01T01:00+01:00", 1_793_491_200_000),
        ("2026-11-01", 1_793_491_200_000),
        ("2026-11-01T00:00:00.25Z", 1_793_491_200_250),
    ],
)
def test_a_time_is_read(text: str, expected: int) -> None:
    assert parse_time_ms(text, NOW) == expected


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-10m", "10 m", "2026-13-01", "2026-11-01T00", "1" * 16, "10y", "١٠m"]
)
def test_what_is_no_time_is_refused_with_what_it_should_be(text: str) -> None:
    with pytest.raises(BadField, match="such as"):
        parse_time_ms(text, NOW)
    assert parse_duration_ms(text) is None
