"""The table commands: create, list, sync and query tables."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.cli.remote.client import Client, server_option
from polynya.cli.tables import changes, checking, deriving, pipeline, shared
from polynya.cli.tables.runs import table_runs_command
from polynya.cli.tables.shared import table_command
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.complete import complete_stream, complete_table
from polynya.cli.terminal.progress import spelled_seconds, steps
from polynya.cli.terminal.values import SECONDS
from polynya.lakehouse.machine.needs import check_packages, check_pipeline

if TYPE_CHECKING:
    from polynya.lakehouse.jobs.lazy_runner import RunnerFactory
    from polynya.lakehouse.jobs.worker import TablesFailed

table_command.add_command(table_runs_command)

SQL_SECONDS = 660.0  # longer than the largest `sql.timeout`, which the server reports itself


@table_command.command("create")
@click.argument("name")
@options.value(
    "--prefix",
    "--from PREFIX",
    "prefix",
    help=(
        "The streams whose names begin with it are in the table; a word also means the bucket of "
        "that name."
    ),
)
@changes.columns_option
@changes.schema_option
@changes.payload_option
@changes.registry_option
@changes.partitions_option
@options.flag("--hold", help="Retention and expiry wait until the table has a stream's records.")
@changes.sql_option
@changes.python_option
@deriving.source_option
@deriving.key_option
@deriving.merge_option
@deriving.latest_option
@deriving.watermark_option
@changes.keep_snapshots_option
@changes.keep_for_option
@options.flag("--dry-run", help="Try the columns on records that exist, and create nothing.")
@checking.records_option
@options.as_json
@server_option
def table_create_command(
    client: Client,
    name: str,
    prefix: str | None,
    hold: bool,
    columns: tuple[str, ...],
    schema: tuple[Path, str] | None,
    payload: str | None,
    registry: str | None,
    partitions: tuple[str, ...],
    statement: Path | None,
    function: str | None,
    source: str | None,
    key: tuple[str, ...],
    merge: tuple[str, ...],
    latest_by: str | None,
    watermark: tuple[str, float] | None,
    keep_snapshots: int | None,
    keep_seconds: float | None,
    dry_run: bool,
    records: int | None,
    as_json: bool,
) -> None:
    """Create the table NAME of all current and future streams whose names start with a prefix.

    It has rows after 'polynya table sync'. Succeeds if the table exists with the same prefix and
    options.

    \b
    polynya table create flights --prefix flights/
    polynya table create sensors --prefix sensors --column id:long --column at:timestamptz --hold
    polynya table create rides --prefix rides/ --partition 'day(timestamp)' --partition stream
    polynya table create orders --prefix kafka/orders/ --payload registry
    polynya table create fares --from rides/ --sql fares.sql
    polynya table create sales --from rides/ --sql sales.sql --key item --merge cents:sum
    polynya table create top --from-table sales --sql top.sql
    polynya table create orders --prefix orders/ --column 'price:decimal(12,2)' --dry-run
    """

    chosen = changes.payload_text(payload, registry, schema)
    kept = changes.keeping(keep_snapshots, keep_seconds)
    if records is not None and not dry_run:
        raise exits.Misused("--records is for --dry-run")
    if statement is not None or function is not None:
        deriving.check_columns(hold, columns, schema, chosen, dry_run=dry_run)
        code = deriving.transform_of(statement, function)
        transform = deriving.defined(code, key, merge, latest_by, watermark)
        reads = deriving.input_of(prefix, source)
        deriving.derive(client, name, reads, transform, partitions, as_json=as_json)
        if kept:
            client.call("POST", f"{shared.path_of(name)}/alter", body=kept)
        return
    deriving.check_no_key(source, key, merge, latest_by, watermark)
    if prefix is None:
        raise exits.Misused("the streams of the table are missing: pass --prefix PREFIX")
    wanted: dict[str, Any] = {"prefix": prefix}
    wanted |= {"hold": True} if hold else {}
    declaring = None if payload in changes.SCHEMA_PAYLOADS else schema
    types = changes.declared_columns(columns, declaring)
    wanted |= {"columns": types} if types else {}
    wanted |= {"payload": chosen} if chosen else {}
    wanted |= {"partitions": partitions} if partitions else {}
    wanted |= kept
    if dry_run:
        wanted = {key: wanted[key] for key in wanted.keys() & checking.TRIED}
        checking.dry_run(client, name, wanted, records, as_json=as_json)
        return
    answer = client.call("PUT", shared.path_of(name), body=wanted)
    body = answer.json()
    if as_json:
        more = {key: body[key] for key in ("covered", "taken_by", "taken_from") if key in body}
        output.json_line(shared.shown(body["table"]) | more)
    else:
        made = "created" if answer.status_code == 201 else "already exists"
        output.notice(f"table {name} {made}; 'polynya table sync {name}' fills it")
        _print_covered(body, prefix)


def _print_covered(body: dict[str, Any], prefix: str) -> None:
    """Print how many streams a table covers now, some of them, and the tables that share its
    prefix."""
    streams, names = body["table"]["streams"], body.get("covered", [])
    if not streams:
        under = f"under '{prefix}' " if prefix else ""
        why = (
            f"no stream {under}is left for this table now"
            if body.get("taken_by")
            else shared.none_yet(prefix)
        )
        output.notice(f"  warning: {why}, so the table stays empty; 'polynya ls' lists the streams")
    else:
        more = ", …" if streams > len(names) else ""
        output.notice(
            f"  it covers {output.counted(streams, 'stream')} now: "
            f"{', '.join(map(output.visible, names))}{more}"
        )
    for other in body.get("taken_by", []):
        output.notice(f"  {shared.table_of(other)} takes the streams under its own, longer prefix")
    for other in body.get("taken_from", []):
        output.notice(
            f"  it takes these streams over from {shared.table_of(other)}, where its rows stay"
        )


@table_command.command("describe")
@click.argument("name", shell_complete=complete_table)
@options.as_json
@server_option
def table_describe_command(client: Client, name: str, as_json: bool) -> None:
    """Show everything about the table NAME: its size, lag, last job, failures and locations.

    \b
    polynya table describe flights
    """
    table = shared.shown(client.call("GET", shared.path_of(name)).json()["table"])
    if as_json:
        output.json_line(table)
        return
    without = table["fields_without_column"]
    rows = {
        "prefix": table["prefix"] or "every stream",
        "derived from": table.get("source") or "no table",
        "tables derived from it": ", ".join(table.get("derived", ())) or "none",
        "streams": table["streams"],
        "rows": table["rows"],
        "dead letters": table["dead_rows"],
        "lag": shared.behind(table),
        "jobs": table["job"],
        "last job took": None if table["job_seconds"] is None else f"{table['job_seconds']:,.1f} s",
        "files": table["files"],
        "bytes": table["bytes"],
        "merges": None
        if table["merges"] is None
        else f"{table['merges']} (of {output.counted(table['files_merged'], 'file')})",
        "ranges failing": table["failing"],
        "ranges set aside": f"{table['ranges_aside']} ({output.counted(table['records_aside'], 'record')})",
        "records trimmed": table["records_trimmed"],
        "records ended": table["records_ended"],
        "fields without a column": None
        if without is None
        else f"{len(without)}{': ' if without else ''}{', '.join(without)}",
        "values without a frame": table.get("unframed_values", 0),
        "partitions": ", ".join(table.get("partitions", ())) or "none",
        "payload": changes.shortened(table.get("payload", "")) or "JSON",
        "keeps": f"{output.counted(table['keep_snapshots'], 'snapshot')}, those of the last "
        f"{spelled_seconds(table['keep_ms'] / 1000)}, and {output.counted(len(table['tags']), 'tag')}",
        "transform": deriving.described(table.get("transform", "")),
        "last fault": table.get("fault") or "none",
        "holds": "yes" if table["hold"] else "no",
        "Iceberg": table["iceberg"] or "no job yet",
        "Delta": table["delta"] or "no job yet",
    }
    for key, value in rows.items():
        click.echo(f"{key:<25}{'unknown' if value is None else output.visible(str(value))}")


@table_command.command("failures")
@click.argument("name", shell_complete=complete_table)
@options.as_json
@server_option
def table_failures_command(client: Client, name: str, as_json: bool) -> None:
    """List the ranges of the table NAME that its jobs could not read, and the reasons.

    After three failures a range is set aside, and jobs continue without it.

    \b
    polynya table failures flights
    """
    failures = client.call("GET", f"{shared.path_of(name)}/failures").json()["failures"]
    heads = ("state", "stream", "record", "records", "failures", "object", "offset", "reason")
    keys = ("state", "stream", "record", "records", "failures", "pack", "offset", "reason")
    nothing = f"table {name} has read all of its ranges"
    output.listing(failures, heads, keys, nothing, as_json=as_json)


@table_command.command("retry")
@click.argument("name", shell_complete=complete_table)
@options.as_json
@server_option
def table_retry_command(client: Client, name: str, as_json: bool) -> None:
    """Put the ranges of the table NAME that were set aside into its next job.

    \b
    polynya table retry flights && polynya table sync flights
    """
    body = client.call("POST", f"{shared.path_of(name)}/retry").json()
    if as_json:
        output.json_line({"table": name, "ranges": body["ranges"]})
    elif body["ranges"]:
        output.notice(
            f"the next job of table {name} reads {output.counted(body['ranges'], 'range')} again"
        )
    else:
        output.notice(f"no range of table {name} is set aside")


@table_command.command("ls")
@options.value(
    "--rows-of STREAM",
    "stream",
    shell_complete=complete_stream,
    help=(
        "Only tables that may have rows of this stream, also of its deleted records: derived ones "
        "first, in the order in which they can be dropped."
    ),
)
@options.as_json
@server_option
def table_ls_command(client: Client, stream: str | None, as_json: bool) -> None:
    """List the tables: their locations in both formats, their size, and their lag behind the
    streams.

    \b
    polynya table ls
    polynya table ls --rows-of rides/17
    polynya table ls --json | jq -r '.[] | .iceberg'
    """
    tables = [shared.shown(table) for table in client.call("GET", "/v1/tables").json()["tables"]]
    if stream is not None:
        tables = shared.with_rows_of(tables, stream)
    heads = (
        "name",
        "prefix",
        "derived from",
        "streams",
        "rows",
        "dead letters",
        "set aside",
        "files",
    )
    keys = ("name", "prefix", "source", "streams", "rows", "dead_rows", "ranges_aside", "files")
    output.listing(
        tables,
        (*heads, "lag", "iceberg", "delta"),
        lambda row: (*(row[key] for key in keys), shared.behind(row), row["iceberg"], row["delta"]),
        f"no table has rows of {stream}"
        if stream is not None
        else "no tables yet: 'polynya table create NAME --prefix PREFIX' creates one",
        as_json=as_json,
    )
    for table in () if as_json else tables:
        for lack in _lacks(table):
            output.notice(f"{table['name']}: {lack}")


def _lacks(table: dict[str, Any]) -> Iterator[str]:
    """Yield the reasons why records are not in a table."""
    if trimmed := table.get("records_trimmed"):
        yield f"{output.counted(trimmed, 'record')} were trimmed before a job read them"
    if ended := table.get("records_ended"):
        yield f"{output.counted(ended, 'record')} ended with their streams before a job read them"
    if aside := table.get("ranges_aside"):
        records = output.counted(table["records_aside"], "record")
        see = f"see 'polynya table failures {table['name']}'"
        yield f"{output.counted(aside, 'range')} set aside ({records}); {see}"


@table_command.command("sync")
@click.argument("tables", nargs=-1, shell_complete=complete_table)
@pipeline.spark_options
@pipeline.verbose_option
@options.as_json
@server_option
def sync_command(
    client: Client, tables: tuple[str, ...], spark: RunnerFactory, verbose: bool, as_json: bool
) -> None:
    """Sync TABLES (default: all) with Spark: they then hold everything acknowledged before the
    command.

    Safe to stop, repeat and run concurrently: every record becomes one row. With the embedded store
    it runs only on the server's machine.

    \b
    polynya table sync
    polynya table sync flights --master spark://HOST:7077 --conf spark.executor.memory=2g
    """
    with shared.explained():
        check_packages()
        from polynya.lakehouse.jobs.worker import TablesFailed, compact

        failed: TablesFailed | None = None
        try:
            with pipeline.stoppable(), steps("requesting a plan") as doing:
                outcomes = compact(
                    shared.coordinator_of(client),
                    tables,
                    spark,
                    pipeline.narrated(doing, verbose=verbose),
                )
        except TablesFailed as fault:
            outcomes, failed = fault.outcomes, fault
    if as_json:
        rows = (
            {
                "table": done.table.name,
                "job": done.job,
                "rows": done.rows,
                "dead_rows": done.dead_rows,
                "files_merged": done.replaced,
            }
            for done in outcomes
        )
        output.json_line(list(rows))
    elif not outcomes and failed is None:
        output.notice("nothing new: the tables have all records that can be read")
    for done in outcomes:
        output.notice(pipeline.outcome_text(done))
    if failed is not None:
        with shared.explained():
            raise failed if len(failed.faults) > 1 else _alone(failed)


def _alone(failed: TablesFailed) -> Exception:
    """Return the fault of the only table that failed, which determines the exit code."""
    ((name, fault),) = failed.faults.items()
    return (
        type(fault)(f"table '{name}': {fault}")
        if type(fault) in (OutcomeUnknown, Unavailable)
        else failed
    )


compact_command = click.Command(
    "compact",
    callback=sync_command.callback,
    params=sync_command.params,
    help=(
        "Sync TABLES (default: all): a second name of 'polynya table sync'.\n\n\b\npolynya "
        "compact flights"
    ),
)


@click.group("lake", cls=CommandGroup)
def lake_command() -> None:
    """Keep tables up to date."""


@lake_command.command("run")
@click.argument("tables", nargs=-1, shell_complete=complete_table)
@options.value(
    "--interval",
    type=SECONDS,
    default="1min",
    help="The time from the start of a sync to the start of the next.",
)
@pipeline.spark_options
@pipeline.verbose_option
@server_option
def lake_run_command(
    client: Client, tables: tuple[str, ...], interval: float, spark: RunnerFactory, verbose: bool
) -> None:
    """Sync TABLES (default: all) repeatedly until SIGTERM or Ctrl-C, in one Spark session.

    'polynya serve --lake-interval 1min' runs this as a child of the server.

    \b
    polynya lake run --interval 30s
    """
    with shared.explained():
        check_pipeline()
        from polynya.lakehouse.jobs.worker import run_worker

        coordinator = shared.coordinator_of(client, secrets.token_hex(8))
        run_worker(
            coordinator,
            tables,
            spark,
            pipeline.step_printer(verbose=verbose),
            interval_seconds=interval,
            leases=coordinator,
        )


@click.command("sql")
@click.argument("query")
@options.flag(
    "--local",
    help="Run the query with DuckDB on this machine, which needs access to the tables' files.",
)
@options.value(
    "--as-of TIME|SNAPSHOT|TAG",
    "as_of",
    default="",
    help="Query the tables as they were at a time, in a snapshot, or in a tagged one.",
)
@options.as_json
@server_option
def sql_command(client: Client, query: str, local: bool, as_of: str, as_json: bool) -> None:
    """Run a SELECT over tables; with --json print a list of rows. '-' reads the query from stdin.

    Each table also exists as NAME__dlq with its dead letters: records that do not fit a column. The
    lag of a table behind its streams is printed on stderr. "offset" is a keyword of SQL: put the
    column in double quotes. The server runs the query and returns at most 10,000 rows. --local has
    no limit and streams large results, with the header every 1,000 rows.

    \b
    polynya sql "select carrier, count(*) from flights group by carrier"
    polynya sql 'select stream, max("offset") from flights group by stream'
    polynya sql --json - < query.sql
    polynya sql --as-of 2026-01-31T09:30:00Z "select count(*) from flights"
    """
    statement = sys.stdin.read() if query == "-" else query
    (_ask_here if local else _ask_server)(client, statement, as_of, as_json=as_json)


def _ask_server(client: Client, statement: str, as_of: str, *, as_json: bool) -> None:
    from polynya.base.limits import SQL_ROWS_MAX

    body = {"sql": statement, "rows": SQL_ROWS_MAX} | ({"as_of": as_of} if as_of else {})
    answer = client.call("POST", "/v1/sql", body=body, seconds=SQL_SECONDS).json()
    columns = [column["name"] for column in answer["columns"]]
    rows = [tuple(row) for row in answer["rows"]]
    _print_rows(columns, iter([rows] if rows else []), as_json=as_json)
    if answer["truncated"]:
        output.notice(
            f"these are the first {len(rows):,} rows; 'polynya sql --local' prints all of them, "
            "where the tables' files can be read"
        )
    for table in () if as_of else answer["tables"]:
        output.notice(f"{table['name']} is {shared.behind(table)}")


def _ask_here(client: Client, statement: str, as_of: str, *, as_json: bool) -> None:
    with shared.explained():
        from polynya.lakehouse.sql.query import ask

        body = client.call("GET", "/v1/tables").json()["tables"]
        tables = shared.coordinator_of(client).tables()
        with ask(tables, statement, as_of=as_of) as found:
            _print_rows(found.columns, found.blocks, as_json=as_json)
    for table in () if as_of else body:
        if re.search(rf"\b{re.escape(table['name'])}(__dlq)?\b", statement, re.IGNORECASE):
            output.notice(f"{table['name']} is {shared.behind(table)}")


def _print_rows(
    columns: list[str], blocks: Iterator[list[tuple[Any, ...]]], *, as_json: bool
) -> None:
    if as_json:
        _print_json(columns, blocks)
        return
    is_empty = True
    for block in blocks:
        is_empty = is_empty and not block
        rows = [[_cell(value) for value in row] for row in block]
        output.table(columns, rows, grouped=False)
    if is_empty:
        output.notice("no rows")


def _print_json(columns: list[str], blocks: Iterator[list[tuple[Any, ...]]]) -> None:
    """Stream a list of objects."""
    import msgspec

    encoder = msgspec.json.Encoder(decimal_format="number", enc_hook=str)
    names = [
        name if name not in columns[:at] else f"{name}_{at + 1}" for at, name in enumerate(columns)
    ]
    before = b"["
    for block in blocks:
        rows = encoder.encode([dict(zip(names, map(_plain, row), strict=True)) for row in block])
        output.data(before + rows[1:-1])
        before = b","
    output.data(b"]\n" if before == b"," else b"[]\n")


def _plain(value: Any) -> Any:
    """Decode bytes as text, and pass integers of any size."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        import msgspec

        return msgspec.Raw(str(value).encode())
    return value


def _cell(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else _plain(value)
