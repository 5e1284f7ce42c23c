"""`polynya snapshot` and `polynya bootstrap`: states of a stream to begin with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from polynya.cli.remote.client import Client, server_option, stream_path
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.complete import complete_stream

_STDIN = "-"
offset_argument = click.argument("offset")


@click.group("snapshot", cls=CommandGroup)
def snapshot_command() -> None:
    """Publish, list, read and delete the snapshots of a stream."""


@snapshot_command.command("publish")
@click.argument("stream", shell_complete=complete_stream)
@offset_argument
@click.argument("file", default=_STDIN)
@options.value(
    "--type TYPE", "content_type", default="application/json", help="Content type of the state."
)
@options.value(
    "--incarnation N", help="Refuse a stream that was created again: see 'polynya info'."
)
@server_option
def publish_command(
    client: Client, stream: str, offset: str, file: str, content_type: str, incarnation: str | None
) -> None:
    """Publish the state of STREAM after all records before OFFSET, from FILE or stdin.

    \b
    polynya snapshot publish doc 0000000000000120_0000000000045210 doc.json
    """
    headers = {"content-type": content_type}
    if incarnation is not None:
        headers["stream-incarnation"] = incarnation
    content = _content(file)
    path = f"{_path(stream)}/{offset}"
    answer = client.call("PUT", path, stream=stream, headers=headers, content=content)
    published_at = answer.headers["stream-snapshot-offset"]
    done = "published" if answer.status_code == 201 else "was published before"
    output.notice(f"the snapshot at {published_at} ({output.size(len(content))}) {done}")


@snapshot_command.command("ls")
@click.argument("stream", shell_complete=complete_stream)
@options.json_flag()
@server_option
def ls_command(client: Client, stream: str, as_json: bool) -> None:
    """List the snapshots of STREAM that can be read.

    \b
    polynya snapshot ls doc
    """
    answer = client.call("GET", f"{_path(stream)}s", stream=stream)
    found: list[dict[str, Any]] = answer.json()["snapshots"]
    if as_json:
        output.json_line(found)
        return
    heads = ("offset", "bytes", "content type", "created", "origin", "state")
    output.table(heads, [_row(each) for each in found])
    if not found:
        output.notice(f"{stream} has no snapshot")


def _row(found: dict[str, Any]) -> list[object]:
    state = "superseded" if found["superseded"] else "behind the trim"
    is_usable = not found["superseded"] and not found["behind_trim"]
    return [
        found["offset"],
        found["bytes"],
        output.visible(found["content_type"]),
        found["created_at"],
        output.visible(found["origin"]) or "clients",
        "kept" if is_usable else state,
    ]


@snapshot_command.command("get")
@click.argument("stream", shell_complete=complete_stream)
@click.argument("offset", required=False)
@server_option
def get_command(client: Client, stream: str, offset: str | None) -> None:
    """Print the state at OFFSET, or the newest one, as it was published.

    The offset where the records go on is printed to stderr.

    \b
    polynya snapshot get doc > doc.json
    """
    if offset is None:
        offset = _newest(client, stream)
    answer = client.call("GET", f"{_path(stream)}/{offset}", stream=stream)
    output.data(answer.content)
    output.notice(f"the records go on at {answer.headers['stream-next-offset']}")


def _newest(client: Client, stream: str) -> str:
    answer = client.send("GET", _path(stream))
    if answer.status_code != 307:
        raise client.refused(answer, stream=stream)
    return str(answer.headers["stream-snapshot-offset"])


@snapshot_command.command("rm")
@click.argument("stream", shell_complete=complete_stream)
@offset_argument
@server_option
def rm_command(client: Client, stream: str, offset: str) -> None:
    """Delete the snapshot of STREAM at OFFSET.

    \b
    polynya snapshot rm doc 0000000000000120_0000000000045210
    """
    client.call("DELETE", f"{_path(stream)}/{offset}", stream=stream)
    output.notice(f"deleted the snapshot at {offset}")


@click.command("bootstrap")
@click.argument("stream", shell_complete=complete_stream)
@server_option
def bootstrap_command(client: Client, stream: str) -> None:
    """Print the newest snapshot of a JSON STREAM and the records behind it, as one JSON object.

    \b
    polynya bootstrap doc | jq .snapshot
    """
    headers = {"accept": "application/json"}
    answer = client.call("GET", f"{stream_path(stream)}/bootstrap", stream=stream, headers=headers)
    output.data(answer.content + b"\n")


def _content(file: str) -> bytes:
    if file == _STDIN:
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise exits.Misused(f"{file} cannot be read: {error.strerror}") from None


def _path(stream: str) -> str:
    return f"{stream_path(stream)}/snapshot"
