"""The basic stream commands: create, info, ls, fork, close, rm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from polynya.base.names import DISKLESS, LEASED, PROFILES, REPLICATED
from polynya.cli.remote.client import (
    NAMES_LOOKED_AT,
    Client,
    new_stream_path,
    server_option,
    stream_path,
)
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.complete import complete_stream
from polynya.cli.terminal.values import SIZE, WHOLE_SECONDS, offset_of

if TYPE_CHECKING:
    import httpx


@click.command("create")
@click.argument("stream", shell_complete=complete_stream)
@options.value(
    "--content-type TYPE",
    default="application/json",
    help="Content type; application/json stores records.",
)
@options.value(
    "--ttl",
    type=WHOLE_SECONDS,
    help="Delete the stream after this long without use (90s, 15min, 7d).",
)
@options.value(
    "--expires-at TIME", help="Delete the stream at this time (RFC 3339: 2030-01-31T12:00:00Z)."
)
@options.value("--keep-age", type=WHOLE_SECONDS, help="Delete records older than this (7d).")
@options.value(
    "--keep-bytes", type=SIZE, help="Keep only the newest bytes (10GiB); delete older records."
)
@options.value(
    "--profile",
    type=click.Choice(PROFILES),
    help=(
        "diskless: records are stored in the object store alone. leased: a chain of segments, "
        "each with one node as its writer.  Default: the node's default_profile, which is replicated."
    ),
)
@options.value(
    "--segment-records",
    type=options.Number(1),
    help="Records of a segment of a leased stream. Default: the node's setting.",
)
@options.value(
    "--segment-bytes",
    type=SIZE,
    help="Bytes of a segment of a leased stream (1GiB). Default: the node's setting.",
)
@options.as_json
@server_option
def create_command(
    client: Client,
    stream: str,
    content_type: str,
    ttl: int | None,
    expires_at: str | None,
    keep_age: int | None,
    keep_bytes: int | None,
    profile: str | None,
    segment_records: int | None,
    segment_bytes: int | None,
    as_json: bool,
) -> None:
    """Create STREAM. Succeeds if it exists with the same settings.

    \b
    polynya create orders
    polynya create logs/web-1 --content-type text/plain --ttl 7d
    polynya create events --keep-age 30d --keep-bytes 10GiB
    polynya create clicks --profile diskless
    polynya create hot --profile leased --segment-records 1000000
    """
    if ttl is not None and expires_at is not None:
        raise click.UsageError(
            "--ttl and --expires-at exclude each other: --ttl counts from the last use"
        )
    if profile != LEASED and (segment_records or segment_bytes):
        raise click.UsageError("--segment-records and --segment-bytes need --profile leased")
    given = {
        "stream-ttl": ttl,
        "stream-expires-at": expires_at,
        "stream-retention-age": keep_age,
        "stream-retention-bytes": keep_bytes,
        "stream-profile": profile,
        "stream-segment-records": segment_records,
        "stream-segment-bytes": segment_bytes,
    }
    headers = {"content-type": content_type}
    headers |= {name: str(value) for name, value in given.items() if value is not None}
    answer = client.call("PUT", new_stream_path(stream), headers=headers)
    _say(
        client,
        stream,
        "created" if answer.status_code == 201 else "already exists",
        created=answer.status_code == 201,
        as_json=as_json,
    )


@click.command("info")
@click.argument("stream", shell_complete=complete_stream)
@options.consistency
@options.as_json
@server_option
def info_command(client: Client, stream: str, consistency: str, as_json: bool) -> None:
    """Show the properties of STREAM: content type, first and tail offset, state, expiry, retention
    and segments.

    \b
    polynya info orders
    polynya info orders --json | jq -r .offset
    """
    info = info_of(client, stream, consistency)
    segments = _segments(client, stream) if info["profile"] == LEASED else None
    if as_json:
        output.json_line(info if segments is None else {**info, "segments": segments})
        return
    spoken = {True: "yes", False: "no"}
    output.properties(
        (key, spoken[value] if isinstance(value, bool) else value)
        for key, value in info.items()
        if value is not None
    )
    for segment in segments or ():
        state = "sealed" if segment["sealed"] else "open"
        click.echo(
            f"{'segment ' + str(segment['epoch']):<17}{state}, node {segment['writer']}, "
            f"{output.counted(segment['records'], 'record')}, from {segment['offset']}, "
            f"opened {segment['opened']}"
        )


def _segments(client: Client, stream: str) -> list[dict[str, Any]]:
    """Return the segments of a leased stream, oldest first; the last one is open."""
    answer = client.call("GET", _segments_path(stream), stream=stream)
    found: list[dict[str, Any]] = answer.json()["segments"]
    return found


def _segments_path(stream: str) -> str:
    return "/v1/segments/" + stream_path(stream).removeprefix("/v1/stream/")


@click.command("ls")
@click.argument("prefix", default="", shell_complete=complete_stream)
@options.value("--limit", type=options.Number(1), help="List at most this many streams.")
@options.value(
    "--attr NAME=VALUE",
    "attributes",
    multiple=True,
    help="List only streams with this attribute. Repeat it for several, all of which must hold.",
)
@options.consistency
@options.as_json
@server_option
def ls_command(  # noqa: PLR0913 - of the command line
    client: Client,
    prefix: str,
    limit: int | None,
    attributes: tuple[str, ...],
    consistency: str,
    as_json: bool,
) -> None:
    """List the streams whose names start with PREFIX, by bucket and name; with --json one object
    per line.

    \b
    polynya ls
    polynya ls flights/ --json | jq -r .name
    polynya ls --attr owner=shop
    """
    count = 0
    wanted_ones = dict(map(_attribute, attributes))
    after = ""
    while limit is None or count < limit:
        room = NAMES_LOOKED_AT if limit is None else limit - count
        page = client.names(
            prefix,
            after=after,
            limit=NAMES_LOOKED_AT if wanted_ones else min(NAMES_LOOKED_AT, room),
            consistency=consistency,
            attributes=wanted_ones,
        )
        rows = page["streams"][:room]
        for row in rows:
            output.json_line(row) if as_json else click.echo(output.visible(row["name"]))
        count += len(rows)
        after = page.get("next") or ""
        if not after:
            break
    if not count:
        output.notice(
            f"no streams under '{prefix}'" + (" have these attributes" if wanted_ones else "")
            if prefix or wanted_ones
            else "no streams yet: 'polynya create NAME' creates one"
        )


def _attribute(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not (found and name):
        raise click.UsageError(f"--attr is '{text}'; expected NAME=VALUE, such as owner=shop")
    return name, value


@click.command("fork")
@click.argument("new")
@options.value(
    "--from STREAM",
    "source",
    required=True,
    shell_complete=complete_stream,
    help="The source stream.",
)
@options.value(
    "--offset OFFSET", help="The fork point: an offset from a read, or 'start'. Default: the tail."
)
@options.as_json
@server_option
def fork_command(client: Client, new: str, source: str, offset: str | None, as_json: bool) -> None:
    """Create NEW as a fork: it starts with the records of another stream up to an offset, and with
    the newest snapshot before it, then diverges.

    \b
    polynya fork experiment --from orders
    polynya fork before-noon --from orders --offset 0000000000000120_0000000000004711
    """
    headers = {"stream-forked-from": stream_path(source)}
    if offset is not None:
        headers["stream-fork-offset"] = offset_of(offset, fork=True)
    answer = client.call("PUT", new_stream_path(new), headers=headers, stream=source)
    created = answer.status_code == 201
    _say(
        client,
        new,
        f"forked from {source}" if created else "already exists",
        created=created,
        as_json=as_json,
    )


@click.command("close")
@click.argument("stream", shell_complete=complete_stream)
@options.as_json
@server_option
def close_command(client: Client, stream: str, as_json: bool) -> None:
    """Close STREAM: it stays readable but accepts no appends, and its followers reach the end.

    \b
    polynya close orders
    """
    answer = client.call(
        "POST", stream_path(stream), headers={"stream-closed": "true"}, stream=stream
    )
    output.outcome(
        {"name": stream, "closed": True, "offset": answer.headers.get("stream-next-offset")},
        f"closed {stream} at offset {answer.headers.get('stream-next-offset')}",
        as_json=as_json,
    )


@click.command("rollover")
@click.argument("stream", shell_complete=complete_stream)
@options.value(
    "--epoch",
    type=options.Number(1),
    help="Close only this segment: repeating the command closes no other.",
)
@options.as_json
@server_option
def rollover_command(client: Client, stream: str, epoch: int | None, as_json: bool) -> None:
    """Close the open segment of the leased STREAM, and open the next one on the next node. A
    segment without records stays open.

    \b
    polynya rollover hot
    polynya rollover hot --epoch 12
    """
    wanted = {} if epoch is None else {"epoch": str(epoch)}
    found = client.call("POST", _segments_path(stream), params=wanted).json()
    done = "closed a segment" if found["rolled"] else "nothing to close"
    output.outcome(
        found,
        f"{stream}: {done}; segment {found['epoch']} is open, its writer is node {found['writer']}",
        as_json=as_json,
    )


@click.command("rm")
@click.argument("streams", nargs=-1, required=True, shell_complete=complete_stream)
@options.flag("--force", "-f", help="Ignore streams that do not exist.")
@options.as_json
@server_option
def rm_command(client: Client, streams: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Delete STREAMS in order, and stop at the first error. Rows already in tables stay there.

    \b
    polynya rm orders
    polynya ls scratch/ | xargs polynya rm --force
    """
    for stream in streams:
        deleted = True
        try:
            client.call("DELETE", stream_path(stream), stream=stream)
        except exits.Refused as refused:
            if not (force and refused.status in (404, 410)):
                raise
            deleted = False
        output.outcome(
            {"name": stream, "deleted": deleted},
            f"deleted {stream}" if deleted else f"{stream} does not exist",
            as_json=as_json,
        )


