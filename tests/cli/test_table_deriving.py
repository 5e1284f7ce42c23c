"""The options of derived tables, their stored text, and the warning of what sees one job only."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from polynya.base.transforms import BadTransform, Transform, checked, parse_transform, source_table
from polynya.cli.tables import spanning
from polynya.cli.tables.deriving import described

SOURCE = "sql:select item, count(*) as n from input group by item"


def test_a_definition_is_its_stored_text() -> None:
    plain = Transform(SOURCE)
    assert str(plain) == SOURCE
    assert parse_transform(SOURCE) == plain
    keyed = Transform(SOURCE, ["begin", "item"], {"n": "sum"}, "at", "begin", 90_000)
    assert parse_transform(str(keyed)) == keyed
    assert str(keyed).startswith("derive:{")
    assert described(str(keyed)).endswith(
        "; merged by begin, item, n:sum, the last row by at, watermark 90 s behind begin"
    )
    assert described("derive:{later}") == "derive:{later}"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (Transform("sql:"), "a transform is 'sql:' and a statement"),
        (Transform("select 1"), "a transform is 'sql:' and a statement"),
        (Transform("python:os"), "'os' names no function; expected MODULE:FUNCTION"),
        (Transform(SOURCE, [], {"n": "sum"}), "a merge is for a table with a key"),
        (Transform(SOURCE, [], {}, "at"), "a latest row is for a table with a key"),
        (Transform(SOURCE, [], {}, "", "at", 1), "a watermark is for a table with a key"),
        (Transform(SOURCE, ["a"], {"n": "avg"}), "'avg' merges no column; expected sum, min, max"),
        (Transform(SOURCE, ["a", "a"]), "at most 16 columns, each once"),
        (Transform(SOURCE, ["a"], {"a": "sum"}), "'a' is in the key"),
        (Transform(SOURCE, ["a"], {}, "a"), "'a' is in the key"),
        (Transform(SOURCE, ["a"], {}, "", "b", 1), "column 'b' is not in the key"),
        (Transform(SOURCE, ["a"], {}, "", "a", -1), "is -1 ms behind"),
        (Transform(SOURCE, [""]), "has no name"),
    ],
)
def test_a_definition_that_cannot_be_says_why(made: Transform, why: str) -> None:
    with pytest.raises(BadTransform, match=why):
        checked(made)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        (SOURCE, 0),
        (str(Transform(SOURCE, table="17", whole=True)), 17),
        ('derive:{"source":"sql:x","table":"17","later":[1]}', 17),
        ("derive:{", 0),
        ('derive:{"table":7}', 0),
        ('derive:{"table":"-7"}', 0),
        ('derive:{"table":"\u0661"}', 0),
    ],
)
def test_a_rule_finds_the_source_of_any_stored_text(text: str, table: int) -> None:
    assert source_table(text) == table


@pytest.mark.parametrize("text", ["derive:{", "derive:{}", 'derive:{"source":"sql:x","more":1}'])
def test_a_stored_text_of_another_release_is_refused(text: str) -> None:
    with pytest.raises(BadTransform, match="is not valid"):
        parse_transform(text)


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("select item, price from input", []),
        ("select 'group by', `max(a)`, \"count(*)\" from input -- distinct\n/* join */", []),
        ("select overtime, counted, limits from input", []),
        ("select window(timestamp, '1 hour') from input", []),
        ("select COUNT(*) from input", ["an aggregate"]),
        ("select item from input Group  By item", ["group by"]),
        ("select distinct item from input", ["distinct"]),
        ("select row_number() over (order by price) from input", ["a window (over)"]),
        ("select a.item from input a join input b", ["a join"]),
        ("select item from input limit 3", ["limit"]),
        ("select item from input except select 'x'", ["intersect or except"]),
    ],
)
def test_what_sees_the_records_of_one_job_is_found(statement: str, found: list[str]) -> None:
    assert spanning.found_in(Transform(f"sql:{statement}")) == found
    assert spanning.found_in(Transform(f"sql:{statement}", ["item"])) == []


def test_a_function_is_not_looked_into() -> None:
    assert spanning.found_in(Transform("python:shop:count")) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--key", "item"), "are for derived tables: add --sql FILE"),
        (("--sql", "FILE", "--merge", "n:sum"), "a merge is for a table with a key"),
        (("--sql", "FILE", "--key", "item", "--merge", "n"), "expected COLUMN:FUNCTION"),
        (
            ("--sql", "FILE", "--key", "item", "--watermark", "1h"),
            "expected, for example, begin:1h",
        ),
        (
            ("--sql", "FILE", "--key", "item", "--merge", "n:sum", "--merge", "n:max"),
            "--merge names a column twice",
        ),
    ],
)
def test_options_that_do_not_fit_are_misuse(
    tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    from polynya.cli.app import cli

    (tmp_path / "a.sql").write_text("select 1")
    given = [str(tmp_path / "a.sql") if each == "FILE" else each for each in options]
    done = CliRunner().invoke(cli, ["table", "create", "t", "--prefix", "a/", *given])
    assert done.exit_code == 2, done.output
    assert why in " ".join(done.output.split())
