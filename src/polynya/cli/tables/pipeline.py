"""The commands that write rows of a table again (merge, rebuild, replay), and what the commands
share that run jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polynya.base.errors import ConfigError
from polynya.cli.remote.client import Client, server_option
from polynya.cli.tables.changes import (
    columns_option,
    declared_columns,
    partitions_option,
    schema_option,
)
from polynya.cli.tables.shared import coordinator_of, explained, table_command
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.complete import complete_table
from polynya.cli.terminal.progress import steps
from polynya.lakehouse.machine.master import parse_settings
from polynya.lakehouse.machine.needs import check_packages

if TYPE_CHECKING:
    from polynya.lakehouse.jobs.commit import JobOutcome
    from polynya.lakehouse.jobs.lazy_runner import RunnerFactory
    from polynya.lakehouse.jobs.results import Progress, Runner

NEXT_STEPS = {  # the step that follows each reported one
    "planned": "starting Spark and inferring the schema",
    "columns": "writing the plan",
    "schema": "writing the plan",
    "plan": "running the job in Spark",
    "ran": "writing the result",
    "result": "preparing the commit",
    "staged": "committing",
    "pointer": "writing the Delta log",
    "delta": "requesting the next plan",
    "abandoned": "requesting a new plan",
}
MILESTONES = {  # the steps that are shown without -v
    "planned": "planned",
    "columns": "columns",
    "ran": "converted",
    "pointer": "committed",
    "abandoned": "replanned",
    "failed": "failed",
    "stopped": "stopped",
}
verbose_option = options.flag(
    "-v", "--verbose", help="Print every step of the pipeline, with object keys."
)


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--master` and `--conf` to a command, and pass what starts such a session as `spark`."""

    @options.value(
        "--master URL",
        default="",
        help=(
            "The Spark master: local[N], spark://HOST:PORT, yarn, or k8s://https://HOST:PORT. "
            "Default: all cores of this machine."
        ),
    )
    @options.value(
        "--conf KEY=VALUE",
        "pairs",
        multiple=True,
        help=(
            "A setting of Spark; repeatable. Other users can see command lines, so put secrets "
            "into spark-defaults.conf."
        ),
    )
    @wraps(command)
    def with_spark(*args: Any, master: str, pairs: tuple[str, ...], **options: Any) -> Any:
        try:
            settings = parse_settings(pairs)
        except ConfigError as wrong:
            raise exits.Misused(f"--conf: {wrong}") from None
        return command(*args, spark=spark_factory(master, settings), **options)

    return with_spark


def spark_factory(master: str, settings: Mapping[str, str] | None = None) -> RunnerFactory:
    """Return a function that starts Spark when the first job needs it."""

    def start() -> Runner:
        from polynya.lakehouse.jobs.spark import SparkRunner

        output.notice(f"starting Spark{f' at {master}' if master else ''}")
        return SparkRunner(master, settings=settings)

    return start


def outcome_text(done: JobOutcome) -> str:
    job = f"{done.table.name}: job {done.job}"
    if done.work == "merge":
        return f"{job} merged {output.counted(done.replaced, 'file')}"
    if done.work == "derived" and done.rows < 0:
        return f"{job} left {output.counted(-done.rows, 'row')} fewer"
    if done.work == "derived":
        return f"{job} added {output.counted(done.rows, 'row')}"
    if done.work:
        return f"{job} finished a {done.work} of the table"
    dead = (
        f", and {output.counted(done.dead_rows, 'row')} to the dead letters "
        f"({done.table.name}__dlq)"
        if done.dead_rows
        else ""
    )
    return f"{job} added {output.counted(done.rows, 'row')}{dead}"


@table_command.command("merge")
@click.argument("name", shell_complete=complete_table)
@spark_options
@verbose_option
@options.as_json
@server_option
def merge_command(
    client: Client, name: str, spark: RunnerFactory, verbose: bool, as_json: bool
) -> None:
    """Merge the small files of the table NAME with Spark; its rows stay as they are.

    'polynya table sync' and 'polynya lake run' merge files as soon as there are enough of a similar
    size; this command merges all small ones now. Readers of older snapshots are not disturbed.

    \b
    polynya table merge flights
    """
    with explained():
        check_packages()
        from polynya.lakehouse.jobs.worker import merge

        with stoppable(), steps("requesting a plan") as doing:
            outcomes = merge(coordinator_of(client), name, spark, narrated(doing, verbose=verbose))
    replaced = sum(done.replaced for done in outcomes)
    if as_json:
        jobs = [done.job for done in outcomes]
        output.json_line({"table": name, "jobs": jobs, "files_merged": replaced})
    elif not outcomes:
        output.notice(f"nothing to merge: no partition of table {name} has two small files")
    for done in () if as_json else outcomes:
        output.notice(outcome_text(done))


@contextmanager
def stoppable() -> Iterator[None]:
    """Stop the body on SIGTERM and SIGINT, and say what is unfinished."""
    from polynya.lakehouse.jobs.stopping import STOPPED, Stopped, stop_on_signals

    try:
        with stop_on_signals():
            yield
    except Stopped as stopped:
        output.notice(f"stopped: {str(stopped) or STOPPED}")
        raise KeyboardInterrupt from None


def narrated(doing: Callable[[str], None], *, verbose: bool) -> Callable[[str, str], None]:
    """Print the steps of the pipeline, and pass the name of the next one to `doing`."""
    show = step_printer(verbose=verbose)

    def on_step(step: str, said: str) -> None:
        show(step, said)
        doing(NEXT_STEPS.get(step.partition("-")[0], "working"))

    return on_step


def step_printer(*, verbose: bool) -> Callable[[str, str], None]:
    """Return a function that prints a step: with `verbose` all of them, else the milestones."""

    def show(step: str, said: str) -> None:
        if verbose or step in MILESTONES:
            output.notice(f"  {step if verbose else MILESTONES[step]:<14}{said}")

    return show


@table_command.command("rebuild")
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
    """Write all rows of the table NAME again, to a new folder, with columns chosen as for a new
    one.

    --column changes declared types, --partition replaces all partitions. The table is read as it
    was until the new one takes its place at once. It gets no new rows meanwhile.

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

        step_printer: Progress = narrated(doing, verbose=verbose)
        change = Redefined(types, wanted)
        return rebuild(coordinator_of(client), name, spark, step_printer, change)

    outcome = _run(work)
    if as_json:
        output.json_line({"table": name, "job": outcome and outcome.job})
    elif outcome is not None:
        location = outcome.table.location
        output.notice(f"{name}: job {outcome.job} wrote all rows again, to {location}")
    else:
        output.notice(f"{name}: another driver took the job; run it again")


@table_command.command("replay-dlq")
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

        step_printer: Progress = narrated(doing, verbose=verbose)
        return replay(coordinator_of(client), name, spark, step_printer)

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
