"""The options of derived tables, and their creation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from polynya.base.transforms import FUNCTIONS, BadTransform, Transform, checked, parse_transform
from polynya.cli.remote.client import Client
from polynya.cli.tables import spanning
from polynya.cli.tables.changes import shortened
from polynya.cli.tables.shared import coordinator_of, explained, none_yet, shown, streams_of
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.complete import complete_table
from polynya.cli.terminal.values import SECONDS

source_option = options.value(
    "--from-table TABLE",
    "source",
    shell_complete=complete_table,
    help=(
        "Derive from the rows of this table, instead of the records of streams: from the rows that it "
        "gets, or from all of them if its rows change."
    ),
)
key_option = options.value(
    "--key COLUMN",
    "key",
    multiple=True,
    help=(
        "Merge the rows of a derived table by this column of the transform: one row for each value. "
        "May be repeated."
    ),
)
merge_option = options.value(
    "--merge COLUMN:FUNCTION",
    "merge",
    multiple=True,
    help=(
        "Add up a column of rows with the same key (sum), or keep its least or largest value (min, "
        "max); without, that of the last row. May be repeated."
    ),
)
latest_option = options.value(
    "--latest-by COLUMN",
    "latest_by",
    help="The last row of a key has the largest value of this column, not that of the last job.",
)


class _Watermark(click.ParamType):  # type: ignore[type-arg]
    name = "COLUMN:DURATION"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        column, colon, delay = str(value).rpartition(":")
        if not colon or not column:
            self.fail(f"'{value}' names no column or no delay; expected, for example, begin:1h")
        return column, float(SECONDS.convert(delay, param, ctx))


watermark_option = options.value(
    "--watermark COLUMN:DELAY",
    "watermark",
    type=_Watermark(),
    help=(
        "Leave out rows whose time, a column of the key, is more than DELAY before the largest one of "
        "earlier jobs."
    ),
)


def defined(
    source: str,
    key: tuple[str, ...],
    merge: tuple[str, ...],
    latest_by: str | None,
    watermark: tuple[str, float] | None,
) -> Transform:
    """Return the definition of the options. Raises `exits.Misused`."""
    time, delay = watermark or ("", 0.0)
    try:
        functions = dict(map(_merged, merge))
        if len(functions) < len(merge):
            raise exits.Misused("--merge names a column twice; each column has one function")
        made = Transform(source, list(key), functions, latest_by or "", time, round(delay * 1000))
        return checked(made)
    except BadTransform as bad:
        raise exits.Misused(f"--key, --merge, --latest-by, --watermark: {bad}") from None


def check_no_key(*given: Any) -> None:
    """Raise `exits.Misused` if options of derived tables are given for another one."""
    if any(given):
        raise exits.Misused(
            "--from-table, --key, --merge, --latest-by and --watermark are for derived tables: add "
            "--sql FILE or --python MODULE:FUNCTION"
        )


def check_columns(*given: Any, dry_run: bool) -> None:
    """Raise `exits.Misused` if options of other tables are given for a derived one."""
    if dry_run:
        raise exits.Misused("--dry-run is for columns; a derived table has those of its transform")
    if any(given):
        raise exits.Misused(
            "a derived table has the columns of its transform and holds no records: leave out "
            "--column, --schema, --payload and --hold"
        )


def _merged(option: str) -> tuple[str, str]:
    column, colon, function = option.rpartition(":")
    if not colon or not column:
        raise exits.Misused(
            f"--merge '{option}' names no column or no function; expected COLUMN:FUNCTION with one "
            f"of {', '.join(FUNCTIONS)}, for example orders:sum"
        )
    return column, function


def described(text: str) -> str:
    """Return a stored definition in words."""
    if not text:
        return "none"
    try:
        made = parse_transform(text)
    except BadTransform:  # of a later release
        return shortened(text)
    said = shortened(made.source)
    if made.key:
        functions = "".join(f", {name}:{how}" for name, how in made.merge.items())
        said += f"; merged by {', '.join(made.key)}{functions}"
    if made.latest_by:
        said += f", the last row by {made.latest_by}"
    if made.time:
        said += f", watermark {made.delay_ms / 1000:g} s behind {made.time}"
    return said


def input_of(prefix: str | None, source: str | None) -> dict[str, str]:
    """Return the input of the options --from and --from-table. Raises `exits.Misused`."""
    if (prefix is None) == (source is None):
        raise exits.Misused(
            "a derived table reads streams or one table: pass --from PREFIX or --from-table TABLE"
        )
    return {"table": source} if source is not None else {"prefix": prefix or ""}


def transform_of(statement: Path | None, function: str | None) -> str:
    """Return the transform of the options --sql and --python. Raises `exits.Misused`."""
    if statement is None:
        return f"python:{function}"
    if function is not None:
        raise exits.Misused("--sql and --python exclude each other: pass one of them")
    try:
        query = statement.read_text().strip().removesuffix(";")
    except UnicodeDecodeError:
        raise exits.Misused(f"{statement} is not UTF-8 text; expected a SELECT") from None
    if not query:
        raise exits.Misused(f"{statement} is empty; expected a SELECT")
    return f"sql:{query}"


def derive(
    client: Client,
    name: str,
    reads: dict[str, str],
    transform: Transform,
    partitions: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Create a derived table through the admin port, because its driver runs the user's code."""
    with explained():
        answer = msgspec.json.decode(
            coordinator_of(client).derive(name, reads, str(transform), partitions)
        )
    if found := spanning.found_in(parse_transform(answer["table"]["transform"])):
        output.notice(f"  warning: {spanning.advice(found)}")
    if as_json:
        output.json_line(shown(answer["table"]) | {"covered": answer["covered"]})
        return
    output.notice(f"derived table {name} created; 'polynya table sync {name}' fills it")
    if "table" in reads:
        each = parse_transform(answer["table"]["transform"]).whole
        rows = "all rows of" if each else "the rows that are new in"
        output.notice(f"  each job reads {rows} the table {reads['table']}")
        return
    prefix = reads["prefix"]
    if answer["covered"]:
        names = ", ".join(map(output.visible, answer["covered"]))
        output.notice(f"  it reads {streams_of(prefix)}, now for example {names}")
    else:
        output.notice(f"  warning: {none_yet(prefix)}")
