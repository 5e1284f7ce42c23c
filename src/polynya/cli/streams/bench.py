"""`polynya bench`: load a node with appends and tails, measure from the client, and verify
everything that was written."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from polynya.cli.remote.client import Client, server_option
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup
from polynya.cli.terminal.progress import steps
from polynya.cli.terminal.values import SECONDS

if TYPE_CHECKING:
    from polynya.client import AsyncClient, AsyncProducer, AsyncReceipt, AsyncStream, Record

PREFIX = "bench"
SAMPLES_MAX = 1_000_000  # latencies kept; a longer run is sampled evenly
RETRY_SECONDS = 5.0  # longer outages are not measured
RECORD_BYTES_MIN = 48  # size of a record's number and time

seconds_option = options.value(
    "--seconds", type=SECONDS, default="10s", help="Duration of the measurement."
)
size_option = options.value(
    "--size BYTES",
    type=click.IntRange(RECORD_BYTES_MIN, 1 << 20),
    default=256,
    help="Size of a record.",
)
keep_option = options.flag("--keep", help="Keep the streams instead of deleting them.")
json_option = options.json_flag("Print the figures as JSON.")


@click.group("bench", cls=CommandGroup)
def bench_command() -> None:
    """Load a node from this machine, measure it, and verify what it stored.

    Every acknowledged record is read back and must be present once and in order; otherwise the
    command fails. The figures include this client, machine and network. Ctrl-C stops the writing
    and reports the figures so far.

    \b
    polynya bench append --streams 8 --seconds 30s
    polynya bench tail --rate 1000 --readers 10
    """


@bench_command.command("append")
@options.value(
    "--streams",
    type=options.Number(1, 10_000),
    default=4,
    help="Number of streams, each with its own producer.",
)
@seconds_option
@size_option
@options.value(
    "--batch-records",
    type=options.Number(1, 100_000),
    default=1000,
    help="Largest number of records in a request.",
)
@options.value(
    "--in-flight", type=options.Number(1, 64), default=4, help="Requests in flight per producer."
)
@keep_option
@json_option
@server_option
def append_command(
    client: Client,
    streams: int,
    seconds: float,
    size: int,
    batch_records: int,
    in_flight: int,
    keep: bool,
    as_json: bool,
) -> None:
    """Append at the node's maximum rate.

    \b
    polynya bench append
    polynya bench append --batch-records 1 --in-flight 1 --streams 64
    """
    load = BenchLoad(size=size, seconds=seconds, batch_records=batch_records, in_flight=in_flight)
    stop = Stop()

    async def story(
        session: AsyncClient, names: list[str], step: Callable[[str], None]
    ) -> dict[str, Any]:
        step(f"appending to {output.counted(streams, 'stream')}")
        runs = [BenchRun(session.stream(name), stop) for name in names]
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for run in runs:
                group.create_task(run.append(load))
        took = time.monotonic() - began
        step("reading everything back")
        began = time.monotonic()
        for run in runs:
            await run.verify(load)
        records = sum(run.written for run in runs)
        latencies = sorted(latency for run in runs for latency in run.latencies.kept)
        return {
            "records": records,
            "bytes": records * size,
            "requests_repeated": sum(run.repeats for run in runs),
            "seconds": round(took, 3),
            "records_per_second": round(records / took),
            "bytes_per_second": round(records * size / took),
            **_spread("batch_ms", latencies),
            "read_records_per_second": round(records / max(time.monotonic() - began, 1e-6)),
            "verified": records,
        }

    _report(_played(client, streams, story, stop, keep=keep), stop, as_json=as_json)


@bench_command.command("tail")
@options.value(
    "--rate N", type=click.FloatRange(0.1, 100_000), default=100, help="Records per second."
)
@options.value("--readers", type=options.Number(1, 1000), default=4, help="Number of readers.")
@seconds_option
@size_option
@keep_option
@json_option
@server_option
def tail_command(
    client: Client, rate: float, readers: int, seconds: float, size: int, keep: bool, as_json: bool
) -> None:
    """Append at a steady rate, follow with many readers, and measure the latency of each record to
    each reader.

    Latency counts from the time a record was due, so a stall counts for every record that it
    delayed.

    \b
    polynya bench tail
    polynya bench tail --rate 2000 --readers 50 --seconds 1min
    """
    load = BenchLoad(size=size, seconds=seconds, batch_records=1000, in_flight=8, rate=rate)
    stop = Stop()

    async def story(
        session: AsyncClient, names: list[str], step: Callable[[str], None]
    ) -> dict[str, Any]:
        step(f"{output.counted(readers, 'reader')} at {rate:g} records/s")
        run = BenchRun(session.stream(names[0]), stop)
        followers = [Follower(session.stream(names[0])) for _ in range(readers)]
        async with asyncio.TaskGroup() as group:
            for follower in followers:
                group.create_task(follower.follow(load))
            await asyncio.gather(*(follower.ready.wait() for follower in followers))
            began = time.monotonic()
            await run.append(load)
            took = time.monotonic() - began if stop.asked else load.seconds
            await session.stream(names[0]).close()
        for follower in followers:
            if follower.seen != run.written:
                raise Mismatch(
                    f"a reader of '{names[0]}' received {follower.seen:,} of {run.written:,} "
                    "records"
                )
        latencies = sorted(latency for follower in followers for latency in follower.latencies.kept)
        return {
            "records": run.written,
            "readers": readers,
            "requests_repeated": run.repeats,
            "seconds": round(took, 3),
            "records_per_second": round(run.written / took, 1),
            **_spread("latency_ms", latencies),
            "negative": sum(latency <= 0 for latency in latencies),
            "verified": run.written * readers,
        }

    _report(_played(client, 1, story, stop, keep=keep), stop, as_json=as_json)


class Mismatch(exits.Ended):
    """The stored records differ from the acknowledged ones."""


class Stop:
    """Handles Ctrl-C: the first one stops the writing, the second one the process."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self.ask)

    def ask(self) -> None:
        self.asked = True
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


