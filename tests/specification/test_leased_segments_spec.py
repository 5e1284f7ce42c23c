"""TLC checks the specification of leased segments: it holds, and each fence that is removed is
missed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from long_tests import every_nth, long
from tlc import HOLDS, TLA, VIOLATED
from tlc import check as run_tlc

ALL = ("term", "vote", "quorum", "sync", "claim", "full", "cas", "applied", "lease")
pytestmark = pytest.mark.timeout(300)


def check(folder: Path, model: str, without: str = "", parts: str = "FALSE") -> tuple[int, str]:
    """Return TLC's exit code and output for a model, perhaps with one fence less."""
    config = (TLA / f"{model}.cfg").read_text()
    assert "Parts = FALSE" in config
    config = config.replace("Parts = FALSE", f"Parts = {parts}")
    if without:
        config, count = re.subn(f', "{without}"|"{without}", ', "", config)
        assert count == 1
    return run_tlc(folder, "LeasedSegments", config)


@pytest.mark.process
@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("Crashes", "FALSE"),
        *long([("Rollovers", "FALSE"), ("Rollovers", "TRUE"), ("Crashes", "TRUE")]),
    ],
)
def test_the_specification_holds(tmp_path: Path, model: str, parts: str) -> None:
    code, output = check(tmp_path, model, parts=parts)
    assert code == HOLDS and "No error has been found" in output, output
    states = re.search(r"([\d,]+) distinct states found, 0 states left", output)
    assert states is not None and int(states[1].replace(",", "")) > 5000, output


@pytest.mark.process
@pytest.mark.parametrize(
    ("fence", "model", "invariants"),
    every_nth(
        [
            ("term", "Rollovers", {"ReplicasAgree", "AckedIsCommitted", "OneWriter"}),
            ("vote", "Rollovers", {"ReplicasAgree", "AckedIsCommitted"}),
            ("quorum", "Rollovers", {"AckedIsCommitted"}),
            ("sync", "Crashes", {"ReplicasAgree", "AckedIsCommitted"}),
            ("claim", "Rollovers", {"OneWriter"}),
            ("full", "Rollovers", {"OneWriter"}),
            ("cas", "Rollovers", {"EpochsClosedForAReason"}),
            ("applied", "Rollovers", {"SealedReadsAreFinal"}),
            ("lease", "Rollovers", {"ReadsAreCurrent"}),
        ],
        9,
    ),
)
def test_the_removal_of_a_fence_is_caught(
    tmp_path: Path, fence: str, model: str, invariants: set[str]
) -> None:
    code, output = check(tmp_path, model, fence)
    found = re.search(r"Invariant (\w+) is violated", output)
    assert code == VIOLATED and found is not None, output
    assert found[1] in invariants, output


def test_every_fence_is_named() -> None:
    text = (TLA / "LeasedSegments.tla").read_text()
    assert set(re.findall(r'Has\("(\w+)"\)', text)) == set(ALL)
    for model in ("Rollovers", "Crashes", "SegmentTraces"):
        listed = re.search(r"Fences = \{(.*)\}", (TLA / f"{model}.cfg").read_text())
        assert listed is not None and set(re.findall(r"\w+", listed[1])) == set(ALL)
