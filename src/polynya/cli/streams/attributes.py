"""`polynya attrs`: the attributes of a stream."""

from __future__ import annotations

import json
from typing import Any

import click

from polynya.cli.remote.client import Client, server_option, stream_path
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.complete import complete_stream

if_match_option = options.value(
    "--if-match ETAG",
    help="Refuse unless the attributes are those of an ETag that an earlier command printed.",
)


@click.group("attrs", cls=CommandGroup)
def attrs_command() -> None:
    """Show, set and remove the attributes of a stream: one JSON object of up to 16 KiB."""


@attrs_command.command("get")
@click.argument("stream", shell_complete=complete_stream)
@click.argument("name", required=False)
@server_option
def get_command(client: Client, stream: str, name: str | None) -> None:
    """Print the attributes of STREAM as JSON, or the one with NAME.

    The ETag for --if-match goes to stderr.

    \b
    polynya attrs get orders
    polynya attrs get orders owner
    """
    answer = client.call("GET", _path(stream), stream=stream)
    if name is None:
        output.data(answer.content + b"\n")
    else:
        found: dict[str, Any] = answer.json()
        if name not in found:
            raise exits.Refused(f"{stream} has no attribute '{name}'")
        output.json_line(found[name])
    _print_etag(answer.headers["etag"])


@attrs_command.command("set")
@click.argument("stream", shell_complete=complete_stream)
@click.argument("pairs", metavar="NAME=VALUE...", nargs=-1, required=True)
@options.flag("--replace", help="Remove all other attributes.")
@if_match_option
@server_option
def set_command(
    client: Client, stream: str, pairs: tuple[str, ...], replace: bool, if_match: str | None
) -> None:
    """Set attributes of STREAM; others stay.

    A VALUE is JSON, or else a string. null removes an attribute.

    \b
    polynya attrs set orders owner=shop retries=3
    polynya attrs set orders 'tags=["eu","vip"]' --if-match '"1000000000001.1-7"'
    """
    values = dict(map(_pair, pairs))
    if replace:
        values = {name: value for name, value in values.items() if value is not None}
    _change(client, "PUT" if replace else "PATCH", stream, values, if_match)


@attrs_command.command("rm")
@click.argument("stream", shell_complete=complete_stream)
@click.argument("names", metavar="[NAME...]", nargs=-1)
@if_match_option
@server_option
def rm_command(client: Client, stream: str, names: tuple[str, ...], if_match: str | None) -> None:
    """Remove the attributes of STREAM with these names, or all of them.

    \b
    polynya attrs rm orders owner
    polynya attrs rm orders
    """
    if names:
        _change(client, "PATCH", stream, dict.fromkeys(names), if_match)
    else:
        _change(client, "DELETE", stream, None, if_match)


def _change(
    client: Client, method: str, stream: str, values: dict[str, Any] | None, if_match: str | None
) -> None:
    headers = {} if if_match is None else {"if-match": if_match}
    answer = client.call(method, _path(stream), stream=stream, headers=headers, body=values)
    _print_etag(answer.headers["etag"])


def _pair(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not found:
        raise click.UsageError(f"'{text}' is not NAME=VALUE; to remove one: polynya attrs rm")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _path(stream: str) -> str:
    return f"{stream_path(stream)}/attrs"


def _print_etag(etag: str) -> None:
    output.notice(f"ETag {etag}")