def info_of(client: Client, stream: str, consistency: str = "leader") -> dict[str, Any]:
    """Return the facts from HEAD. Raises `exits.Refused` with similar names if the stream is
    missing."""
    asked = {} if consistency == "leader" else {"consistency": consistency}
    return _facts(
        client, stream, client.call("HEAD", stream_path(stream), params=asked, stream=stream)
    )


def facts_if_there(client: Client, stream: str) -> dict[str, Any] | None:
    """Return the facts, or None if the stream is missing."""
    answer = client.send("HEAD", stream_path(stream))
    if answer.status_code == 404:
        return None
    if answer.is_error:
        raise client.refused(answer, stream=stream)
    return _facts(client, stream, answer)


def _facts(client: Client, stream: str, answer: httpx.Response) -> dict[str, Any]:
    headers = answer.headers
    ttl = headers.get("stream-ttl")
    return {
        "name": stream,
        "url": client.server + stream_path(stream),
        "content_type": headers.get("content-type"),
        "offset": headers.get("stream-next-offset"),
        "first_offset": headers.get("stream-retained-offset"),
        "closed": headers.get("stream-closed", "").lower() == "true",
        "ttl_seconds": int(ttl) if ttl else None,
        "expires_at": headers.get("stream-expires-at"),
        "keep_age_seconds": _whole(headers.get("stream-retention-age")),
        "keep_bytes": _whole(headers.get("stream-retention-bytes")),
        "incarnation": headers.get("stream-incarnation"),
        "profile": headers.get("stream-profile"),
        "segment": _whole(headers.get("stream-segment")),
        "segment_writer": _whole(headers.get("stream-segment-writer")),
    }


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _say(client: Client, stream: str, what: str, *, created: bool, as_json: bool) -> None:
    if as_json:
        output.json_line({**info_of(client, stream), "created": created})
    else:
        output.notice(f"{stream} {what}: {client.server}{stream_path(stream)}")


@click.group("stream", cls=CommandGroup)
def stream_command() -> None:
    """Show or change the profile of a stream."""


@stream_command.command("profile")
@click.argument("stream", shell_complete=complete_stream)
@click.argument("profile", required=False, type=click.Choice((REPLICATED, DISKLESS)))
@options.as_json
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
        found = client.call("POST", path, body={"profile": profile}, stream=stream).json()
    if as_json:
        output.json_line(found)
    elif profile is None:
        click.echo(found["profile"])
    else:
        output.notice(f"{stream} is {found['profile']}")
