"""The dry run of a table: what its columns would make of records that exist."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polynya.cli.remote.client import Client, server_option
from polynya.cli.tables import changes
from polynya.cli.tables.shared import coordinator_of, explained, table_command
from polynya.cli.terminal import options, output
from polynya.cli.terminal.complete import complete_table
from polynya.cli.terminal.progress import steps
from polynya.lakehouse.machine.needs import check_packages

if TYPE_CHECKING:
    from polynya.lakehouse.dry_run.check import Report

RECORDS = 100_000
TRIED = {"prefix", "columns", "partitions", "payload"}  # of a definition
EXAMPLES_TOLD = 20  # fields and reasons with their examples

records_option = options.value(
    "--records N",
    type=click.IntRange(1, 10_000_000),
    default=None,
    help="About how many records a dry run reads, evenly from all streams. Default: 100,000.",
)


@table_command.command("check")
@click.argument("name", shell_complete=complete_table)
@changes.columns_option
@changes.schema_option
@changes.payload_option
@changes.registry_option
@records_option
@options.as_json
@server_option
def check_command(
    client: Client,
    name: str,
    columns: tuple[str, ...],
    schema: tuple[Path, str] | None,
    payload: str | None,
    registry: str | None,
    records: int | None,
    as_json: bool,
) -> None:
    """Try the columns of the table NAME, and those of --column, on records that exist. Nothing is
    written.

    Says per column how many values fit, which would be dead letters, with examples, and which types
    would fit better. It reads the store, so it runs where 'polynya table sync' runs, without Spark.

    \b
    polynya table check orders
    polynya table check orders --column 'price:decimal(12,2)' --records 1000000
    """
    chosen = changes.payload_text(payload, registry, schema)
    declaring = None if payload in changes.SCHEMA_PAYLOADS else schema
    wanted: dict[str, Any] = {"columns": changes.declared_columns(columns, declaring)}
    wanted |= {} if chosen is None else {"payload": chosen}
    dry_run(client, name, wanted, records, as_json=as_json)


def dry_run(
    client: Client, name: str, wanted: dict[str, Any], records: int | None, *, as_json: bool
) -> None:
    """Try a definition on existing records, and print the report."""
    with explained():
        check_packages()
        import msgspec

        from polynya.lakehouse.dry_run.check import check

        coordinator = coordinator_of(client)
        with steps("asking for the streams") as doing:
            asked = coordinator.check(name, wanted)
            report = check(
                coordinator,
                asked,
                records or RECORDS,
                lambda done, total: doing(f"read {done:,} of {total:,} records"),
            )
    if as_json:
        output.json_line(msgspec.to_builtins(report))
        return
    _print_report(report)


def _print_report(report: Report) -> None:
    proposed = dict(report.proposed)
    rows = [
        (
            each.column,
            each.type,
            each.values,
            each.unfit,
            report.records - each.values - each.unfit,
            proposed.pop(each.field, ""),
        )
        for each in report.columns
    ]
    output.table(("column", "type", "fit", "dead letters", "without", "proposed"), rows)
    for problem in report.problems[:EXAMPLES_TOLD]:
        field = f" of '{output.visible(problem.field)}'" if problem.field else ""
        output.notice(f"{output.counted(problem.records, 'dead letter')}{field}: {problem.reason}")
        for each in problem.examples:
            where = f"{output.visible(each.stream)} offset {each.offset}"
            output.notice(f"  {where}: {output.visible(each.message)}")
    for reason in report.unreadable:
        output.notice(f"unreadable: {reason}")
    if report.without_column:
        output.notice(f"without a column: {', '.join(report.without_column)}")
    given = [f"--column '{field}:{kind}'" for field, kind in report.proposed.items()]
    if given:
        output.notice(f"to take what is proposed: {' '.join(given)}")
    part = "all records" if report.complete else "a part of the records; --records N reads more"
    output.notice(
        f"read {output.counted(report.records, 'record')} of "
        f"{output.counted(report.streams, 'stream')} ({part}); "
        f"{output.counted(report.dead_records, 'record')} would have dead letters; nothing was "
        "written"
    )
