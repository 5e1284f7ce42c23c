"""The alert rules name metrics and labels that a node has, and the operations page says what to do
about each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from polynya.observability.metrics import METRICS

ROOT = Path(__file__).parent.parent.parent
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load(
        (ROOT / "packaging" / "prometheus" / "polynya.rules.yaml").read_text()
    )["groups"]
    for rule in group["rules"]
]
KNOWN = {metric.name: metric for metric in METRICS}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_a_rule_is_about_metrics_that_there_are(rule: dict[str, Any]) -> None:
    named = set(re.findall(r"\bpolynya_\w+", rule["expr"]))
    assert named <= KNOWN.keys()
    counters = {name for name in named if KNOWN[name].kind == "counter"}
    grown = set(re.findall(r"(?:increase|rate)\((polynya_\w+)", rule["expr"]))
    assert counters == grown, "a counter is looked at by how it grows, and nothing else is"
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in ("page", "warn")


def test_the_runbooks_know_the_alerts_that_need_an_answer() -> None:
    page = (ROOT / "docs" / "runbooks.md").read_text("utf-8")
    said = set(re.findall(r"`(Polynya[A-Z]\w+)`", page))
    assert said <= {rule["alert"] for rule in RULES}
    assert {rule["alert"] for rule in RULES if rule["labels"]["severity"] == "page"} <= said
