"""TLC checks the specification of transactions: it holds, and each fence that is removed is
missed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from long_tests import every_nth
from tlc import HOLDS, TLA, VIOLATED
from tlc import check as run_tlc

ALL = ("ended", "equal", "dataless", "prepare", "acks", "logged", "outcomes", "connection")
pytestmark = pytest.mark.timeout(300)


def check(folder: Path, without: str = "") -> tuple[int, str]:
    """Return TLC's exit code and output, perhaps with one fence less."""
    config = (TLA / "Transactions.cfg").read_text()
    if without:
        config, count = re.subn(f', "{without}"|"{without}", ', "", config)
        assert count == 1
    return run_tlc(folder, "Transactions", config)


@pytest.mark.process
def test_the_specification_holds(tmp_path: Path) -> None:
    code, output = check(tmp_path)
    assert code == HOLDS and "No error has been found" in output, output
    states = re.search(r"([\d,]+) distinct states found, 0 states left", output)
    assert states is not None and int(states[1].replace(",", "")) > 3000, output


@pytest.mark.process
@pytest.mark.parametrize(
    ("fence", "invariant"),
    every_nth(
        [
            ("ended", "NoOrphans"),
            ("equal", "NoOrphans"),
            ("dataless", "NoOrphans"),
            ("prepare", "Kept"),
            ("connection", "NothingAbortedIsRead"),
            ("acks", "NoOrphans"),
            ("logged", "Kept"),
            ("outcomes", "Kept"),
        ],
        4,
    ),
)
def test_the_removal_of_a_fence_is_caught(tmp_path: Path, fence: str, invariant: str) -> None:
    code, output = check(tmp_path, fence)
    found = re.search(r"Invariant (\w+) is violated", output)
    assert code == VIOLATED and found is not None, output
    assert found[1] == invariant, output


def test_every_fence_is_named() -> None:
    text = (TLA / "Transactions.tla").read_text()
    assert set(re.findall(r'Has\("(\w+)"\)', text)) == set(ALL)
    listed = re.search(r"Fences = \{(.*)\}", (TLA / "Transactions.cfg").read_text())
    assert listed is not None and set(re.findall(r"\w+", listed[1])) == set(ALL)
