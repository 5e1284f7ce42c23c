"""The evidence page says what the numbers say, and names tests that are there."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from chaos.evidence import APPENDIX, PAGE, RESULTS  # noqa: E402  (not a part of the package)
from chaos.found import FOUND  # noqa: E402
from chaos.page import Chaos, Mutant, Results, Simulation, appendix, written  # noqa: E402
from chaos.tiers import TIERS, measured, over, table, tier_of, total  # noqa: E402


def test_the_page_is_made_of_the_numbers_that_are_kept() -> None:
    results = msgspec.json.decode(RESULTS.read_bytes(), type=Results)
    assert PAGE.read_text() == written(results), "run python -m chaos.evidence --write"
    assert APPENDIX.read_text() == appendix(results), "run python -m chaos.evidence --write"


@pytest.mark.parametrize("found", FOUND, ids=lambda found: found.what[:40])
def test_what_was_found_has_a_test(found: object) -> None:
    missing = [path for path in found.test.split(", ") if not (ROOT / path).exists()]  # type: ignore[attr-defined]
    assert not missing


def test_what_is_wrong_is_not_hidden() -> None:
    def chaos(*wrong: str) -> Chaos:
        counts = {"acknowledged": 1, "refused": 0, "unknown": 0, "reads": 0, "tailed": 0}
        times = {"seconds": 1.0, "longest_pause": 0.0, "slowest_recovery": 0.0}
        return Chaos(
            command="c",
            network="loopback",
            episodes=1,
            faults={"kill all": 1},
            skipped={"x": "no root"},
            wrong=list(wrong),
            **counts,
            **times,
        )  # type: ignore[arg-type]

    fine = Results(
        date="2026-01-01",
        chaos=[chaos()],
        mutants=[Mutant("raft", "votes twice", "seed 1")],
        simulation=Simulation(seeds=5),
    )
    assert (
        not fine.wrong
        and "| none |" in appendix(fine)
        and "x: no root" in appendix(fine)
        and "none failed" in appendix(fine)
    )
    assert (
        "no problem found" in written(fine)
        and "| 1 caught |" in written(fine)
        and "0 failed" in written(fine)
    )
    for results, briefly, told in (
        (Results(date="d", chaos=[chaos("lost: w.1.0")]), "lost: w.1.0", "| 1 |"),
        (
            Results(date="d", mutants=[Mutant("raft", "votes twice", "")]),
            "| 0 caught |",
            "**survives**",
        ),
        (Results(date="d", simulation=Simulation(seeds=5, failed=[7])), "failed: 7", "failed: 7"),
    ):
        assert results.wrong and briefly in written(results) and told in appendix(results)


REPORT = """<testsuites><testsuite name="pytest" tests="4" time="120.0" timestamp="2026-11-22T05:00:00">
<testcase classname="tests.raft.test_raft_mutants" name="a" time="60.0"/>
<testcase classname="tests.cli.test_demo" name="b" time="1.0"><properties><property name="mark" value="spark"/></properties></testcase>
<testcase classname="tests.front.test_http.TestThat" name="c" time="19.0"/>
<testcase classname="tests.e2e.test_e2e_kill" name="d[x.y]" time="160.0"><properties><property name="mark" value="process"/></properties></testcase>
</testsuite></testsuites>"""


def test_the_time_of_a_run_is_shared_out_to_tiers_by_the_time_of_their_tests(
    tmp_path: Path,
) -> None:
    (tmp_path / "junit.xml").write_text(REPORT)
    run = measured(tmp_path / "junit.xml", "2 cores")
    found = {
        took.what.partition(" ")[0].strip(":,"): (took.tests, round(run.minutes(took), 3))
        for took in run.tiers
        if took.tests
    }
    assert found == {
        "mutations": (1, 0.5),
        "Spark": (1, 0.008),
        "unit": (1, 0.158),
        "processes": (1, 1.333),
    }
    assert (
        over(run) == []
        and "| 4 | | 10 | 2.0 |" in table(run)
        and "2026-11-22, 2 cores" in table(run)
    )
    run.seconds *= 10
    assert over(run) == [
        tier.what for tier in TIERS if tier.what.startswith(("mutations", "processes", "unit"))
    ]
    assert "**13.3**" in table(run)
    (tmp_path / "junit.xml").write_text(REPORT.replace("tests.raft", "raft"))
    with pytest.raises(ValueError, match="in the root"):
        measured(tmp_path / "junit.xml", "")


def test_every_test_file_has_a_tier_and_every_tier_has_tests() -> None:
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    held = {tier_of(path, marks).what for path in files for marks in ([], ["spark"], ["process"])}
    assert held == {tier.what for tier in TIERS} and total() <= 10
