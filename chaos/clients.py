"""The clients: writers that never repeat, producers that repeat until they are answered, readers,
and tails that go from node to node."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from random import Random
from typing import Any

from chaos.history import FAIL, OK, Append, History, Piece, Read, Tail
from chaos.wire import Answer, Connection, Lost, Unsent

KEYED_SHARE = 0.25  # of the appends that no producer numbers
ASK_SECONDS = 12.0  # longer than a node lets a request wait for a leader
# some producers then switch to another node: two requests may be in flight, and the time without
# any response is measured
HASTY_SECONDS = 0.7
# of a tail: nodes say that they are there more often when there is nothing else
SILENCE_SECONDS = 10.0
BACK_SECONDS = 3000  # records that a reader goes back at most
PAUSE_SECONDS = 0.05  # before something is tried again
JSON = "application/json"
LEASED = {"Stream_Profile": "leased", "Stream_Segment_Records": "30"}  # about a second's records
Address = tuple[str, int]


class Wrong(Exception):
    """An answer that no fault explains."""


class Later(Wrong):
    """Raised when the node says that it cannot answer now."""


class _Lines(dict[int, Connection]):
    """One client's connections, to the nodes that there are."""

    def __init__(self, clients: Clients) -> None:
        super().__init__()
        self._clients = clients

    def any(self, draw: Random, but: int = 0) -> int:
        """Draw a node that serves, another one if there is; nodes come and go."""
        there = list(self._clients.addresses)
        node = draw.choice([number for number in there if number != but] or there)
        if node not in self:
            self[node] = self._clients.connect(node)
        return node

    def close(self) -> None:
        for connection in self.values():
            connection.close()