@dataclass(frozen=True)
class BenchLoad:
    """The load to write. `rate` None: as fast as the server accepts."""

    size: int
    seconds: float
    batch_records: int
    in_flight: int
    rate: float | None = None

    def record(self, number: int, due_ns: int) -> dict[str, Any]:
        """Return a record of `size` bytes of JSON; `due_ns` is when it is due."""
        empty = len(f'{{"n":{number},"t":{due_ns},"f":""}}')
        return {"n": number, "t": due_ns, "f": "x" * max(0, self.size - empty)}


@dataclass
class Latencies:
    """Latency samples in ms: all up to `SAMPLES_MAX`, above that every n-th one."""

    kept: list[float] = field(default_factory=list)
    _every: int = 1
    _count: int = 0

    def add(self, ms: float) -> None:
        self._count += 1
        if self._count % self._every:
            return
        self.kept.append(ms)
        if len(self.kept) >= SAMPLES_MAX:
            del self.kept[::2]
            self._every *= 2


class BenchRun:
    """The writing of one stream. `written` records are acknowledged; `latencies` are those of
    batches, from their first record."""

    def __init__(self, stream: AsyncStream, stop: Stop) -> None:
        self._stream = stream
        self._stop = stop
        self.written = 0
        self.repeats = 0
        self.latencies = Latencies()

    async def append(self, load: BenchLoad) -> None:
        """Write until the time is over, and wait until all is durable. Raises `ProducerFailed`."""
        from polynya.client import Batching

        linger = 0.0 if load.batch_records == 1 or load.rate else 0.001
        batching = Batching(
            batch_records=load.batch_records,
            in_flight=load.in_flight,
            linger_seconds=linger,
            buffer_bytes=4 << 20,
        )
        async with (
            self._stream.producer(batching=batching) as producer,
            asyncio.TaskGroup() as group,
        ):
            if load.rate is None:
                await self._fast(load, producer, group)
            else:
                await self._steadily(load, load.rate, producer)
            await producer.flush()
        self.written = producer.applied
        self.repeats = producer.repeats

    async def _fast(
        self, load: BenchLoad, producer: AsyncProducer, group: asyncio.TaskGroup
    ) -> None:
        end = time.monotonic() + load.seconds
        last: AsyncReceipt | None = None
        number = 0
        while (now := time.monotonic()) < end and not self._stop.asked:
            receipt = await producer.append(load.record(number, time.time_ns()))
            if receipt is not last:
                group.create_task(self._note(receipt, now))
                last = receipt
            number += 1

    async def _note(self, receipt: AsyncReceipt, since: float) -> None:
        await receipt
        self.latencies.add(1000 * (time.monotonic() - since))

    async def _steadily(self, load: BenchLoad, rate: float, producer: AsyncProducer) -> None:
        """Send the n-th record at n / rate; overdue records follow at once."""
        began, began_ns = time.monotonic(), time.time_ns()
        for number in range(max(1, int(load.seconds * rate))):
            due = number / rate
            if (early := began + due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            if self._stop.asked:
                break
            await producer.append(load.record(number, began_ns + int(due * 1e9)))

    async def verify(self, load: BenchLoad) -> None:
        """Raise `Mismatch` unless the stream holds all written records once and in order."""
        from polynya.client import START

        seen = 0
        async for record in self._stream.read(START):
            _check(record, seen, load)
            seen += 1
        if seen != self.written:
            raise Mismatch(
                f"'{self._stream.name}' holds {seen:,} records, but {self.written:,} were "
                "acknowledged"
            )


class Follower:
    """One reader. `latencies` run from a record's due time to its arrival."""

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream
        self.ready = asyncio.Event()
        self.seen = 0
        self.latencies = Latencies()

    async def follow(self, load: BenchLoad) -> None:
        """Read until the stream is closed. Raises `Mismatch`."""
        from polynya.client import START

        self.ready.set()
        async with self._stream.tail(START) as reader:
            async for record in reader:
                now_ns = time.time_ns()
                self.latencies.add((now_ns - _check(record, self.seen, load)) / 1e6)
                self.seen += 1


def _check(record: Record, number: int, load: BenchLoad) -> int:
    """Return the time in the record. Raises `Mismatch` if it is not the record written under this
    number."""
    value = record.value
    if value != load.record(number, value.get("t", 0)):
        raise Mismatch(
            f"record {number:,} of '{record.stream}' differs from the written one: "
            f"{record.text[:100]}"
        )
    return int(value["t"])


Story = Callable[["AsyncClient", list[str], Callable[[str], None]], Awaitable[dict[str, Any]]]


def _played(
    client: Client, streams: int, story: Story, stop: Stop, *, keep: bool
) -> dict[str, Any]:
    """Run the story on new streams and return its figures; delete the streams afterwards. Raises
    `exits.Ended`."""
    from polynya.client import AsyncClient, ClientError, Retry

    names = [f"{PREFIX}/{secrets.token_hex(4)}-{number}" for number in range(streams)]

    async def run() -> dict[str, Any]:
        made: list[AsyncStream] = []
        retry = Retry(seconds=RETRY_SECONDS)
        stop.listen()
        async with AsyncClient(
            client.server, token=client.token, verify=client.options.verify, retry=retry
        ) as session:
            with steps("creating streams") as step:
                try:
                    for name in names:
                        await session.stream(name).create()
                        made.append(session.stream(name))
                    return {
                        **await story(session, names, step),
                        **({"streams": names} if keep else {}),
                    }
                finally:
                    step("deleting streams")
                    for stream in () if keep else made:
                        await stream.delete(missing_ok=True)

    try:
        return asyncio.run(run())
    except (ClientError, BaseExceptionGroup) as error:
        raise _ended(error) from None


def _ended(error: BaseException) -> BaseException:
    """Convert a client error to the command's error; take the first of a group."""
    from polynya.client import ClientError, Outcome, Unavailable

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, ClientError):
        return error
    kind = (
        exits.Unknown
        if error.outcome is Outcome.UNKNOWN
        else exits.Unreachable
        if isinstance(error, Unavailable)
        else exits.Refused
    )
    return kind(error.message, code=error.code, request_id=error.request_id)


def _spread(name: str, ordered: list[float]) -> dict[str, float | None]:
    """Return percentiles."""

    def at(part: float) -> float | None:
        return (
            round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3) if ordered else None
        )

    return {f"{name}_p50": at(0.5), f"{name}_p99": at(0.99), f"{name}_max": at(1.0)}


def _report(figures: dict[str, Any], stop: Stop, *, as_json: bool) -> None:
    if as_json:
        output.json_line(figures)
    else:
        for name, figure in figures.items():
            shown = (
                output.size(figure)
                if name.startswith("bytes")
                else f"{figure:,}"
                if isinstance(figure, int | float)
                else figure
            )
            click.echo(f"{name.replace('_', ' '):<26}{shown}")
    if stop.asked:
        output.notice("interrupted: the figures cover the time until then")
        raise click.exceptions.Exit(exits.INTERRUPTED)
