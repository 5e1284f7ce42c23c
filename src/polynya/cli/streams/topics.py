"""`polynya topic`: Kafka topics, their partitions and configs."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from polynya.cli.remote.client import Client, server_option
from polynya.cli.streams import compaction
from polynya.cli.terminal import options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.complete import complete_stream, complete_topic

ROOT = "/v1/topics"
_PARTITION = ("partition", "stream", "first_offset", "next_offset")
_config_option = options.value(
    "--config NAME=VALUE",
    "configs",
    multiple=True,
    help="A config of Kafka, such as retention.ms=86400000, or content.type. Repeatable.",
)


@click.group("topic", cls=CommandGroup)
def topic_command() -> None:
    """Manage Kafka topics. Partition N of a topic is the stream kafka/TOPIC/N."""


@topic_command.command("create")
@click.argument("topic")
@options.value(
    "--partitions",
    type=options.Number(1),
    help="Number of partitions.  [default: the server's kafka.partitions]",
)
@_config_option
@options.as_json
@server_option
def topic_create_command(
    client: Client, topic: str, partitions: int | None, configs: tuple[str, ...], as_json: bool
) -> None:
    """Create TOPIC. Succeeds if it exists with the same partitions and configs.

    \b
    polynya topic create orders --partitions 6
    polynya topic create clicks --config content.type=application/json
    """
    body = {"partitions": partitions, "configs": _given(configs)}
    answer = client.call("PUT", _path(topic), body=body)
    count = output.counted(answer.json()["partitions"], "partition")
    _say(
        answer,
        f"{topic} created, with {count}",
        f"{topic} already exists, with {count}",
        as_json=as_json,
    )
    _say_notes(answer.json(), as_json=as_json)


@topic_command.command("adopt")
@click.argument("topic")
@options.value(
    "--from STREAM",
    "streams",
    multiple=True,
    required=True,
    shell_complete=complete_stream,
    help="A stream that exists: partition 0, and with each repetition the next one.",
)
@_config_option
@options.as_json
@server_option
def topic_adopt_command(
    client: Client, topic: str, streams: tuple[str, ...], configs: tuple[str, ...], as_json: bool
) -> None:
    """Create TOPIC with streams that exist as its partitions. No data moves.

    Kafka clients read what HTTP wrote, and both write. Deleting the topic keeps the streams. A
    token needs 'create' for the topic, and 'read', 'append' and 'delete' for the streams.

    \b
    polynya topic adopt orders --from shop/orders
    polynya topic adopt clicks --from web/clicks-0 --from web/clicks-1
    """
    body = {"streams": list(streams), "configs": _given(configs)}
    answer = client.call("PUT", _path(topic), body=body)
    count = output.counted(len(streams), "stream")
    _say(answer, f"{topic} has adopted {count}", f"{topic} already has {count}", as_json=as_json)
    _say_notes(answer.json(), as_json=as_json)


@topic_command.command("ls")
@options.as_json
@server_option
def topic_ls_command(client: Client, as_json: bool) -> None:
    """List the topics; with --json one object per line.

    \b
    polynya topic ls
    polynya topic ls --json
    """
    rows = client.call("GET", ROOT).json()["topics"]
    output.listing(
        rows,
        ("topic", "partitions", "configs"),
        lambda row: (row["name"], row["partitions"], _spelled(row["configs"])),
        "no topics yet: 'polynya topic create' creates one",
        as_json=as_json,
        lines=True,
    )


@topic_command.command("describe")
@click.argument("topic", shell_complete=complete_topic)
@options.as_json
@server_option
def topic_describe_command(client: Client, topic: str, as_json: bool) -> None:
    """Show TOPIC: its configs, and the offsets and bytes of each partition.

    \b
    polynya topic describe orders
    """
    shown = client.call("GET", _path(topic)).json()
    if as_json:
        output.json_line(shown)
        return
    output.properties(
        [("topic", shown["name"]), *((key, shown[key]) for key in ("id", "partitions"))]
    )
    for name, value in shown["configs"].items():
        click.echo(f"{name:<17}{value}" if len(name) < 17 else f"{name}  {value}")
    click.echo()
    output.table(
        ("partition", "stream", "first offset", "next offset", "bytes"),
        [
            (*(each[key] for key in _PARTITION), output.size(each["bytes"]))
            for each in shown["details"]
        ],
    )
    compacted = [each for each in shown["details"] if "compaction" in each]
    if compacted:
        click.echo()
        output.table(
            compaction.HEADS,
            [(each["partition"], *compaction.row_of(each["compaction"])) for each in compacted],
        )
    if len(shown["details"]) < shown["partitions"]:
        output.notice(f"only the first {output.counted(len(shown['details']), 'partition')}")
    _say_notes(shown, as_json=as_json)


@topic_command.command("compact")
@click.argument("topic", shell_complete=complete_topic)
@options.as_json
@server_option
def topic_compact_command(client: Client, topic: str, as_json: bool) -> None:
    """Begin a pass of key compaction on all partitions of TOPIC now, due or not.

    The topic needs cleanup.policy=compact. Records in memory are written to the object store first.
    'polynya topic describe' shows how far the passes are.

    \b
    polynya topic compact orders
    """
    shown = client.call("GET", _path(topic)).json()
    begun = [compaction.begin_pass(client, each["stream"]) for each in shown["details"]]
    count = output.counted(len(begun), "partition")
    output.outcome(
        {"name": topic, "partitions": begun}, f"a pass begins on {count}", as_json=as_json
    )


@topic_command.command("alter")
@click.argument("topic", shell_complete=complete_topic)
@options.value(
    "--partitions",
    type=options.Number(1),
    help="Grow to this many partitions. A topic never shrinks.",
)
@_config_option
@options.value("--unset NAME", multiple=True, help="Return a config to its default. Repeatable.")
@options.as_json
@server_option
def topic_alter_command(
    client: Client,
    topic: str,
    partitions: int | None,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    as_json: bool,
) -> None:
    """Change the configs of TOPIC, or add partitions.

    \b
    polynya topic alter orders --config retention.ms=604800000
    polynya topic alter orders --partitions 12 --unset retention.bytes
    """
    wanted: dict[str, str | None] = {**_given(configs), **dict.fromkeys(unset)}
    if partitions is None and not wanted:
        raise click.UsageError("pass --partitions, --config or --unset: what to change")
    body = {"partitions": partitions, "configs": wanted}
    changed = client.call("PATCH", _path(topic), body=body).json()
    count = output.counted(changed["partitions"], "partition")
    said = f"topic {topic} has {count}, {_spelled(changed['configs']) or 'no configs'}"
    output.outcome(changed, said, as_json=as_json)
    _say_notes(changed, as_json=as_json)


@topic_command.command("rm")
@click.argument("topics", nargs=-1, required=True, shell_complete=complete_topic)
@options.as_json
@server_option
def topic_rm_command(client: Client, topics: tuple[str, ...], as_json: bool) -> None:
    """Delete TOPICS and all their records.

    \b
    polynya topic rm orders
    """
    for topic in topics:
        client.call("DELETE", _path(topic))
        output.outcome({"name": topic, "deleted": True}, f"deleted topic {topic}", as_json=as_json)


def _path(topic: str) -> str:
    return f"{ROOT}/{quote(topic, safe='')}"


def _say(answer: Any, new: str, known: str, *, as_json: bool) -> None:
    """Tell that a topic is `new`, or `known`."""
    created = answer.status_code == 201
    words = f"topic {new if created else known}"
    output.outcome({**answer.json(), "created": created}, words, as_json=as_json)


def _say_notes(topic: dict[str, Any], *, as_json: bool) -> None:
    """Tell which configs of a topic do less than their names say; JSON has it in `notes`."""
    for note in [] if as_json else topic.get("notes", []):
        output.notice(f"note: {note}")


def _given(configs: tuple[str, ...]) -> dict[str, str | None]:
    """Return the configs of `--config`."""
    found: dict[str, str | None] = {}
    for each in configs:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"'{each}': expected NAME=VALUE", param_hint="--config")
        found[name] = value
    return found


def _spelled(configs: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in configs.items())