class Clients:
    """All HTTP clients and their responses. `now` is the clock of the history; `addresses`: the
    current address of each node, by number. `leased`: the streams that are chains of segments."""

    def __init__(
        self,
        addresses: dict[int, Address],
        streams: list[str],
        seed: int,
        now: Callable[[], float],
        leased: Sequence[str] = (),
    ) -> None:
        self.history = History()
        self.addresses, self.streams, self.seed, self.now = addresses, streams, seed, now
        self.leased = leased
        self.hasty = set(streams[::2])  # streams with a producer that soon asks another node
        self.wrong: list[str] = []
        self.last_ok = dict.fromkeys(streams, now())  # when an append to each was acknowledged
        self.pauses: list[
            tuple[float, str]
        ] = []  # how long no append to a stream was acknowledged, where that was long
        self._stopping = asyncio.Event()
        self._tails_stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._tail_tasks: list[asyncio.Task[None]] = []
        self._known: dict[str, int] = dict.fromkeys(streams, 0)  # a position that was seen

    async def create(self) -> None:
        """Create all streams. Raises Wrong."""
        connection = self.connect(min(self.addresses))
        for stream in self.streams:
            headers: dict[str, Any] = LEASED if stream in self.leased else {}
            for _ in range(100):
                try:
                    answer = await connection.ask(
                        "PUT",
                        f"/v1/stream/{stream}",
                        seconds=ASK_SECONDS,
                        Content_Type=JSON,
                        **headers,
                    )
                except (Lost, Unsent):
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                if answer.status in (200, 201):
                    break
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                raise Wrong(f"{stream} cannot be created")
        connection.close()

    def start(self, *, pause: float) -> None:
        """Start two writers and a producer for each stream, two readers and a tail by each way for
        all; `pause` between two appends of one."""
        for number, stream in enumerate(self.streams):
            self._spawn(self._write(f"w{number}a", stream, pause))
            self._spawn(self._write(f"w{number}b", stream, pause))
            self._spawn(self._produce(f"p{number}", stream, pause))
            for kind in ("sse", "long-poll") if number % 3 == 0 else ("sse",):
                tail = Tail(f"t{number}-{kind}", stream, kind)
                self.history.tails.append(tail)
                self._tail_tasks.append(asyncio.create_task(self._watched(self._follow(tail))))
        for number in range(3):
            self._spawn(self._read(number))

    async def stop(self) -> None:
        """Stop writers and readers after their current request; the tails follow until `finish`."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def finish(self, final: dict[str, list[str]], seconds: float) -> None:
        """Stop the tails once they have everything, or at the timeout."""
        deadline = self.now() + seconds
        while self.now() < deadline and not all(
            _reached(tail) >= len(final.get(tail.stream, ())) for tail in self.history.tails
        ):
            await asyncio.sleep(0.1)
        self._tails_stopping.set()
        for task in self._tail_tasks:
            task.cancel()
        await asyncio.gather(*self._tail_tasks, return_exceptions=True)

    async def read_all(self, node: int, stream: str, *, local: bool = False) -> list[str]:
        """Read a stream through one node. Raises Lost, Unsent, Later, Wrong."""
        return await read_all(self.connect(node), stream, local=local)

    async def rollovers(self, node: int) -> int:
        """Return the rollovers of all leased streams, as one node reports them. Raises Lost,
        Unsent, Wrong."""
        found = 0
        with closing(self.connect(node)) as connection:
            for stream in self.leased:
                path = f"/v1/segments/{stream}"
                answer = await connection.ask("GET", path, seconds=ASK_SECONDS)
                if answer.status != 200:
                    raise Wrong(f"{path}: {answer.status} {answer.body!r}")
                found += json.loads(answer.body)["rollovers"]
        return found

    def connect(self, node: int) -> Connection:
        return Connection(*self.addresses[node])

    def longest_pause(self) -> float:
        """Return the longest pause without an acknowledged append to any stream."""
        return max((seconds for seconds, _ in self.pauses), default=0.0)

    # --- writing ----------------------------------------------------------------------------------

    def _append(
        self, stream: str, writer: str, number: int, count: int, *, produced: bool = False
    ) -> Append:
        append = Append(
            stream,
            writer,
            number,
            [f"{writer}.{number}.{part}" for part in range(count)],
            self.now(),
            produced=produced,
        )
        self.history.appends.append(append)
        return append

    async def _write(self, writer: str, stream: str, pause: float) -> None:
        """Append each batch once, by any node; some with a key, which makes a Kafka batch of it. An
        older node does not know of keys, and a newer one refuses them until all are new."""
        draw = Random(f"{writer} {self.seed}")
        connections = _Lines(self)
        for number in itertools.count():
            if self._stopping.is_set():
                break
            node = connections.any(draw)
            append = self._append(stream, writer, number, draw.choice((1, 1, 3)))
            fields = {"Record_Key": writer} if draw.random() < KEYED_SHARE else {}
            try:
                answer = await connections[node].ask(
                    "POST",
                    f"/v1/stream/{stream}",
                    json.dumps(append.records).encode(),
                    seconds=ASK_SECONDS,
                    Content_Type=JSON,
                    **fields,
                )
            except Unsent:
                append.outcome, append.ended, append.by = FAIL, self.now(), node
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            except Lost:
                continue
            append.by = node
            self._judge(append, answer)
            await asyncio.sleep(draw.expovariate(1 / pause))
        connections.close()

    def _judge(self, append: Append, answer: Answer) -> bool:
        """Report whether the append is acknowledged."""
        now = self.now()
        outcome = answer.headers.get("stream-outcome")
        if answer.status in (200, 204):
            append.outcome, append.ended = OK, now
            if answer.status == 204 and append.produced:
                return True  # a repeat is told the end of the stream
            self._acknowledged(append, _position(answer))
            return True
        if outcome not in ("refused", "unknown") or answer.status not in (503, 507, 429):
            self.wrong.append(f"{append.stream}: node {append.by} answers an append with {answer}")
        if outcome == "refused" and not append.produced:
            append.outcome, append.ended = FAIL, now
        return False

    def _acknowledged(self, append: Append, end: int | None) -> None:
        append.end = end
        pause = append.ended - self.last_ok[append.stream]
        if pause > 1.0:
            self.pauses.append((pause, append.stream))
        self.last_ok[append.stream] = append.ended
        self._known[append.stream] = max(self._known[append.stream], end or 0)

    async def _produce(self, writer: str, stream: str, pause: float) -> None:
        """Send each batch until it is answered, by one node after the other; in haste where the
        stream is one of `hasty`."""
        draw = Random(f"{writer} {self.seed}")
        connections, patience = _Lines(self), HASTY_SECONDS if stream in self.hasty else ASK_SECONDS
        for number in itertools.count():
            if self._stopping.is_set():
                break
            append = self._append(stream, writer, number, draw.choice((1, 2)), produced=True)
            named = {
                "Producer_Id": writer,
                "Producer_Epoch": "0",
                "Producer_Seq": str(number),
                "Content_Type": JSON,
            }
            while not self._stopping.is_set():
                append.by = connections.any(draw, but=append.by if stream in self.hasty else 0)
                try:
                    body = json.dumps(append.records).encode()
                    answer = await connections[append.by].ask(
                        "POST", f"/v1/stream/{stream}", body, seconds=patience, **named
                    )
                except (Lost, Unsent):
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                if self._judge(append, answer):
                    break
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(draw.expovariate(1 / pause))
        connections.close()

    # --- reading ----------------------------------------------------------------------------------

    async def _read(self, number: int) -> None:
        """Read from a seen position to the end of some stream, through any node."""
        draw = Random(f"reader {number} {self.seed}")
        connections = _Lines(self)
        while not self._stopping.is_set():
            node, stream = connections.any(draw), draw.choice(self.streams)
            known, began = self._known[stream], self.now()
            begin = max(0, known - draw.choice((0, 10, 100, BACK_SECONDS)))
            whole = draw.random() < 0.3
            try:
                if whole:
                    answer = await connections[node].ask(
                        "HEAD", f"/v1/stream/{stream}", seconds=ASK_SECONDS
                    )
                else:
                    answer = await connections[node].ask(
                        "GET", f"/v1/stream/{stream}?offset={offset(begin)}", seconds=ASK_SECONDS
                    )
            except (Lost, Unsent):
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self._heard(node, stream, began, None if whole else begin, answer)
            await asyncio.sleep(draw.expovariate(1 / 0.05))
        connections.close()

    def _heard(
        self, node: int, stream: str, began: float, begin: int | None, answer: Answer
    ) -> None:
        """Check an answer to a GET from `begin` on, or to a HEAD."""
        if answer.status == 503:
            return
        if answer.status != 200:
            self.wrong.append(f"{stream}: node {node} answers a read from {begin} on with {answer}")
            return
        end = _position(answer)
        if end is None:
            self.wrong.append(
                f"{stream}: node {node} answers a read without saying where it ends: {answer}"
            )
            return
        records = json.loads(answer.body) if begin is not None else []
        if begin is not None and begin + len(records) != end:
            self.wrong.append(
                f"{stream}: node {node} gives {len(records)} records from {begin} on and says {end}"
            )
        up_to_date = begin is None or answer.headers.get("stream-up-to-date") == "true"
        self.history.reads.append(
            Read(stream, node, began, self.now(), end - len(records), records, up_to_date)
        )
        self._known[stream] = max(self._known[stream], end)

    # --- following --------------------------------------------------------------------------------

    async def _follow(self, tail: Tail) -> None:
        """Follow the tail endlessly, after each connection on another node."""
        draw = Random(f"{tail.name} {self.seed}")
        node = draw.choice(list(self.addresses))
        while not self._tails_stopping.is_set():
            connection = self.connect(node)
            try:
                if tail.kind == "sse":
                    await self._events(tail, node, connection)
                else:
                    await self._polls(tail, node, connection)
            except (Lost, Unsent):
                pass
            finally:
                connection.close()
            await asyncio.sleep(PAUSE_SECONDS)
            # one that is there now
            node = draw.choice([each for each in self.addresses if each != node])

    async def _events(self, tail: Tail, node: int, connection: Connection) -> None:
        began, begin = self.now(), _reached(tail)
        stream = connection.stream(
            f"/v1/stream/{tail.stream}?offset={offset(begin)}&live=sse", seconds=SILENCE_SECONDS
        )
        text, records, is_first = "", list[str](), True
        async for piece in stream:
            if isinstance(piece, Answer):
                if piece.status != 200:
                    self._refused(tail, node, begin, piece)
                    return
                continue
            text += piece.decode()
            *events, text = text.split("\n\n")
            for event in events:
                name, data = _parsed(event)
                if name == "data":
                    records += json.loads(data)
                elif name == "control":
                    control = json.loads(data)
                    if control.get("upToDate") and is_first:  # the opening is linearizable
                        is_first = False
                        self.history.reads.append(
                            Read(tail.stream, node, began, self.now(), begin, [], whole=False)
                        )
                        self.history.reads[-1] = Read(
                            tail.stream,
                            node,
                            began,
                            self.now(),
                            _number(control["streamNextOffset"]),
                            [],
                        )
                    tail.pieces.append(
                        Piece(node, begin, records, _number(control["streamNextOffset"]))
                    )
                    begin, records = _number(control["streamNextOffset"]), []

    async def _polls(self, tail: Tail, node: int, connection: Connection) -> None:
        for _ in range(20):
            begin = _reached(tail)
            target = f"/v1/stream/{tail.stream}?offset={offset(begin)}&live=long-poll"
            answer = await connection.ask("GET", target, seconds=30.0)
            if answer.status == 204:
                return
            if answer.status != 200:
                self._refused(tail, node, begin, answer)
                return
            end = _position(answer)
            tail.pieces.append(
                Piece(node, begin, json.loads(answer.body), -1 if end is None else end)
            )

    def _refused(self, tail: Tail, node: int, begin: int, answer: Answer) -> None:
        if answer.status != 503:
            self.wrong.append(
                f"{tail.stream}: node {node} answers tail {tail.name} from {begin} on with {answer}"
            )

    # --- tasks ------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(self._watched(work)))

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as fault:
            self.wrong.append(f"a client ended with {fault!r}")


def offset(position: int) -> str:
    """Format an offset by its number, which decides; the byte position need not be known."""
    return f"{position:016d}_{0:016d}"


def _number(token: str) -> int:
    return int(token.partition("_")[0])


async def read_all(connection: Connection, stream: str, *, local: bool = False) -> list[str]:
    """Read all records from the first to the last, or to the last that this node's replica has
    (`local`), then close the connection. Raises Lost, Unsent, Later, Wrong."""
    records: list[str] = []
    try:
        while True:
            target = (
                f"/v1/stream/{stream}?offset={offset(len(records))}" + "&consistency=local" * local
            )
            answer = await connection.ask("GET", target, seconds=60.0)
            if answer.status != 200:
                raise (Later if answer.status == 503 else Wrong)(
                    f"{connection} answers {answer} for {target}"
                )
            more = json.loads(answer.body)
            records += more
            if not more if local else answer.headers.get("stream-up-to-date") == "true":
                return records
    finally:
        connection.close()


def _position(answer: Answer) -> int | None:
    token = answer.headers.get("stream-next-offset")
    return None if token is None else _number(token)


def _reached(tail: Tail) -> int:
    return tail.pieces[-1].resume_at if tail.pieces else 0


def _parsed(event: str) -> tuple[str, str]:
    name, data = "", []
    for line in event.split("\n"):
        field, _, value = line.partition(":")
        if field == "event":
            name = value.strip()
        elif field == "data":
            data.append(value.removeprefix(" "))
    return name, "\n".join(data)
