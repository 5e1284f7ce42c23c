"""The report of a dry run in the terminal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polynya.cli.tables import checking
from polynya.lakehouse.dry_run.check import ColumnCheck, Example, Problem, Report

REPORT = Report(
    "orders",
    2,
    10,
    complete=False,
    dead_records=1,
    columns=[
        ColumnCheck("price", "decimal(9,2)", "price", declared=True, values=8, unfit=1),
        ColumnCheck("at", "long", "at", declared=False, values=10),
    ],
    problems=[Problem("price", "misfit", 1, [Example("orders/eu", 7, "more than 2 digits")])],
    proposed={"at": "epoch_millis"},
    without_column=["tags:list<long>"],
)


class Asked:
    """A coordinator that notes what it is asked."""

    wanted: Any = None

    def check(self, name: str, wanted: dict[str, Any]) -> str:
        Asked.wanted = name, wanted
        return "answer"


def run(monkeypatch: pytest.MonkeyPatch, *, as_json: bool) -> list[Any]:
    seen: list[Any] = []

    def check(coordinator: Any, asked: Any, records: int, progress: Any) -> Report:
        progress(5, 10)
        seen.extend((asked, records))
        return REPORT

    monkeypatch.setattr(checking, "coordinator_of", lambda client: Asked())
    monkeypatch.setattr("polynya.lakehouse.dry_run.check.check", check)
    client: Any = None
    checking.dry_run(client, "orders", {"columns": {}}, None, as_json=as_json)
    return seen


def test_columns_examples_and_proposals_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, as_json=False) == ["answer", checking.RECORDS]
    assert Asked.wanted == ("orders", {"columns": {}})
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert lines[1:] == [
        ["price", "decimal(9,2)", "8", "1", "1"],
        ["at", "long", "10", "0", "0", "epoch_millis"],
    ]
    assert "1 dead letter of 'price': misfit\n  orders/eu offset 7: more than 2 digits" in err
    assert "without a column: tags:list<long>" in err
    assert "to take what is proposed: --column 'at:epoch_millis'" in err
    assert "a part of the records; --records N reads more" in err


def test_the_report_is_one_object_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["problems"][0]["examples"][0]["offset"] == 7
    assert (report["complete"], report["proposed"]) == (False, {"at": "epoch_millis"})
