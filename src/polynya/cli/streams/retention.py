"""`polynya trim` and `polynya retention`: delete old records, once or by policy."""

from __future__ import annotations

from typing import Any

import click

from polynya.base.offsets import parse_token
from polynya.cli.remote.client import Client, bucket_path, server_option, stream_path
from polynya.cli.streams import compaction
from polynya.cli.terminal import options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.complete import complete_stream
from polynya.cli.terminal.values import SIZE, WHOLE_SECONDS

keep_age_option = options.value(
    "--keep-age", type=WHOLE_SECONDS, help="Keep records younger than this (90s, 12h, 7d)."
)
keep_bytes_option = options.value(
    "--keep-bytes", type=SIZE, help="Keep at least this many of the newest bytes (64MiB, 10GB)."
)
bucket_option = options.value(
    "--bucket BUCKET", help="Apply to all streams of a bucket that have no retention of their own."
)


@click.command("trim")
@click.argument("stream", shell_complete=complete_stream)
@options.value(
    "--before OFFSET|TIME",
    help="Delete records before an offset, 'now', a time (2030-01-31T12:00:00Z) or an age (10m).",
)
@keep_bytes_option
@keep_age_option
@options.as_json
@server_option
def trim_command(
    client: Client,
    stream: str,
    before: str | None,
    keep_bytes: int | None,
    keep_age: int | None,
    as_json: bool,
) -> None:
    """Delete the oldest records of STREAM permanently. Readers of a deleted offset get the first
    retained one.

    Forks keep inherited records, and tables their rows ('polynya table ls --rows-of STREAM' names
    them). The space is freed within minutes.

    \b
    polynya trim orders --before 0000000000000120_0000000000004711
    polynya trim orders --before 2026-11-01
    polynya trim orders --keep-bytes 1GiB
    """
    body = _trim_body(before, keep_bytes, keep_age)
    path = f"{stream_path(stream)}/retention"
    answer = client.call("POST", path, body=body, stream=stream).json()
    if as_json:
        output.json_line({"name": stream, **answer})
        return
    records, size = answer["records"], output.size(answer["bytes"])
    what = (
        f"deleted {output.counted(records, 'record')} ({size})"
        if records
        else "no records before that"
    )
    output.notice(f"{stream}: {what}; the first retained offset is {answer['retained_offset']}")


def _trim_body(before: str | None, keep_bytes: int | None, keep_age: int | None) -> dict[str, Any]:
    given = [option for option in (before, keep_bytes, keep_age) if option is not None]
    if len(given) != 1:
        raise click.UsageError("pass exactly one of --before, --keep-bytes and --keep-age")
    if before is not None:
        return {"before" if before == "now" or parse_token(before) else "before_time": before}
    return {"keep_bytes": keep_bytes} if keep_bytes is not None else {"keep_age_seconds": keep_age}


@click.group("retention", cls=CommandGroup)
def retention_command() -> None:
    """Set how much of a stream, or of a bucket's streams, is retained; older records are deleted
    automatically."""


@retention_command.command("set")
@click.argument("stream", required=False, shell_complete=complete_stream)
@bucket_option
@keep_age_option
@keep_bytes_option
@options.flag("--forever", help="Keep everything, regardless of the bucket's retention.")
@options.flag(
    "--by-record-time", help="Count the age by the times that clients gave their records."
)
@options.flag("--compact", help="Keep only the newest record of each key.")
@options.flag("--snapshots", help="Keep the records since the oldest snapshot that can be read.")
@options.as_json
@server_option
def set_command(
    client: Client,
    stream: str | None,
    bucket: str | None,
    keep_age: int | None,
    keep_bytes: int | None,
    forever: bool,
    by_record_time: bool,
    compact: bool,
    snapshots: bool,
    as_json: bool,
) -> None:
    """Set the retention of STREAM, or of all streams in a bucket. With both limits, records beyond
    either are deleted.

    A stream's own retention replaces its bucket's. Deletion works on pieces of about 4 MiB, so
    slightly more may be kept. By age, records that share a piece with younger ones are deleted up
    to a quarter of the age late. With --compact the older records of each key go within packs;
    records without a key stay. With --snapshots each publish of a snapshot trims the stream.

    \b
    polynya retention set orders --keep-age 30d
    polynya retention set --bucket logs --keep-age 7d --keep-bytes 50GiB
    """
    has_limit = keep_age is not None or keep_bytes is not None
    if (forever and (has_limit or snapshots)) or not (forever or has_limit or compact or snapshots):
        raise click.UsageError(
            "pass --keep-age, --keep-bytes or both, --snapshots, --compact, or --forever"
        )
    if compact and bucket is not None:
        raise click.UsageError("--compact is for a stream, not for a bucket")
    if by_record_time and keep_age is None:
        raise click.UsageError("--by-record-time needs --keep-age")
    if 0 in (keep_age, keep_bytes):
        raise click.UsageError(
            "a retention of 0 deletes every record from now on. To delete what is there once: "
            "polynya trim STREAM --before now"
        )
    body: dict[str, Any] = {"age_seconds": keep_age, "bytes": keep_bytes}
    if by_record_time:
        body["record_time"] = True
    if compact:
        body["compact"] = True
    if snapshots:
        body["snapshot"] = "any"
    path = _path(stream, bucket)
    answer = client.call("PUT", path, body=body, stream=stream or "").json()
    output.outcome(
        {"name": stream or bucket, **answer},
        f"{_named(stream, bucket)} keeps {spelled_retention(answer)}",
        as_json=as_json,
    )


