"""The commands that write rows of a table again: a rebuild, and a replay of its dead letters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from polynya.cli.remote.client import Client, server_option
from polynya.cli.tables.changes import (
    columns_option,
    declared_columns,
    partitions_option,
    schema_option,
)
from polynya.cli.tables.pipeline import narrated, stoppable, verbose_option
from polynya.cli.tables.shared import coordinator_of, explained
from polynya.cli.tables.spark_options import spark_options
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.complete import complete_table
from polynya.cli.terminal.progress import steps
from polynya.lakehouse.machine.needs import check_packages

if TYPE_CHECKING:
    from polynya.lakehouse.jobs.commit import JobOutcome
    from polynya.lakehouse.jobs.lazy_runner import RunnerFactory
    from polynya.lakehouse.jobs.results import Progress


@click.command("rebuild")
@click.argument("name", shell_complete=complete_table)
@partitions_option
@options.flag("--no-partition", help="Divide the table no longer.")
@columns_option
@schema_option
@spark_options
@verbose_option
@options.as_json
@server_option
def rebuild_command(
    client: Client,
    name: str,
    partitions: tuple[str, ...],
    no_partition: bool,
    columns: tuple[str, ...],
    schema: tuple[Path, str] | None,
    spark: RunnerFactory,
    verbose: bool,
    as_json: bool,
) -> None:
    """Write all rows of the table NAME again, to a new folder, with columns chosen as for a new one.

    --column changes declared types, --partition replaces all partitions. The table is read as it was
    until the new one takes its place at once. It gets no new rows meanwhile.

    \b
    polynya table rebuild flights --partition 'day(timestamp)' --column delay:double
    """
    if partitions and no_partition:
        raise exits.Misused("--partition and --no-partition exclude each other: pass one of them")
    types = declared_columns(columns, schema)
    wanted = list(partitions) if partitions or no_partition else None

    def work(doing: Callable[[str], None]) -> JobOutcome | None:
        from polynya.lakehouse.jobs.rewrites.redo import Redefined
        from polynya.lakehouse.jobs.worker import rebuild

        told: Progress = narrated(doing, verbose=verbose)
        change = Redefined(types, wanted)
        return rebuild(coordinator_of(client), name, spark, told, change)

    outcome = _run(work)
    if as_json:
        output.json_line({"table": name, "job": outcome and outcome.job})
    elif outcome is not None:
        place = outcome.table.location
        output.notice(f"{name}: job {outcome.job} wrote all rows again, to {place}")
    else:
        output.notice(f"{name}: another driver took the job; run it again")


@click.command("replay-dlq")
@click.argument("name", shell_complete=complete_table)
@spark_options
@verbose_option
@options.as_json
@server_option
def replay_command(
    client: Client, name: str, spark: RunnerFactory, verbose: bool, as_json: bool
) -> None:
    """Put values of the dead letters of the table NAME that fit its columns now into their rows.

    Declare a column for them first. A dead letter that fits leaves NAME__dlq.

    \b
    polynya table alter flights --column delay:string && polynya table replay-dlq flights
    """

    def work(doing: Callable[[str], None]) -> JobOutcome | None:
        from polynya.lakehouse.jobs.worker import replay

        told: Progress = narrated(doing, verbose=verbose)
        return replay(coordinator_of(client), name, spark, told)

    outcome = _run(work)
    fitted = 0 if outcome is None else -outcome.dead_rows
    if as_json:
        output.json_line({"table": name, "job": outcome and outcome.job, "fitted": fitted})
    elif outcome is None:
        output.notice(f"nothing to replay: no dead letter of table {name} fits its columns")
    else:
        output.notice(
            f"{name}: job {outcome.job} wrote the values that fit; "
            f"{output.counted(fitted, 'dead letter')} left {name}__dlq"
        )


def _run(work: Callable[[Callable[[str], None]], JobOutcome | None]) -> JobOutcome | None:
    """Run a rewrite until it ends or is stopped, and show its steps."""
    with explained():
        check_packages()
        with stoppable(), steps("requesting a plan") as doing:
            return work(doing)
