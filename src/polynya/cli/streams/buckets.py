"""`polynya bucket`: the buckets with settings, and the default profile of their new streams."""

from __future__ import annotations

import click

from polynya.base.names import DISKLESS, REPLICATED
from polynya.cli.remote.client import Client, bucket_path, server_option
from polynya.cli.streams.retention import spelled_retention
from polynya.cli.terminal import options, output
from polynya.cli.terminal.command_group import CommandGroup


@click.group("bucket", cls=CommandGroup)
def bucket_command() -> None:
    """List the buckets with settings, and set the profile of their new streams."""


@bucket_command.command("ls")
@options.as_json
@server_option
def ls_command(client: Client, as_json: bool) -> None:
    """List the buckets that have a retention or a default profile.

    \b
    polynya bucket ls
    """
    buckets = client.call("GET", "/v1/buckets").json()["buckets"]
    output.listing(
        buckets,
        ("bucket", "new streams", "keeps"),
        lambda each: (
            each["name"],
            each.get("profile", "-"),
            "-" if each["retention"] is None else spelled_retention(each["retention"]),
        ),
        "no bucket has a retention or a default profile",
        as_json=as_json,
    )


@bucket_command.command("profile")
@click.argument("bucket")
@click.argument("profile", required=False, type=click.Choice((REPLICATED, DISKLESS)))
@options.flag("--clear", help="Remove it: the setting of the node applies again.")
@options.as_json
@server_option
def profile_command(
    client: Client, bucket: str, profile: str | None, clear: bool, as_json: bool
) -> None:
    """Show or set the profile of new streams in BUCKET whose creation names none. Streams that
    exist keep theirs.

    The bucket 'kafka' has the partitions of topics: its profile is that of new topics. A change is
    effective on all nodes within a second.

    \b
    polynya bucket profile logs
    polynya bucket profile logs diskless
    polynya bucket profile kafka diskless
    polynya bucket profile logs --clear
    """
    if clear and profile is not None:
        raise click.UsageError("pass a profile or --clear, not both")
    path = f"{bucket_path(bucket)}/profile"
    if clear:
        client.call("DELETE", path)
        found = {"name": bucket, "profile": None}
    elif profile is not None:
        found = client.call("PUT", path, body={"profile": profile}).json()
    else:
        found = client.call("GET", path).json()
    if as_json:
        output.json_line(found)
    elif clear or profile is not None:
        chosen = found["profile"] or "as the setting default_profile says"
        output.notice(f"new streams in bucket {bucket} are {chosen}")
    else:
        click.echo(found["profile"] or "the setting default_profile of each node")
