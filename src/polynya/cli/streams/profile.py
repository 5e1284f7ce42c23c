"""`polynya stream`: what a stream is, beyond its records."""

from __future__ import annotations

import click
import msgspec

from polynya.base.names import DISKLESS, REPLICATED
from polynya.cli.remote.client import JSON_TYPE, Client, server_option, stream_path
from polynya.cli.terminal import output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.complete import complete_stream
from polynya.cli.terminal.output import as_json


@click.group("stream", cls=CommandGroup)
def stream_command() -> None:
    """Show or change the profile of a stream."""


@stream_command.command("profile")
@click.argument("stream", shell_complete=complete_stream)
@click.argument("profile", required=False, type=click.Choice((REPLICATED, DISKLESS)))
@as_json
@server_option
def profile_command(client: Client, stream: str, profile: str | None, as_json: bool) -> None:
    """Show the profile of STREAM, or change it. The stream can be written and read meanwhile.

    Offsets, producers, subscriptions and tables go on. The topic of a Kafka partition has a config
    for it: 'polynya topic alter TOPIC --config profile=diskless'.

    \b
    polynya stream profile clicks
    polynya stream profile clicks diskless
    polynya stream profile clicks replicated
    """
    path = "/v1/profile/" + stream_path(stream).removeprefix("/v1/stream/")
    if profile is None:
        found = client.call("GET", path, stream=stream).json()
    else:
        body = msgspec.json.encode({"profile": profile})
        found = client.call(
            "POST", path, content=body, headers={"content-type": JSON_TYPE}, stream=stream
        ).json()
    if as_json:
        output.json_line(found)
    elif profile is None:
        click.echo(found["profile"])
    else:
        output.notice(f"{stream} is {found['profile']}")
