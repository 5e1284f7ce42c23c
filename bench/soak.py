"""A month in ten minutes: log time runs 4,320 times as fast, all data is created and expires, and
nothing may grow. `python -m bench.soak [--minutes M]`.

A real node (`_fast_node`) is written to through its HTTP port, killed and restarted in the
first part of the run. Writers repeat what was not answered, readers follow over restarts; every
record of every stream is checked before the stream is deleted. In the second part memory,
descriptors, journal, objects and what the node counts are compared with each other: what has
grown fails the run."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import msgspec
import psutil
import uvloop

from bench._soak_measures import FIRST_PART, HEADING, MIB, Sample, judge, metric, row, sizes_in
from bench._soak_node import SPEED, Failed, Node

TTL_SECONDS = 6 * 3600  # of log time: five seconds of ours
GENERATIONS = 12  # lives that a flow has in a run
LIFE_SECONDS_MIN = 20.0  # long enough for slices to be merged
# of the flows: these live as long as the run, and are trimmed, one half by their retention, the
# other by hand
RIVERS = 8
TRIM_SECONDS = 1.0
KEEP_BYTES = 32 << 10
RESTARTS = 2  # in the first part, and two more for every five minutes; each other one is a kill
SAMPLES = 60
ROWS = 15
EVENT_BYTES_MAX = 4 * MIB
# what is asked for again and again works within this, or the run has failed
PATIENCE_SECONDS = 120.0
TEXT = "text/plain"


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load of the soak."""

    seconds: float
    flows: int = 64  # streams that are written to without end
    appends_per_second: int = 3000
    record_bytes: int = 512
    tails: int = 8
    guests_per_second: int = 20  # streams with a time to live
    seed: int = 1

    @property
    def life_seconds(self) -> float:
        return max(LIFE_SECONDS_MIN, self.seconds / GENERATIONS)


# --- what is written ------------------------------------------------------------------------------


