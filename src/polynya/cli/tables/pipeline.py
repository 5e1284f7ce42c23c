"""Parts that the commands share that run jobs of tables, and the command that merges files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from polynya.cli.remote.client import Client, server_option
from polynya.cli.tables.shared import coordinator_of, explained
from polynya.cli.tables.spark_options import spark_options
from polynya.cli.terminal import options, output
from polynya.cli.terminal.complete import complete_table
from polynya.cli.terminal.progress import steps
from polynya.lakehouse.machine.needs import check_packages

if TYPE_CHECKING:
    from polynya.lakehouse.jobs.commit import JobOutcome
    from polynya.lakehouse.jobs.lazy_runner import RunnerFactory

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


def told_outcome(done: JobOutcome) -> str:
    job = f"{done.table.name}: job {done.job}"
    if done.work == "merge":
        return f"{job} merged {output.counted(done.replaced, 'file')}"
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


@click.command("merge")
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
        output.notice(told_outcome(done))


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
    show = told(verbose=verbose)

    def on_step(step: str, said: str) -> None:
        show(step, said)
        doing(NEXT_STEPS.get(step.partition("-")[0], "working"))

    return on_step


def told(*, verbose: bool) -> Callable[[str, str], None]:
    """Return a function that prints a step: with `verbose` all of them, else the milestones."""

    def show(step: str, said: str) -> None:
        if verbose or step in MILESTONES:
            output.notice(f"  {step if verbose else MILESTONES[step]:<14}{said}")

    return show
