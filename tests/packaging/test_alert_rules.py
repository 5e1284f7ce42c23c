"""The alert rules and the dashboard are made of the table of metrics, valid for Prometheus and for
Grafana, and the runbooks say what to do about each alert."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from missing import needed_module
from promtool import promtool_program

from polynya.observability.alerts import ALERTS, Alert, check, rules
from polynya.observability.dashboard import dashboard, expressions
from polynya.observability.metrics import BY_NAME, METRICS

ROOT = Path(__file__).parent.parent.parent
RULES: list[dict[str, Any]] = yaml.safe_load(rules())["groups"][0]["rules"]
BOARD: dict[str, Any] = json.loads(dashboard())


def panels() -> list[dict[str, Any]]:
    return [
        each
        for panel in BOARD["panels"]
        for each in (panel, *panel.get("panels", ()))
        if each["type"] != "row"
    ]


@pytest.mark.parametrize(
    ("path", "made"),
    [("prometheus/polynya.rules.yaml", rules), ("grafana/polynya.json", dashboard)],
)
def test_the_packaged_file_is_what_the_command_prints(path: str, made: Any) -> None:
    name = "alerts" if path.endswith("yaml") else "dashboard"
    assert (ROOT / "packaging" / path).read_text() == made(), (
        f"write it again: polynya observability {name} > packaging/{path}"
    )


# --- alert rules ----------------------------------------------------------------------------------


def test_each_rule_is_written_as_it_is_in_the_table() -> None:
    assert [
        (
            rule["alert"],
            rule["expr"],
            rule["annotations"]["summary"],
            rule.get("for", ""),
            rule["labels"]["severity"],
        )
        for rule in RULES
    ] == [
        (f"Polynya{each.name}", each.condition, each.summary, each.wait, each.severity)
        for each in ALERTS
    ]


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("polynya_surprise > 1", "polynya_surprise"),
        ("polynya_turns_total > 1", "by its rate"),
        ("rate(polynya_outbox[5m]) > 1", "by its value"),
        ("polynya_http_append_seconds_bucket > 1", "by its rate"),
        ("rate(polynya_http_append_seconds[5m]) > 1", "polynya_http_append_seconds "),
    ],
)
def test_a_condition_that_the_table_does_not_know_is_refused(condition: str, said: str) -> None:
    with pytest.raises((KeyError, ValueError), match=said):
        check(Alert("Wrong", condition, "?"))


def test_a_rule_uses_the_labels_of_its_metrics() -> None:
    everywhere = {"instance", "job", "le"}
    for alert in ALERTS:
        named = re.findall(r"\bpolynya_\w+", alert.condition)
        own = {
            label
            for name in named
            for metric in [BY_NAME.get(name) or BY_NAME[name.removesuffix("_bucket")]]
            for label in metric.labels
        }
        used = set(re.findall(r"\$labels\.(\w+)", alert.summary))
        used |= set(re.findall(r"[{,]\s*(\w+)=", alert.condition))
        assert used <= own | everywhere, alert.name


def test_the_runbooks_know_the_alerts_that_need_an_answer() -> None:
    page = (ROOT / "docs" / "runbooks.md").read_text("utf-8")
    said = set(re.findall(r"`(Polynya[A-Z]\w+)`", page))
    assert said <= {rule["alert"] for rule in RULES}
    assert {rule["alert"] for rule in RULES if rule["labels"]["severity"] == "page"} <= said


# --- dashboard ------------------------------------------------------------------------------------


def test_the_dashboard_has_a_panel_for_each_metric() -> None:
    shown = {
        name
        for panel in panels()
        for target in panel["targets"]
        for name in re.findall(r"\bpolynya_\w+", target["expr"])
    }
    assert shown == {
        metric.name + ("_bucket" if metric.kind == "histogram" else "") for metric in METRICS
    }
    ids = [each["id"] for each in BOARD["panels"]] + [
        each["id"] for panel in BOARD["panels"] for each in panel.get("panels", ())
    ]
    assert len(set(ids)) == len(ids)


def test_no_two_panels_of_a_row_overlap() -> None:
    for row in [BOARD["panels"], *(each.get("panels", []) for each in BOARD["panels"])]:
        taken: set[tuple[int, int]] = set()
        for position in (panel["gridPos"] for panel in row):
            cells = {
                (position["x"] + x, position["y"] + y)
                for x in range(position["w"])
                for y in range(position["h"])
            }
            assert not cells & taken and position["x"] + position["w"] <= 24
            taken |= cells


def test_the_dashboard_is_of_the_published_schema() -> None:
    """Grafana's own model of a dashboard loses nothing of it, so it knows each field."""
    needed_module("grafana_foundation_sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    found = json.loads(JSONEncoder().encode(Dashboard.from_json(BOARD)))
    assert not [*lost(BOARD, found, "")]


def lost(asked: Any, found: Any, path: str) -> Iterator[str]:
    """The paths of what differs or is missing in `found`."""
    if isinstance(asked, dict):
        for name, value in asked.items():
            yield from lost(value, found.get(name), f"{path}.{name}")
    elif isinstance(asked, list) and isinstance(found, list) and len(asked) == len(found):
        for at, (one, other) in enumerate(zip(asked, found, strict=True)):
            yield from lost(one, other, f"{path}[{at}]")
    elif asked != found:
        yield path


# --- Prometheus -----------------------------------------------------------------------------------

FIRES = """
rule_files: [rules.yaml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'polynya_http_append_seconds_bucket{instance="a", le="1.0"}'
        values: 0+100x30
      - series: 'polynya_http_append_seconds_bucket{instance="a", le="2.5"}'
        values: 0+110x30
      - series: 'polynya_http_append_seconds_bucket{instance="a", le="+Inf"}'
        values: 0+110x30
      - series: 'polynya_nodes_down{instance="a"}'
        values: 0x10 1x20
      - series: 'polynya_journal_full_total{instance="a"}'
        values: 0x30
    alert_rule_test:
      - eval_time: 20m
        alertname: PolynyaAppendsSlow
        exp_alerts:
          - exp_labels: {instance: a, severity: warn}
            exp_annotations: {summary: "a: one append in a hundred takes more than a second"}
      - eval_time: 11m
        alertname: PolynyaNodeAway
        exp_alerts: []
      - eval_time: 20m
        alertname: PolynyaNodeAway
        exp_alerts:
          - exp_labels: {instance: a, severity: page}
            exp_annotations: {summary: "a receives nothing from 1 nodes of its cluster"}
      - eval_time: 20m
        alertname: PolynyaDiskFull
        exp_alerts: []
"""


@pytest.fixture(scope="session")
def promtool() -> str:
    """The program of Prometheus that checks rules."""
    return promtool_program()


def run(program: str, *arguments: str, folder: Path) -> None:
    done = subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.process
def test_prometheus_takes_the_rules_and_they_fire(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(rules())
    (tmp_path / "fires.yaml").write_text(FIRES)
    run(promtool, "check", "rules", "rules.yaml", folder=tmp_path)
    run(promtool, "test", "rules", "fires.yaml", folder=tmp_path)


@pytest.mark.process
def test_prometheus_takes_the_queries_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    queries = [
        query.replace("$__rate_interval", "5m").replace("$instance", ".*")
        for metric in METRICS
        for query, _ in expressions(metric)
    ]
    records = [{"record": f"query:{at}", "expr": query} for at, query in enumerate(queries)]
    (tmp_path / "queries.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "queries", "rules": records}]})
    )
    run(promtool, "check", "rules", "queries.yaml", folder=tmp_path)