class Flow:
    """A stream that gets numbers, one a record; when its life is over, one under another name goes
    on."""

    def __init__(self, slot: int, record_bytes: int) -> None:
        self.slot = slot
        self.generation = 0
        self.acknowledged = 0
        self.total = 0  # acknowledged in all lives
        self._sure = True  # nothing is on its way
        # retired names with their lengths
        self.retired: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self._successor = False
        self._rest = b"." * (record_bytes - 12)

    @property
    def is_river(self) -> bool:
        return self.slot < RIVERS

    @property
    def name(self) -> str:
        return f"soak/flow-{self.slot}-{self.generation}"

    def end_life(self) -> None:
        """Note that the stream of the next generation exists."""
        self._successor = True

    @property
    def sure(self) -> bool:
        """Report whether `acknowledged` is the exact length of the stream."""
        return self._sure

    def turn(self) -> None:
        """Finish a retired stream between two appends."""
        if self._successor and self._sure:
            self.retired.put_nowait((self.name, self.acknowledged))
            self.generation += 1
            self.acknowledged = 0
            self._successor = False

    def append(self) -> bytes:
        """Return the request that is due: the same one until it is answered."""
        self._sure = False
        body = b"%012d" % self.acknowledged + self._rest
        return (
            f"POST /v1/stream/{self.name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {TEXT}\r\n"
            "Producer-Id: soak\r\nProducer-Epoch: 0\r\n"
            f"Producer-Seq: {self.acknowledged}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    def answered(self, status: int, body: bytes) -> None:
        if status in (200, 204):
            self.acknowledged += 1
            self.total += 1
            self._sure = True
        elif status != 503:
            raise Failed(f"append {self.acknowledged} to {self.name}: {status} {body!r}")


def check_numbers(data: bytes, end: str, record_bytes: int, what: str) -> tuple[int, int]:
    """Check whole records, each with its number in it; return the first record and the one behind
    the last. `end` is the offset behind `data`."""
    count, odd = divmod(len(data), record_bytes)
    behind = int(end.partition("_")[0])
    numbers = (
        [int(data[at : at + 12]) for at in range(0, len(data), record_bytes)] if not odd else []
    )
    if odd or numbers != list(range(behind - count, behind)):
        raise Failed(
            f"{what}: {len(data)} bytes up to {end} are {numbers[:3]} … {numbers[-3:]}, {odd} "
            "bytes over"
        )
    return behind - count, behind


async def write(node: Node, flows: Sequence[Flow], pause: float, stop: asyncio.Event) -> None:
    """Append once to each flow at a time, all in parallel; unanswered appends are retried."""
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    while not (stop.is_set() and all(flow.sure for flow in flows)):
        began = monotonic()
        for flow in flows:
            flow.turn()
        try:
            if reader is None or writer is None:
                reader, writer = await _connect(node)
            writer.write(b"".join(flow.append() for flow in flows))
            for flow in flows:
                flow.answered(*await _answer(reader))
        except (OSError, EOFError):
            if writer is not None:
                writer.close()
            reader = writer = None
            await asyncio.sleep(0.05)
        await asyncio.sleep(max(0.0, began + pause - monotonic()))
    for flow in flows:
        flow.turn()  # a caller that waits for the end of the stream gets it
    if writer is not None:
        writer.close()


async def _connect(node: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = httpx.URL(node.url)
    return await asyncio.open_connection(url.host, url.port, limit=EVENT_BYTES_MAX)


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
    return int(head[9:12]), await reader.readexactly(int(length[1])) if length else b""


# --- what is read ---------------------------------------------------------------------------------


class Tail:
    """Follows a flow from life to life, as a browser's EventSource: by the id of the last event.
    `records` were checked."""

    def __init__(self, node: Node, flow: Flow, record_bytes: int) -> None:
        self.records = self.resumed = 0
        self._node, self._flow, self._record_bytes = node, flow, record_bytes

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._follow(self._flow.name, stop)

    async def _follow(self, name: str, stop: asyncio.Event) -> None:
        """Follow a stream until it is gone, or until the next record is trimmed."""
        last = ""
        while not stop.is_set():
            with contextlib.suppress(OSError, EOFError):
                reader, writer = await _connect(self._node)
                try:
                    asked = f"GET /v1/stream/{name}?offset=-1&live=sse HTTP/1.0\r\n" + (
                        f"Last-Event-ID: {last}\r\n" if last else ""
                    )
                    writer.write(f"{asked}\r\n".encode())
                    status = int((await reader.readuntil(b"\r\n\r\n"))[9:12])
                    if status in (404, 410):
                        return
                    if status == 200:
                        self.resumed += bool(last)
                        while True:
                            event = await reader.readuntil(b"\n\n")
                            if found := re.match(rb"id:(.*)\nevent: data\ndata:(.*)\n\n", event):
                                first, behind = check_numbers(
                                    found[2],
                                    found[1].decode(),
                                    self._record_bytes,
                                    f"tail of {name}",
                                )
                                if last and first != int(last.partition("_")[0]):
                                    raise Failed(f"tail of {name}: {first} comes after {last}")
                                last = found[1].decode()
                                self.records += behind - first
                finally:
                    writer.close()
            await asyncio.sleep(0.05)


async def read_all(web: httpx.AsyncClient, flow: Flow, name: str, load: Load, length: int) -> int:
    """Count the records of a stream and check each of them. None of the `length` acknowledged ones
    may be missing."""
    count, expected, offset = 0, 0, "-1"
    while True:
        page = await ask(web, "GET", f"/v1/stream/{name}?offset={offset}", good=(200,))
        offset = page.headers["stream-next-offset"]
        first, behind = check_numbers(page.content, offset, load.record_bytes, f"read of {name}")
        if first != expected and not (flow.is_river and not count and first > 0):
            raise Failed(f"read of {name}: {first} comes where {expected} was expected")
        count, expected = count + behind - first, behind
        if "stream-up-to-date" in page.headers:
            break
    if behind != length:
        raise Failed(f"{name} holds records up to {behind}, {length} were acknowledged")
    return count


async def ask(
    web: httpx.AsyncClient,
    method: str,
    path: str,
    *,
    good: tuple[int, ...],
    body: bytes = b"",
    **headers: str,
) -> httpx.Response:
    """Repeat a request until there is an answer that is not "later"; it must be one of `good`."""
    deadline = monotonic() + PATIENCE_SECONDS
    spelled = {name.replace("_", "-"): value for name, value in headers.items()}
    while True:
        with contextlib.suppress(httpx.TransportError):
            answer = await web.request(method, path, content=body, headers=spelled)
            if answer.status_code in good:
                return answer
            if answer.status_code != 503:
                raise Failed(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
        if monotonic() > deadline:
            raise Failed(f"{method} {path}: no answer in {PATIENCE_SECONDS:g} s")
        await asyncio.sleep(0.05)


# --- what is born and goes ------------------------------------------------------------------------


async def keep_life(web: httpx.AsyncClient, flow: Flow, load: Load, stop: asyncio.Event) -> int:
    """Retire the streams of a flow in time: read each as a whole, then delete it. Returns the
    number of checked records."""
    checked = 0
    # the first ones end one after the other, and so do all others
    life = load.life_seconds * (flow.slot + 1) / load.flows
    while not await over(stop, life):
        life = load.life_seconds
        await ask(
            web,
            "PUT",
            f"/v1/stream/soak/flow-{flow.slot}-{flow.generation + 1}",
            good=(200, 201),
            content_type=TEXT,
        )
        if stop.is_set():  # no writer is left
            break
        flow.end_life()
        name, length = await flow.retired.get()
        checked += await read_all(web, flow, name, load, length)
        await ask(web, "DELETE", f"/v1/stream/{name}", good=(204, 404))
    return checked


async def trim(web: httpx.AsyncClient, flow: Flow, stop: asyncio.Event) -> int:
    """Trim all but the last of a river now and then. Returns how many records went."""
    gone = 0
    while not await over(stop, TRIM_SECONDS):
        body = b'{"keep_bytes": %d}' % KEEP_BYTES
        trimmed = await ask(
            web, "POST", f"/v1/stream/{flow.name}/retention", good=(200,), body=body
        )
        gone += trimmed.json()["records"]
    return gone


async def over(stop: asyncio.Event, seconds: float) -> bool:
    """Sleep, but not through the end of the run. Whether that has come."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
    return stop.is_set()


async def invite_guests(
    web: httpx.AsyncClient, flows: Sequence[Flow], load: Load, stop: asyncio.Event
) -> int:
    """Create streams that live six hours, some of them forks, some closed at once; check that they
    go. Returns how many have gone."""
    dice = random.Random(load.seed)
    gone = 0
    waiting: list[tuple[float, str]] = []
    for number in range(1 << 30):
        if stop.is_set():
            return gone
        began = monotonic()
        name = f"/v1/stream/soak/guest-{number}"
        kind = dice.choice(("plain", "plain", "producer", "closed", "fork"))
        more = {"stream_ttl": str(TTL_SECONDS), "content_type": TEXT}
        good: tuple[int, ...] = (200, 201)
        if kind == "fork":  # its source may be gone by now
            more["stream_forked_from"] = f"/v1/stream/{dice.choice(flows).name}"
            good = (200, 201, 404, 409, 410)
        elif kind == "closed":
            more["stream_closed"] = "true"
        made = await ask(
            web, "PUT", name, good=good, body=b"" if kind == "fork" else b"hello", **more
        )
        if kind == "producer":
            for sequence in range(3):
                tuple_ = {
                    "producer_id": "guest",
                    "producer_epoch": "0",
                    "producer_seq": str(sequence),
                }
                await ask(
                    web,
                    "POST",
                    name,
                    good=(200, 204, 404),
                    body=b"x" * 100,
                    content_type=TEXT,
                    **tuple_,
                )
        if made.is_success:
            waiting.append((began + 3 * TTL_SECONDS / SPEED, name))
        while waiting and waiting[0][0] < began:
            _, old = waiting.pop(0)
            await ask(web, "HEAD", old, good=(404,))
            gone += 1
        await asyncio.sleep(max(0.0, began + 1 / load.guests_per_second - monotonic()))
    return gone


async def restart_now_and_then(
    node: Node, web: httpx.AsyncClient, load: Load, outcome: Outcome
) -> None:
    """Kill or stop the node by turns, spread over the first part, and start it each time."""
    restarts = RESTARTS + 2 * int(load.seconds // 300)
    for number in range(restarts):
        await asyncio.sleep(load.seconds * FIRST_PART / (restarts + 1))
        await count(web, outcome)
        await asyncio.to_thread(node.stop, kill=number % 2 == 0)
        began = monotonic()
        node.start()
        await ask(web, "GET", "/readyz", good=(200,))
        outcome.starts.append(monotonic() - began)


async def count(web: httpx.AsyncClient, outcome: Outcome) -> None:
    """Add up what this start of the node has counted."""
    text = (await ask(web, "GET", "/metrics", good=(200,))).text
    for name in COUNTERS:
        outcome.counters[name] = outcome.counters.get(name, 0) + metric(text, name)


async def wait_until_counted(web: httpx.AsyncClient, outcome: Outcome, seconds: float) -> None:
    """Let the load go on until each counter has moved: a slow machine merges late."""
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        text = (await ask(web, "GET", "/metrics", good=(200,))).text
        if all(outcome.counters.get(name, 0) + metric(text, name) for name in COUNTERS):
            return
        await asyncio.sleep(0.5)


# --- the run --------------------------------------------------------------------------------------


class Outcome(msgspec.Struct, kw_only=True):
    """Results of the run."""

    samples: list[Sample] = msgspec.field(default_factory=list)
    starts: list[float] = msgspec.field(default_factory=list)  # seconds to the first answer
    checked: int = 0  # records read as a whole
    tailed: int = 0  # records seen by tails
    resumed: int = 0  # connections of tails that went on where another had ended
    expired: int = 0  # streams
    trimmed: int = 0  # records, by hand
    # of the node, over all its starts
    counters: dict[str, int] = msgspec.field(default_factory=dict)

    def problems(self) -> list[str]:
        """List what grew and which expected events did not happen: a soak without its load must
        not pass."""
        missing = [
            name
            for name in ("checked", "tailed", "resumed", "expired", "trimmed")
            if not getattr(self, name)
        ]
        missing += [name for name, count in self.counters.items() if not count]
        return judge(self.samples) + [f"nothing was counted as {name}" for name in missing]


COUNTERS = (
    "polynya_flush_packs_total",
    "polynya_merge_packs_total",
    "polynya_collect_deleted_total",
    "polynya_snapshots_total",
    "polynya_trims_total",
)


async def soak(folder: Path, load: Load) -> Outcome:
    """Run the load against a node. Raises Failed when the node did something wrong."""
    node, outcome, stop = Node(folder), Outcome(), asyncio.Event()
    flows = [Flow(slot, load.record_bytes) for slot in range(load.flows)]
    tails = [
        Tail(node, flow, load.record_bytes)
        for flow in flows[RIVERS - load.tails // 2 :][: load.tails]
    ]
    node.start()
    try:
        limits = httpx.Limits(max_connections=load.flows + 8)
        async with httpx.AsyncClient(base_url=node.url, timeout=30, limits=limits) as web:
            await ask(web, "GET", "/readyz", good=(200,))
            for flow in flows:
                kept: dict[str, Any] = (
                    {"stream_retention_age": str(TTL_SECONDS)}
                    if flow.is_river and flow.slot % 2
                    else {}
                )
                await ask(
                    web,
                    "PUT",
                    f"/v1/stream/{flow.name}",
                    good=(200, 201),
                    content_type=TEXT,
                    **kept,
                )
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(write(node, flows, load.flows / load.appends_per_second, stop))
                lives = [
                    tasks.create_task(keep_life(web, flow, load, stop)) for flow in flows[RIVERS:]
                ]
                trims = [tasks.create_task(trim(web, flow, stop)) for flow in flows[:RIVERS:2]]
                guests = tasks.create_task(invite_guests(web, flows, load, stop))
                following = [tasks.create_task(tail.run(stop)) for tail in tails]
                restarts = tasks.create_task(restart_now_and_then(node, web, load, outcome))
                await watch(node, web, flows, load, outcome)
                await restarts
                await wait_until_counted(web, outcome, 3 * load.seconds)
                stop.set()
                outcome.checked = sum([await life for life in lives])
                outcome.expired = await guests
                outcome.trimmed = sum([await each for each in trims])
                for task in following:
                    task.cancel()
            await count(web, outcome)
            for flow in flows:
                outcome.checked += await read_all(web, flow, flow.name, load, flow.acknowledged)
        outcome.tailed, outcome.resumed = (
            sum(getattr(tail, name) for tail in tails) for name in ("records", "resumed")
        )
    finally:
        node.stop(kill=True)
    return outcome


async def sample(node: Node, web: httpx.AsyncClient, flows: Sequence[Flow], began: float) -> Sample:
    text = (await ask(web, "GET", "/metrics", good=(200,))).text
    core = node.cores()[0]
    sizes = await asyncio.to_thread(sizes_in, node.data)
    journal = sum(size for path, size in sizes.items() if "/journal/" in path)
    return Sample(
        seconds=monotonic() - began,
        appends=sum(flow.total for flow in flows),
        resident=core.memory_info().rss,
        files=core.num_fds(),
        journal=journal,
        disk=sum(sizes.values()) - journal,
        objects=sum("/objects/" in path for path in sizes),
        streams=metric(text, "polynya_streams"),
        slices=metric(text, "polynya_index_slices"),
        hot=metric(text, "polynya_hot_bytes"),
        cache=metric(text, "polynya_cache_bytes"),
    )


async def watch(
    node: Node, web: httpx.AsyncClient, flows: Sequence[Flow], load: Load, outcome: Outcome
) -> None:
    """Take samples, and print some of them."""
    began = monotonic()
    print(HEADING, flush=True)
    shown: Sample | None = None
    for number in range(1, SAMPLES + 1):
        await asyncio.sleep(max(0.0, began + number * load.seconds / SAMPLES - monotonic()))
        with contextlib.suppress(psutil.Error, IndexError):  # it is just being restarted
            now = await sample(node, web, flows, began)
            outcome.samples.append(now)
            if number % (SAMPLES // ROWS) == 0:
                print(row(shown or outcome.samples[0], now), flush=True)
                shown = now


def report(outcome: Outcome) -> None:
    print(
        f"\n{outcome.samples[-1].appends:,} appends; {outcome.checked:,} records read back, "
        f"{outcome.tailed:,} followed, {outcome.resumed} resumptions; "
        f"{outcome.expired:,} streams seen to expire, {outcome.trimmed:,} records trimmed by "
        f"hand; {len(outcome.starts)} restarts, answering after "
        f"{', '.join(f'{seconds:.1f}' for seconds in outcome.starts)} s; "
        + ", ".join(
            f"{name.removeprefix('polynya_').removesuffix('_total')} {count:,}"
            for name, count in outcome.counters.items()
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=3000, help="appends per second")
    parser.add_argument(
        "--folder", type=Path, help="where data goes; a temporary folder by default"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    load = Load(seconds=options.minutes * 60, appends_per_second=options.rate)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            outcome = runner.run(soak(folder, load))
    except (Failed, ExceptionGroup) as failure:
        wrong, other = (
            failure.split(Failed) if isinstance(failure, ExceptionGroup) else (failure, None)
        )
        if other is not None:
            raise
        for each in wrong.exceptions if isinstance(wrong, ExceptionGroup) else (wrong,):
            print(f"FAILED: {each}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(outcome)
    problems = outcome.problems()
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    print("FAILED" if problems else "nothing grew")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
