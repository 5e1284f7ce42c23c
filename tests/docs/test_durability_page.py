"""The arithmetic of docs/durability.md is computed again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "durability.md").read_text()
DISK, REPAIR = 0.04, 1 / (24 * 365)  # losses of a disk a year; years until there is a new copy
YEAR_SECONDS = 365.25 * 86_400
RATES = (
    DISK,
    3 * DISK * 2 * DISK * REPAIR,
    5 * DISK * 4 * DISK * REPAIR * 3 * DISK * REPAIR,
)
SECONDS = {"5 minutes": 300, "1 minute": 60, "10 seconds": 10}
_SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def number(text: str) -> float:
    factor, _, exponent = text.partition("·10")
    return float(factor) * 10 ** int(exponent.translate(_SUPERSCRIPTS))


@pytest.mark.parametrize("flush", SECONDS)
def test_each_share_is_rate_times_flush(flush: str) -> None:
    found = re.search(rf"^\| {flush} \| (.*) \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
    assert found is not None
    for text, rate in zip(found.groups(), RATES, strict=True):
        assert number(text) == pytest.approx(rate * SECONDS[flush] / YEAR_SECONDS, rel=0.05)


def test_the_rates_are_those_of_the_formula() -> None:
    assert "1.1 in 1,000,000 (5.9 nines)" in PAGE and RATES[1] == pytest.approx(1.1e-6, rel=0.05)
    assert "5 in 10¹¹ (10.3 nines)" in PAGE and RATES[2] == pytest.approx(5e-11, rel=0.05)
