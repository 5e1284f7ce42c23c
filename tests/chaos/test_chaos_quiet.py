"""A run says what else the machine did, and a benchmark of a busy machine stays off the page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import _results, page, report  # noqa: E402  (not a part of the package)
from chaos.quiet import (  # noqa: E402
    Conditions,
    OtherProcesses,
    ProcessTime,
    list_processes,
    stolen_ticks,
)

QUIET = Conditions(cores=2, load=0.9, load_max=3.0, others=4.0)
RUNS = {"polynya": [{"per_second": 10.0}]}


def test_only_processes_outside_the_tree_of_the_run_are_counted() -> None:
    others = OtherProcesses(root=10)
    others.note({
        1: ProcessTime(0, 1, 500),
        2: ProcessTime(0, 1, 0),
        3: ProcessTime(2, 2, 70),
        10: ProcessTime(1, 5, 0),
        11: ProcessTime(10, 6, 0),
        12: ProcessTime(11, 7, 0),
    })  # fmt: skip
    assert others.ticks == 0, "what they used before the run does not count"
    others.note({
        1: ProcessTime(0, 1, 504),
        3: ProcessTime(2, 2, 170),
        10: ProcessTime(1, 5, 40),
        12: ProcessTime(1, 7, 90),
        20: ProcessTime(1, 9, 30),
    })  # fmt: skip
    assert others.ticks == 34, "its orphans and the kernel are no others; a new process is"
    others.note({1: ProcessTime(0, 1, 504), 20: ProcessTime(1, 99, 3)})
    assert others.ticks == 37, "a number that is used again is another process"


def test_a_machine_is_busy_by_its_load_or_by_what_others_take() -> None:
    assert not QUIET.busy and "busy" not in QUIET.summary()
    for field, value, reason in (
        ("load", 1.1, "a load of 1.1 on 2 cores before it"),
        ("others", 6.0, "other processes took 6 % of the machine"),
        ("stolen", 9.0, "the hypervisor took 9 % of the machine"),
    ):
        found = msgspec.structs.replace(QUIET, **{field: value})
        assert found.busy == reason and found.summary().endswith("**a busy machine**")


def test_this_machine_can_be_read() -> None:
    assert any(each.ticks for each in list_processes().values())
    assert stolen_ticks("cpu  1 2 3 4 5 6 7 8 9 0\ncpu0 1 1 1 1 1 1 1 1 1 1") == 8


def test_the_result_of_a_busy_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(_results, "BUSY", tmp_path / "busy")
    monkeypatch.setattr(_results, "commit", lambda: "c")
    monkeypatch.setattr(_results, "source", lambda: "c")
    _results.save("clusters", RUNS, conditions=QUIET)
    scenario = report.Scenario("clusters", "Appends", "Of three.")
    assert "load 0.9 before it, 4.0 % of the machine for others" in report.section(scenario)
    kept = (tmp_path / "results" / "clusters.json").read_bytes()

    busy = Conditions(cores=2, load=8.0)
    with pytest.raises(SystemExit, match=r"a load of 8\.0 on 2 cores before it; the result is in"):
        _results.save("clusters", {"polynya": [{"per_second": 3.0}]}, conditions=busy)
    assert (tmp_path / "results" / "clusters.json").read_bytes() == kept
    assert json.loads((tmp_path / "busy" / "clusters.json").read_text())["busy"] == busy.busy


def test_figures_of_a_busy_machine_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = {
        "figures": {"polynya": {"per_second": [5.0, 5.0, 5.0]}},
        "command": "python -m bench.kafka", "rounds": 1, "date": "2026-01-01", "commit": "c",
    }  # fmt: skip
    monkeypatch.setattr(_results, "FOLDER", tmp_path)
    scenario = report.Scenario("kafka_1", "Beside Kafka", "One node.", "its rate")

    def section(**more: str) -> str:
        (tmp_path / "kafka_1.json").write_text(json.dumps(result | more))
        return report.section(scenario)

    assert "| Polynya | 5 |" in section()
    assert "before the page recorded the machine's load" in section()
    shown = section(busy="a load of 15")
    assert "Polynya" not in shown and "**Not shown:**" in shown and "a load of 15" in shown


def test_the_page_is_measured_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_results, "FOLDER", tmp_path)
    monkeypatch.setattr(page, "FOLDER", tmp_path)
    monkeypatch.setattr(_results, "commit", lambda: "c")
    monkeypatch.setattr(_results, "source", lambda: "abc")
    assert not page.is_current("mixed", "abc")
    _results.save("mixed", RUNS, conditions=QUIET)
    assert page.is_current("mixed", "abc") and not page.is_current("mixed", "def")
    assert {plan.scenario for plan in page.PLANS} == {each.name for each in report.SCENARIOS}
    plan = page.Plan("mixed", "mixed", 90, ("no-such-program",))
    assert page.missing(plan) == "no-such-program" and not page.missing(plan._replace(needs=()))
    assert page.measure([plan, plan._replace(needs=())], seconds=60.0) == [], "it does not fit"


def test_the_page_says_by_its_figures_whether_a_goal_is_reached() -> None:
    checks = (
        report.Check("polynya", "per_second", ">=", 2.0, "kafka"),
        report.Check("polynya", "p99_ms", "<=", 10.0),
    )
    scenario = report.Scenario("s", "S", "", "twice its rate in 10 ms", checks)

    def verdict(rate: float, **more: dict[str, list[float]]) -> str:
        return scenario.verdict({"polynya": {"per_second": [rate], "p99_ms": [9.0]}, **more})

    kafka = {"per_second": [10.0]}
    assert verdict(25.0, kafka=kafka) == "Goal: twice its rate in 10 ms; reached (2.5, 9)."
    assert verdict(15.0, kafka=kafka) == "Goal: twice its rate in 10 ms; not reached (1.5, 9)."
    assert verdict(25.0).endswith("reached, as far as it was measured (9).")
    assert scenario.verdict({}) == "Goal: twice its rate in 10 ms."
    rows = {name for each in report.SCENARIOS for check in each.checks for name in (check.figure,)}
    assert rows <= {*report.FIGURES}
