"""The command for the runs of a table that were started on a node, by its console or over HTTP."""

from __future__ import annotations

import time
from typing import Any

import click

from polynya.cli.remote.client import Client, server_option
from polynya.cli.tables.shared import path_of
from polynya.cli.terminal import options, output
from polynya.cli.terminal.complete import complete_table

HEADS = ("run", "what", "started by", "asked", "seconds", "state", "last line")


@click.command("runs")
@click.argument("name", shell_complete=complete_table)
@options.value("--cancel RUN", "run", default="", help="Stop this run; what it committed stays.")
@options.as_json
@server_option
def table_runs_command(client: Client, name: str, run: str, as_json: bool) -> None:
    """List the syncs, rebuilds and replays of the table NAME that the server itself runs.

    The web console starts them, or POST /v1/tables/NAME/sync. 'polynya table sync' runs on the
    machine of the command and is not listed.

    \b
    polynya table runs flights
    """
    if run:
        answer = client.call("POST", f"{path_of(name)}/cancel", body={"run": run}).json()["run"]
        output.outcome(answer, f"run {run} of table {name}: {answer['state']}", as_json=as_json)
        return
    runs = client.call("GET", f"{path_of(name)}/runs").json()["runs"]
    nothing = f"the server has run nothing for table {name} since it started"
    output.listing(runs, HEADS, _row, nothing, as_json=as_json)


def _row(run: dict[str, Any]) -> tuple[Any, ...]:
    asked = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(run["asked_ms"] / 1000))
    end = run["ended_ms"] or time.time() * 1000
    seconds = f"{max(0.0, end - run['started_ms']) / 1000:.1f}" if run["started_ms"] else ""
    return run["id"], run["verb"], run["caller"], asked, seconds, run["state"], run["message"]
