"""The evidence page says what the numbers say, and names tests that are there."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import msgspec
import pytest
from sim.run import KINDS as EPISODES
from tiers.processes import EXPRESSION

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from chaos import evidence, parts  # noqa: E402  (not a part of the package)
from chaos.evidence import APPENDIX, PAGE, RESULTS, is_current, run_parts  # noqa: E402
from chaos.found import FOUND  # noqa: E402
from chaos.page import FEATURES, appendix, written  # noqa: E402
from chaos.quiet import Conditions  # noqa: E402
from chaos.results import (  # noqa: E402
    PARTS,
    Again,
    Chaos,
    Fuzzed,
    Mutant,
    Results,
    Simulation,
    Upgraded,
    When,
)
from chaos.tiers import TIERS, TOGETHER_MINUTES, measured, over, table  # noqa: E402

RUN = When(date="2026-01-01", command="c", commit="c")


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
        runs=dict.fromkeys(PARTS, RUN),
        chaos=[chaos()],
        mutants=[Mutant("raft", "votes twice", "seed 1")],
        simulation=Simulation(seeds=5),
        worlds={"kafka": Simulation(seeds=3, acknowledged=40)},
        fuzz=[Fuzzed(name="http", seed=1, seconds=2.0, counts={"requests": 30})],
        upgrades=[Upgraded(revision="abc^", levels=(2, 3), steps=["node 3 goes back"])],
        again=[Again(kind="swarm", seed=9, commit="c", state="fixed", repair="d Fix", passes=True)],
    )
    assert (
        not fine.wrong
        and "| none |" in appendix(fine)
        and "x: no root" in appendix(fine)
        and "none failed" in appendix(fine)
    )
    page = written(fine)
    for line in (
        "| mutations | 1 planted defects |  | 1 caught |",
        "| fuzzing, http | seed 1, 30 cases in 2 s |  | no problem found |",
        "| upgrade and way back | 1 steps from abc^ (level 2 to 3) in 0 s | 0 | no problem found |",
        "| Kafka producers and consumers | `kafka` | 3 seeds, 0.0 simulated hours | 40 | 0 failed |",
        "| swarm 9 | c | d Fix | passes |",
    ):
        assert line in page
    for more, briefly, detail in (
        ({"chaos": [chaos("lost: w.1.0")]}, "lost: w.1.0", "| 1 |"),
        ({"mutants": [Mutant("raft", "votes twice", "")]}, "| 0 caught |", "**survives**"),
        ({"simulation": Simulation(failed=[7])}, "failed: swarm 7**", "failed: swarm 7**"),
        ({"worlds": {"kafka": Simulation(failed=[7])}}, "failed: kafka 7", "failed: kafka 7"),
        ({"fuzz": [Fuzzed(name="http", seed=1, seconds=1.0, wrong=["a 500"])]}, "a 500", "a 500"),
        ({"upgrades": [Upgraded(revision="a", wrong=["lost"])]}, "| lost |", "Problems: lost"),
    ):
        results = msgspec.structs.replace(fine, **more)
        assert results.wrong and briefly in written(results) and detail in appendix(results)


def test_a_seed_that_failed_is_named_with_its_repair() -> None:
    seed = Again(kind="kafka", seed=7, commit="c", state="fixed", repair="d Fix", passes=True)
    results = Results(
        runs=dict.fromkeys(PARTS, RUN), worlds={"kafka": Simulation(failed=[7])}, again=[seed]
    )
    assert not results.wrong and "failed: kafka 7 (repaired, passes now)" in written(results)
    for unrepaired, shown in (
        (msgspec.structs.replace(seed, passes=False), "| d Fix | **fails** |"),
        (msgspec.structs.replace(seed, state="open", passes=None), "| **open** | not run again |"),
        (msgspec.structs.replace(seed, kind="swarm"), "failed: kafka 7**"),
    ):
        results.again = [unrepaired]
        assert results.wrong and shown in written(results)


def test_a_busy_machine_is_named() -> None:
    busy = msgspec.structs.replace(RUN, conditions=Conditions(cores=2, load=4.0, others=40.0))
    page = written(Results(runs={"chaos": RUN, "soak": busy}))
    assert "chaos: 2026-01-01, commit c; what ran beside it was not recorded." in page
    assert "soak: 2026-01-01, commit c; load 4.0 before it" in page
    assert "other processes took 40.0 % of the machine; **a busy machine**." in page


def test_a_part_is_run_again_after_a_change_of_the_product_or_on_a_busy_machine() -> None:
    quiet = When(date="d", command="c", source="abc", conditions=Conditions(cores=2, load=0.1))
    busy = msgspec.structs.replace(quiet, conditions=Conditions(cores=2, load=9.0))
    assert is_current(quiet, "abc")
    assert not is_current(quiet, "def") and not is_current(busy, "abc")
    assert not is_current(None, "abc") and not is_current(RUN, "abc")
    dirty = msgspec.structs.replace(quiet, source="abc-dirty")
    assert not is_current(dirty, "abc-dirty")


def test_every_part_can_run_and_every_world_belongs_to_a_feature() -> None:
    assert list(parts.TAKE) == list(PARTS)
    assert {*parts.SHARES} < {*PARTS} and sum(parts.SHARES.values()) == pytest.approx(1.0)
    assert {"swarm", *parts.WORLDS} == {"plain", "swarm", *EPISODES}
    worlds = [world for each in FEATURES for world in each.worlds]
    assert sorted(worlds) == sorted(["swarm", *parts.WORLDS])


def test_the_time_is_divided_among_the_parts_and_each_is_kept_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[tuple[str, float]] = []
    kept: list[set[str]] = []
    for part in PARTS:
        monkeypatch.setitem(
            parts.TAKE,
            part,
            lambda _work, seconds, _results, part=part: ran.append((part, seconds)),
        )
    monkeypatch.setattr(evidence, "write_results", lambda results: kept.append({*results.runs}))
    monkeypatch.setattr(evidence, "source", lambda: "abc")
    monkeypatch.setattr(evidence, "commit", lambda: "abc")
    options = argparse.Namespace(seconds=100.0, seed=1, revision="")
    run_parts(["simulation", "soak", "mutations"], options, Results())
    shares = parts.SHARES["simulation"] + parts.SHARES["soak"]
    assert [part for part, _ in ran] == ["simulation", "soak", "mutations"]
    assert ran[0][1] == pytest.approx(100 * parts.SHARES["simulation"] / shares)
    assert sum(seconds for _, seconds in ran) == pytest.approx(100.0)
    assert kept == [{"simulation"}, {"simulation", "soak"}, {"simulation", "soak", "mutations"}]


REPORT = """<testsuites><testsuite name="pytest" tests="2" time="{seconds}" timestamp="2026-11-22T05:00:00">
<testcase classname="tests.raft.test_raft_mutants" name="a" time="60.0"/>
<testcase classname="tests.front.test_http.TestThat" name="c" time="19.0"/>
</testsuite></testsuites>"""


def test_the_minutes_of_a_tier_are_those_of_its_run(tmp_path: Path) -> None:
    for name, seconds in (("gate", 120.0), ("processes", 720.0)):
        (tmp_path / f"{name}.xml").write_text(REPORT.format(seconds=seconds))
    run = measured([tmp_path / "gate.xml", tmp_path / "processes.xml"], "2 cores")
    assert over(run) == ["processes"]
    assert "| 5 | 2 | 2.0 |" in table(run) and "| 11 | 2 | **12.0** |" in table(run)
    assert "Measured on 2026-11-22, 2 cores." in table(run)
    (tmp_path / "junit.xml").write_text(REPORT.format(seconds=1.0))
    with pytest.raises(ValueError, match=r"expected a file named gate or processes\.xml"):
        measured([tmp_path / "junit.xml"], "")


def test_the_tiers_are_those_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    ((first, beside),) = re.findall(
        r'^test: (\w+).*  ##.*\n\t\$\(TIERS\)\.both "\$\(AGAIN\) (\w+)', makefile, re.MULTILINE
    )
    assert [first, beside, "processes"] == [tier.name for tier in TIERS]
    (expression,) = re.findall(r"^IN_PROCESS = (.+)$", makefile, re.MULTILINE)
    marks = {tier.name: tier.selected for tier in TIERS}
    assert marks == {"lint": "", "gate": expression, "processes": EXPRESSION}
    assert (
        f"about {TOGETHER_MINUTES} minutes" in (ROOT / "docs" / "design" / "README.md").read_text()
    )
