"""The commands that show a table's columns and jobs, and change or drop the table; and the options
of a new one, with the creation of derived tables."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from polynya.base.errors import ConfigError
from polynya.cli.remote.client import Client, server_option
from polynya.cli.tables.shared import (
    explained,
    path_of,
    shown,
    table_command,
)
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.complete import complete_table
from polynya.cli.terminal.values import SECONDS

columns_option = options.value(
    "--column FIELD:TYPE",
    "columns",
    multiple=True,
    help=(
        "Declare a field's type: long, double, decimal, string, timestamptz, date, boolean, int, "
        "float, decimal(10,2), uuid, timestamp, epoch_seconds, epoch_millis, epoch_micros, json, or a "
        "list of one: list<long>. May be repeated."
    ),
)

partitions_option = options.value(
    "--partition EXPRESSION",
    "partitions",
    multiple=True,
    help=(
        "Divide the files by a column (stream), by hour, day, month or year of a time "
        "('day(timestamp)') or into buckets ('bucket(16, key)'). May be repeated."
    ),
)
SHOWN_CHARACTERS = 60

sql_option = options.value(
    "--sql FILE",
    "statement",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Derive the rows by a SELECT of Spark SQL over the view 'input', the records' rows.",
)
python_option = options.value(
    "--python MODULE:FUNCTION",
    "function",
    help="Derive the rows by a function of the driver's Python, from DataFrame to DataFrame.",
)


class SchemaFile(click.Path):
    """A path, and for Protobuf the message behind `#`."""

    def convert(  # type: ignore[override]
        self, value: Any, param: Any, ctx: Any
    ) -> tuple[Path, str]:
        path, mark, message = str(value).rpartition("#")
        if not mark or Path(value).exists():
            path, message = str(value), ""
        return Path(os.fsdecode(super().convert(path, param, ctx))), message


schema_option = options.value(
    "--schema FILE[#MESSAGE]",
    type=SchemaFile(exists=True, dir_okay=False, path_type=Path),
    help=(
        "Declare the fields of a schema: JSON Schema, Avro (.avsc), Protobuf (.proto), an Arrow "
        "schema, or a Parquet file. --column overrides it."
    ),
)
payload_option = options.value(
    "--payload",
    type=click.Choice(("registry", "avro", "protobuf", "none")),
    help=(
        "Decode values by the schemas of a registry (Confluent's wire format), or all values by "
        "the Avro or Protobuf schema of --schema."
    ),
)
registry_option = options.value(
    "--registry URL",
    help="The schema registry of --payload registry. Default: that of the server.",
)
keep_snapshots_option = options.value(
    "--keep-snapshots N",
    type=click.IntRange(1, 500),
    default=None,
    help="The last snapshots that stay readable. Default: 20.",
)
keep_for_option = options.value(
    "--keep-for DURATION",
    "keep_seconds",
    type=SECONDS,
    default=None,
    help="Snapshots that were current so recently stay readable, too, up to 500. Default: 0.",
)
SCHEMA_PAYLOADS = ("avro", "protobuf")  # those with the schema of --schema
SKIPPED_SHOWN = 10  # fields of a schema file that a notice names


@table_command.command("schema")
@click.argument("name", shell_complete=complete_table)
@options.as_json
@server_option
def schema_command(client: Client, name: str, as_json: bool) -> None:
    """List the columns of the table NAME with Iceberg's types, and fields with other names.

    \b
    polynya table schema flights
    """
    columns = client.call("GET", f"{path_of(name)}/schema").json()["columns"]
    nothing = f"table {name} has no columns before its first job"
    output.listing(
        columns,
        ("column", "type", "field"),
        lambda column: (column["name"], column["type"], _field_of(column)),
        nothing,
        as_json=as_json,
    )


def _field_of(column: dict[str, Any]) -> str:
    """Return the fields of a column and of those inside it that have other names."""
    inner = [f"{path} = {field}" for path, field in column.get("fields", {}).items()]
    return ", ".join([*([column["field"]] if "field" in column else []), *inner])


@table_command.command("history")
@click.argument("name", shell_complete=complete_table)
@options.as_json
@server_option
def history_command(client: Client, name: str, as_json: bool) -> None:
    """List the snapshots of the table NAME, the latest first: the jobs that made them, and their
    tags.

    'polynya sql --as-of' reads each of them. Jobs whose snapshots have expired are not listed.

    \b
    polynya table history flights
    """
    jobs = client.call("GET", f"{path_of(name)}/history").json()["jobs"]
    keys = ("operation", "rows", "files", "files_merged", "bytes", "job_seconds", "snapshot")
    heads = ("job", "time", "operation", "rows", "files", "merged", "bytes", "seconds")
    output.listing(
        jobs,
        (*heads, "snapshot", "tags"),
        lambda job: (
            job["job"],
            _time(job["time_ms"]),
            *("unknown" if job[key] is None else job[key] for key in keys),
            ", ".join(job.get("tags", ())),
        ),
        f"table {name} has had no job yet",
        as_json=as_json,
    )


@table_command.command("alter")
@click.argument("name", shell_complete=complete_table)
@columns_option
@schema_option
@payload_option
@registry_option
@options.flag(
    "--hold/--no-hold",
    default=None,
    help="Let retention and expiry wait until the table has a stream's records, or no longer.",
)
@keep_snapshots_option
@keep_for_option
@options.as_json
@server_option
def alter_command(
    client: Client,
    name: str,
    columns: tuple[str, ...],
    schema: tuple[Path, str] | None,
    payload: str | None,
    registry: str | None,
    hold: bool | None,
    keep_snapshots: int | None,
    keep_seconds: float | None,
    as_json: bool,
) -> None:
    """Declare more columns of the table NAME, or change its payload, whether it holds records, or
    the snapshots that it keeps.

    The next job adds the columns; rows of earlier jobs have null in them. A declared type never
    changes.

    \b
    polynya table alter flights --column delay:long --column gate.closed:timestamptz
    polynya table alter flights --schema flights.avsc --hold
    polynya table alter flights --keep-snapshots 50 --keep-for 12h
    """
    chosen = payload_text(payload, registry, schema)
    kept = keeping(keep_snapshots, keep_seconds)
    if not columns and schema is None and hold is None and chosen is None and not kept:
        raise exits.Misused(
            "nothing to change: pass --column FIELD:TYPE, --schema FILE, --payload, --hold, "
            "--no-hold, --keep-snapshots or --keep-for"
        )
    declaring = None if payload in SCHEMA_PAYLOADS else schema
    wanted: dict[str, Any] = {"columns": declared_columns(columns, declaring)}
    wanted |= {} if chosen is None else {"payload": chosen}
    wanted |= {} if hold is None else {"hold": hold}
    wanted |= kept
    _alter(client, name, wanted, f"table {name} altered", as_json=as_json)


@table_command.command("rename")
@click.argument("name", shell_complete=complete_table)
@click.argument("new_name")
@options.as_json
@server_option
def rename_command(client: Client, name: str, new_name: str, as_json: bool) -> None:
    """Rename the table NAME to NEW_NAME. Its files, locations and jobs stay as they are.

    \b
    polynya table rename flights departures
    """
    said = f"table {name} is now {new_name}"
    _alter(client, name, {"name": new_name}, said, as_json=as_json)


@table_command.command("drop")
@click.argument("name", shell_complete=complete_table)
@options.flag("--yes", help="Skip the confirmation.")
@server_option
def drop_command(client: Client, name: str, yes: bool) -> None:
    """Drop the table NAME. Its streams stay; rows of streams that were deleted or trimmed are lost.

    Its name and prefix are free at once. The server deletes its files after the grace of
    'polynya store sweep'.

    \b
    polynya table drop flights
    """
    rows = client.call("GET", path_of(name)).json()["table"]["rows"]
    if not yes:
        question = f"Drop table {name} and its {output.counted(rows, 'row')}?"
        output.confirm(question, "nothing was dropped")
    client.call("DELETE", path_of(name))
    output.notice(f"table {name} dropped; its files are deleted later")


@table_command.command("tag")
@click.argument("name", shell_complete=complete_table)
@click.argument("tag")
@options.value("--snapshot ID", default="", help="The snapshot to name. Default: the current one.")
@options.as_json
@server_option
def tag_command(client: Client, name: str, tag: str, snapshot: str, as_json: bool) -> None:
    """Name a snapshot of the table NAME: it stays readable until 'polynya table untag'.

    \b
    polynya table tag flights audit-2026
    polynya sql --as-of audit-2026 "select count(*) from flights"
    """
    path = f"{path_of(name)}/tags/{quote(tag, safe='')}"
    tags = client.call("PUT", path, body={"snapshot": snapshot}).json()["tags"]
    said = f"the tag {tag} of table {name} names snapshot {tags[tag]['snapshot']}"
    output.outcome({"table": name, "tags": tags}, said, as_json=as_json)


@table_command.command("untag")
@click.argument("name", shell_complete=complete_table)
@click.argument("tag")
@options.as_json
@server_option
def untag_command(client: Client, name: str, tag: str, as_json: bool) -> None:
    """Remove a tag of the table NAME; its snapshot then expires as others do.

    \b
    polynya table untag flights audit-2026
    """
    path = f"{path_of(name)}/tags/{quote(tag, safe='')}"
    tags = client.call("DELETE", path).json()["tags"]
    said = f"the tag {tag} of table {name} is removed"
    output.outcome({"table": name, "tags": tags}, said, as_json=as_json)


def keeping(snapshots: int | None, seconds: float | None) -> dict[str, int]:
    """Return the members of a request for --keep-snapshots and --keep-for."""
    last = {} if snapshots is None else {"keep_snapshots": snapshots}
    return last | ({} if seconds is None else {"keep_ms": int(seconds * 1000)})


def declared_columns(columns: tuple[str, ...], schema: tuple[Path, str] | None) -> dict[str, str]:
    """Return the declarations of --schema and --column as types by field. Raises
    `exits.Misused`."""
    found: dict[str, str] = {}
    if schema is not None:
        with explained():
            from polynya.lakehouse.schema.files import declared_in

            path, message = schema
            try:
                declaration = declared_in(_read_schema(path), message)
            except ConfigError as fault:
                raise ConfigError(f"{path}: {fault}") from None
        found = dict(declaration.columns)
        if declaration.skipped:
            output.notice(
                f"  not declared, because they are no scalars of a known type: "
                f"{', '.join(map(output.visible, declaration.skipped[:SKIPPED_SHOWN]))}"
                f"{', …' if len(declaration.skipped) > SKIPPED_SHOWN else ''}"
            )
    return found | dict(map(declared, columns))


def payload_text(
    payload: str | None, registry: str | None, schema: tuple[Path, str] | None
) -> str | None:
    """Return the payload of --payload, --registry and --schema; None: they name none. Raises
    `exits.Misused`."""
    if registry is not None and payload not in (None, "registry"):
        raise exits.Misused(f"--registry is for --payload registry; --payload is {payload}")
    if payload in SCHEMA_PAYLOADS:
        if schema is None:
            raise exits.Misused(
                f"--payload {payload} needs the schema of the values: --schema FILE"
            )
        with explained():
            from polynya.lakehouse.payloads.definition import payload_in

            path, message = schema
            try:
                return str(payload_in(str(payload), _read_schema(path), message))
            except ConfigError as fault:
                raise ConfigError(f"{path}: {fault}") from None
    if payload == "none":
        return ""
    if payload is None and registry is None:
        return None
    return f"registry:{registry}" if registry else "registry"


def _read_schema(path: Path) -> bytes:
    from polynya.lakehouse.schema.files import FILE_BYTES_MAX

    if path.stat().st_size > FILE_BYTES_MAX:
        raise exits.Misused(f"{path} has more than {FILE_BYTES_MAX >> 20} MiB")
    return path.read_bytes()


def declared(column: str) -> tuple[str, str]:
    """Return the field and the type of a --column option. Raises `exits.Misused`."""
    field, colon, kind = column.rpartition(":")
    if not colon or not field:
        raise exits.Misused(
            f"--column '{column}' names no field or no type; expected FIELD:TYPE, for example id:long"
        )
    return field, kind


def _alter(client: Client, name: str, wanted: dict[str, Any], said: str, *, as_json: bool) -> None:
    answer = client.call("POST", f"{path_of(name)}/alter", body=wanted)
    output.outcome(shown(answer.json()["table"]), said, as_json=as_json)


def _time(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def shortened(transform: str) -> str:
    """Return a transform in one line."""
    line = " ".join(transform.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"
