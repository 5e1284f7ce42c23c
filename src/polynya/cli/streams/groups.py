"""`polynya group`: the consumer groups of Kafka clients."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import click

from polynya.cli.remote.client import JSON_TYPE, Client, server_option
from polynya.cli.terminal import output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.output import as_json

ROOT = "/v1/groups"


@click.group("group", cls=CommandGroup)
def group_command() -> None:
    """List and manage the consumer groups of Kafka clients."""


@group_command.command("ls")
@click.argument("prefix", default="")
@as_json
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
    if as_json:
        for row in rows:
            output.json_line(row)
    elif rows:
        output.table(
            ("group", "state", "type"),
            [(row["group"], row["state"], row["protocol_type"] or "-") for row in rows],
        )
    else:
        output.notice("no consumer groups yet: a Kafka client creates one when it subscribes")


@group_command.command("describe")
@click.argument("id")
@as_json
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
    output.notice(f"{id}: {shown['state']}, {output.counted(len(shown['members']), 'member')}")
    readers = {
        (topic, number): member["instance"] or member["id"]
        for member in shown["members"]
        for topic, numbers in member["partitions"].items()
        for number in numbers
    }
    output.table(
        ("topic", "partition", "offset", "end", "lag", "member"),
        [
            (
                row["topic"],
                row["partition"],
                "-" if row["offset"] is None else row["offset"],
                row["end"],
                "-" if row["lag"] is None else row["lag"],
                readers.get((row["topic"], row["partition"]), "-"),
            )
            for row in shown["offsets"]
        ],
    )


@group_command.command("reset-offsets")
@click.argument("id")
@click.option(
    "--to",
    metavar="PLACE",
    required=True,
    help="'earliest', 'latest', or an offset, which is cut to what each partition has.",
)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    help="Reset this topic. Repeatable. Default: all topics with committed offsets.",
)
@as_json
@server_option
def group_reset_command(
    client: Client,
    id: str,  # noqa: A002
    to: str,
    topics: tuple[str, ...],
    as_json: bool,
) -> None:
    """Commit new offsets for the group ID, which must have no members.

    \b
    polynya group reset-offsets readers --to earliest --topic orders
    """
    place: str | int = int(to) if to.isdecimal() else to
    body = json.dumps({"to": place, "topics": list(topics) or None}).encode()
    answer = client.call(
        "POST", f"{_path(id)}/offsets", content=body, headers={"content-type": JSON_TYPE}
    ).json()
    if as_json:
        output.json_line(answer)
        return
    output.table(
        ("topic", "partition", "offset", "end"),
        [(row["topic"], row["partition"], row["offset"], row["end"]) for row in answer["offsets"]],
    )


@group_command.command("rm")
@click.argument("ids", nargs=-1, required=True)
@as_json
@server_option
def group_rm_command(client: Client, ids: tuple[str, ...], as_json: bool) -> None:
    """Delete the groups IDS and their offsets. A group with members is refused.

    \b
    polynya group rm readers
    """
    for key in ids:
        client.call("DELETE", _path(key))
        if as_json:
            output.json_line({"group": key, "deleted": True})
        else:
            output.notice(f"deleted group {key}")


def _path(id_: str) -> str:
    return f"{ROOT}/{quote(id_, safe='')}"
