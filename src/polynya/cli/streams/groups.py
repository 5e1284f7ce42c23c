"""`polynya group`: the consumer groups of Kafka clients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import click

from polynya.cli.remote.client import Client, server_option
from polynya.cli.terminal import options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.complete import complete_group, complete_topic
from polynya.cli.terminal.values import BEGIN, SECONDS, Begin

ROOT = "/v1/groups"


class ResetTarget(click.ParamType):  # type: ignore[type-arg]
    """`earliest`, `latest`, an offset such as 42, `10m`, `2026-11-01T00:00Z`."""

    name = "place"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        """Return the place as the server takes it."""
        if isinstance(value, dict):
            return value
        text = str(value).strip()
        if text in ("earliest", "latest"):
            return {"to": text}
        if text.isascii() and text.isdigit():
            return {"to": int(text[:18])}
        try:
            begin = BEGIN.convert(text, param, ctx)
        except click.BadParameter:
            begin = Begin()
        if not begin.time:
            self.fail(
                f"{value!r} is not a place; expected 'earliest', 'latest', an offset (42), an age "
                "(10m) or a time (2026-11-01T00:00Z)",
                param,
                ctx,
            )
        if begin.time.endswith("Z"):
            return {"time": begin.time}
        age = timedelta(seconds=SECONDS.convert(begin.time, param, ctx))
        try:
            moment = datetime.now(UTC) - age
        except OverflowError:
            return {"to": "earliest"}
        return {"time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")}


@click.group("group", cls=CommandGroup)
def group_command() -> None:
    """List and manage the consumer groups of Kafka clients."""


@group_command.command("ls")
@click.argument("prefix", default="", shell_complete=complete_group)
@options.as_json
@server_option
def group_ls_command(client: Client, prefix: str, as_json: bool) -> None:
    """List the groups whose ids start with PREFIX; with --json one object per line.

    \b
    polynya group ls
    """
    rows: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = client.call("GET", ROOT, params={"prefix": prefix, "after": after}).json()
        rows += page["groups"]
        after = page["next"]
    output.listing(
        rows,
        ("group", "state", "type", "kind"),
        lambda row: (
            row["group"],
            row["state"],
            row["protocol_type"] or "-",
            row.get("kind", "classic"),
        ),
        "no consumer groups yet: a Kafka client creates one when it subscribes",
        as_json=as_json,
        lines=True,
    )


@group_command.command("describe")
@click.argument("id", shell_complete=complete_group)
@options.as_json
@server_option
def group_describe_command(client: Client, id: str, as_json: bool) -> None:  # noqa: A002
    """Show the members of the group ID, its committed offsets, and its lag in records.

    \b
    polynya group describe readers
    polynya group describe readers --json | jq .lag
    """
    shown = client.call("GET", _path(id)).json()
    if as_json:
        output.json_line(shown)
        return
    members = output.counted(len(shown["members"]), "member")
    output.notice(f"{id}: {shown['state']}, {members}, {shown.get('kind', 'classic')} protocol")
    readers = {
        (topic, number): member["instance"] or member["id"]
        for member in shown["members"]
        for topic, numbers in member["partitions"].items()
        for number in numbers
    }
    output.table(
        ("topic", "partition", "offset", "end", "lag", "member"),
        [
            (*_cells(row, "topic", "partition", "offset", "end", "lag"), readers.get(_of(row), "-"))
            for row in shown["offsets"]
        ],
    )


@group_command.command("reset-offsets")
@click.argument("id", shell_complete=complete_group)
@options.value(
    "--to",
    type=ResetTarget(),
    help="'earliest', 'latest', an offset (42), an age (10m), or a time (2026-11-01T00:00Z).",
)
@options.flag("--to-earliest", help="The same as --to earliest.")
@options.flag("--to-latest", help="The same as --to latest.")
@options.value(
    "--shift-by N", type=int, help="Move each committed offset by N records; negative goes back."
)
@options.value(
    "--topic TOPIC[:N,N]",
    "topics",
    multiple=True,
    shell_complete=complete_topic,
    help=(
        "Reset this topic, or these partitions of it. Repeatable.  [default: all topics with "
        "committed offsets]"
    ),
)
@options.flag("--dry-run", help="Only show the new offsets.")
@options.as_json
@server_option
def group_reset_command(
    client: Client,
    id: str,  # noqa: A002
    topics: tuple[str, ...],
    as_json: bool,
    dry_run: bool,
    **targets: Any,
) -> None:
    """Commit new offsets for the group ID, which must have no members.

    An offset is cut to what each partition has. A time means the first record of that time or
    later, or the end.

    \b
    polynya group reset-offsets readers --to-earliest --topic orders --dry-run
    polynya group reset-offsets readers --to 2h
    polynya group reset-offsets readers --shift-by -100 --topic orders:0,2
    """
    body = {**_target(**targets), "topics": list(topics) or None, "dry_run": dry_run}
    answer = client.call("POST", f"{_path(id)}/offsets", body=body).json()
    if as_json:
        output.json_line(answer)
        return
    heads = ("topic", "partition", "before", "offset", "end", "lag")
    output.table(heads, [_cells(row, *heads) for row in answer["offsets"]])
    if dry_run:
        output.notice("nothing was changed: leave --dry-run out to commit these offsets")


def _cells(row: dict[str, Any], *keys: str) -> list[object]:
    return ["-" if row[key] is None else row[key] for key in keys]


def _of(row: dict[str, Any]) -> tuple[str, int]:
    return row["topic"], row["partition"]


def _target(
    to: dict[str, Any] | None, shift_by: int | None, *, to_earliest: bool, to_latest: bool
) -> dict[str, Any]:
    """Return the one place that the options name. Raises click.UsageError."""
    named = [] if to is None else [to]
    named += [{"to": "earliest"}] if to_earliest else []
    named += [{"to": "latest"}] if to_latest else []
    named += [] if shift_by is None else [{"shift_by": shift_by}]
    if len(named) != 1:
        raise click.UsageError("pass one of --to, --to-earliest, --to-latest and --shift-by")
    return named[0]


@group_command.command("rm")
@click.argument("ids", nargs=-1, required=True, shell_complete=complete_group)
@options.as_json
@server_option
def group_rm_command(client: Client, ids: tuple[str, ...], as_json: bool) -> None:
    """Delete the groups IDS and their offsets. A group with members is refused.

    \b
    polynya group rm readers
    """
    for key in ids:
        client.call("DELETE", _path(key))
        output.outcome({"group": key, "deleted": True}, f"deleted group {key}", as_json=as_json)


def _path(id_: str) -> str:
    return f"{ROOT}/{quote(id_, safe='')}"
