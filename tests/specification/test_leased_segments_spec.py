"""TLC checks the specification of leased segments: it holds, and each fence that is removed is
missed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from missing import missing, needed_program
from spark_jars import tlc_jar

TLA = Path(__file__).parents[2] / "docs" / "design" / "tla"
ALL = ("term", "vote", "quorum", "sync", "claim", "full", "cas", "applied", "lease")
# a JVM for one small model: its compiler would cost more than the search
JAVA = ("-Xmx600m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
HOLDS, VIOLATED = 0, 12  # exit codes of TLC
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def check(folder: Path, model: str, without: str = "") -> tuple[int, str]:
    """Return TLC's exit code and output for a model, perhaps with one fence less."""
    jar, why = tlc_jar()
    if why:
        missing(why)
    config = (TLA / f"{model}.cfg").read_text()
    if without:
        config, count = re.subn(f', "{without}"|"{without}", ', "", config)
        assert count == 1
    (folder / f"{model}.cfg").write_text(config)
    (folder / "LeasedSegments.tla").write_text((TLA / "LeasedSegments.tla").read_text())
    done = subprocess.run(
        [
            needed_program("java"),
            *JAVA,
            "-cp",
            jar,
            "tlc2.TLC",
            "-workers",
            "1",
            "-metadir",
            "states",
            "-config",
            f"{model}.cfg",
            "LeasedSegments.tla",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("model", ["Rollovers", "Crashes"])
def test_the_specification_holds(tmp_path: Path, model: str) -> None:
    code, told = check(tmp_path, model)
    assert code == HOLDS and "No error has been found" in told, told
    states = re.search(r"([\d,]+) distinct states found, 0 states left", told)
    assert states is not None and int(states[1].replace(",", "")) > 5000, told


@pytest.mark.parametrize(
    ("fence", "model", "invariants"),
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
)
def test_the_removal_of_a_fence_is_caught(
    tmp_path: Path, fence: str, model: str, invariants: set[str]
) -> None:
    code, told = check(tmp_path, model, fence)
    found = re.search(r"Invariant (\w+) is violated", told)
    assert code == VIOLATED and found is not None, told
    assert found[1] in invariants, told


def test_every_fence_is_named() -> None:
    text = (TLA / "LeasedSegments.tla").read_text()
    assert set(re.findall(r'Has\("(\w+)"\)', text)) == set(ALL)
    for model in ("Rollovers", "Crashes"):
        listed = re.search(r"Fences = \{(.*)\}", (TLA / f"{model}.cfg").read_text())
        assert listed is not None and set(re.findall(r"\w+", listed[1])) == set(ALL)
