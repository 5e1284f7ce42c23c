"""`polynya txn`: the transactions of Kafka clients."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from polynya.cli.remote.client import Client, server_option
from polynya.cli.terminal import options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.complete import complete_transaction
from polynya.cli.terminal.values import SECONDS

ROOT = "/v1/transactions"
STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)


@click.group("txn", cls=CommandGroup)
def txn_command() -> None:
    """List and abort the transactions of Kafka clients."""


@txn_command.command("ls")
@click.argument("prefix", default="", shell_complete=complete_transaction)
@options.value(
    "--state",
    "states",
    type=click.Choice(STATES, case_sensitive=False),
    multiple=True,
    help="Only ids in this state. Repeatable.",
)
@options.value(
    "--open-for AGE",
    "age",
    type=SECONDS,
    help="Only ids whose transaction is open for as long, as in 30s or 5m.",
)
@options.as_json
@server_option
def txn_ls_command(
    client: Client,
    prefix: str,
    states: tuple[str, ...],
    age: float | None,
    as_json: bool,
) -> None:
    """List the transactional ids that start with PREFIX; with --json one object per line.

    \b
    polynya txn ls
    polynya txn ls --open-for 1m
    """
    query = {"prefix": prefix, "state": ",".join(states)}
    if age is not None:
        query["open_seconds"] = str(round(age))
    rows: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = client.call("GET", ROOT, params={**query, "after": after}).json()
        rows += page["transactions"]
        after = page["next"]
    output.listing(
        rows,
        ("id", "state", "producer", "epoch", "open"),
        lambda row: (row["id"], row["state"], str(row["producer"]), row["epoch"], _open(row)),
        "no transactional ids: a Kafka client creates one when it starts a transaction",
        as_json=as_json,
        lines=True,
    )


@txn_command.command("describe")
@click.argument("id", shell_complete=complete_transaction)
@options.as_json
@server_option
def txn_describe_command(client: Client, id: str, as_json: bool) -> None:  # noqa: A002
    """Show the transactional id ID, and the partitions and groups of its open transaction.

    \b
    polynya txn describe payments-1
    """
    shown = client.call("GET", _path(id)).json()
    if as_json:
        output.json_line(shown)
        return
    _notice(shown, shown["state"])
    output.table(
        ("topic", "partition"),
        [(row["topic"] or row["stream"], row["partition"]) for row in shown["partitions"]],
    )
    if shown["groups"]:
        output.table(("group",), [(group,) for group in shown["groups"]])


@txn_command.command("abort")
@click.argument("id", shell_complete=complete_transaction)
@options.as_json
@server_option
def txn_abort_command(client: Client, id: str, as_json: bool) -> None:  # noqa: A002
    """Abort the open transaction of the id ID. Its producer is fenced: it must start again.

    \b
    polynya txn abort payments-1
    """
    shown = client.call("POST", f"{_path(id)}/abort").json()
    text = f"aborted transaction {shown['number']} of {id}, open for {_open(shown)}"
    output.outcome({"id": id, "number": shown["number"], "aborted": True}, text, as_json=as_json)


def _notice(shown: dict[str, Any], state: str) -> None:
    output.notice(
        f"{shown['id']}: {state}, producer {shown['producer']}, epoch {shown['epoch']}, "
        f"transaction {shown['number']}, open {_open(shown)}, timeout {shown['timeout_ms']} ms"
    )


def _open(row: dict[str, Any]) -> str:
    return "-" if row["open_ms"] is None else f"{row['open_ms'] / 1000:.1f} s"


def _path(id_: str) -> str:
    return f"{ROOT}/{quote(id_, safe='')}"