@retention_command.command("show")
@click.argument("stream", required=False, shell_complete=complete_stream)
@bucket_option
@options.as_json
@server_option
def show_command(client: Client, stream: str | None, bucket: str | None, as_json: bool) -> None:
    """Show the retention and first retained offset of STREAM, or of a bucket; without a name, all
    buckets with a retention.

    \b
    polynya retention show
    polynya retention show orders
    """
    if stream is None and bucket is None:
        listed = client.call("GET", "/v1/buckets").json()["buckets"]
        buckets = [each for each in listed if each["retention"] is not None]
        output.listing(
            buckets,
            ("bucket", "keeps"),
            lambda each: (each["name"], spelled_retention(each["retention"])),
            "no bucket has a retention: 'polynya retention set --bucket BUCKET --keep-age 7d' sets "
            "one",
            as_json=as_json,
        )
        return
    answer = client.call("GET", _path(stream, bucket), stream=stream or "").json()
    if as_json:
        output.json_line({"name": stream or bucket, **answer})
        return
    whose = " (from its bucket)" if stream and answer["from"] == "bucket" else ""
    offsets = [key for key in ("retained_offset", "next_offset") if key in answer]
    output.properties([("keeps", f"{spelled_retention(answer)}{whose}")])
    output.properties((key, answer[key]) for key in offsets)


@retention_command.command("clear")
@click.argument("stream", required=False, shell_complete=complete_stream)
@bucket_option
@server_option
def clear_command(client: Client, stream: str | None, bucket: str | None) -> None:
    """Remove the retention of STREAM, which then has its bucket's, or of a bucket.

    \b
    polynya retention clear orders
    """
    client.call("DELETE", _path(stream, bucket), stream=stream or "")
    output.notice(f"{_named(stream, bucket)} no longer has its own retention")


@retention_command.command("compact")
@click.argument("stream", shell_complete=complete_stream)
@options.as_json
@server_option
def compact_command(client: Client, stream: str, as_json: bool) -> None:
    """Begin a pass of key compaction on STREAM now, due or not. It has 'retention set --compact', or is
    a partition of a topic with cleanup.policy=compact.

    \b
    polynya retention compact orders
    """
    found = compaction.begin_pass(client, stream)
    dirty, cleaned, _, held = compaction.row_of(found)
    output.outcome(
        found,
        f"a pass begins on {stream}: {dirty} dirty, cleaned to {cleaned}, held by {held}",
        as_json=as_json,
    )


def _path(stream: str | None, bucket: str | None) -> str:
    if (stream is None) == (bucket is None):
        raise click.UsageError("pass a stream, or a bucket with --bucket")
    path = bucket_path(bucket or "") if stream is None else stream_path(stream)
    return f"{path}/retention"


def _named(stream: str | None, bucket: str | None) -> str:
    return stream if stream is not None else f"bucket {bucket}"


def spelled_retention(retention: dict[str, Any]) -> str:
    age, size = retention["age_seconds"], retention["bytes"]
    by = " by their record times" if retention.get("record_time") else ""
    parts = [] if age is None else [f"records for {_duration(age)}{by}"]
    parts += [] if size is None else [f"the newest {output.size(size)}"]
    parts += ["records since the oldest snapshot"] if retention.get("snapshot") == "any" else []
    parts += ["the newest record of each key"] if retention.get("compact") else []
    return ", ".join(parts) or "everything"


def _duration(seconds: int) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
