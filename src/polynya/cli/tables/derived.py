"""The parts of `polynya table create` for derived tables."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from polynya.cli.remote.client import Client
from polynya.cli.tables.shared import coordinator_of, explained, shown
from polynya.cli.terminal import exits, options, output

SHOWN_CHARACTERS = 60

sql_option = options.value(
    "--sql FILE",
    "statement",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Derive the rows by a SELECT of Spark SQL over the view 'input', the records' rows.",
)
python_option = options.value(
    "--python MODULE:FUNCTION",
    "function",
    help="Derive the rows by a function of the driver's Python, from DataFrame to DataFrame.",
)


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
    prefix: str,
    transform: str,
    partitions: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Create a derived table through the admin port, because its driver runs the user's code."""
    with explained():
        told = msgspec.json.decode(
            coordinator_of(client).derive(name, prefix, transform, partitions)
        )
    if as_json:
        output.json_line(shown(told["table"]) | {"covered": told["covered"]})
        return
    output.notice(f"derived table {name} created; 'polynya table sync {name}' fills it")
    if told["covered"]:
        names = ", ".join(map(output.visible, told["covered"]))
        output.notice(f"  it reads the streams under '{prefix}', now for example {names}")
    else:
        output.notice(f"  warning: no stream name starts with '{prefix}' yet")


def shortened(transform: str) -> str:
    """Return a transform in one line."""
    line = " ".join(transform.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"
