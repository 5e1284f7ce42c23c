"""A node, or a cluster of three, under clients of all kinds: those that know what must be answered
(Keeper), and those that want no good (Vandal).

Each keeper has streams of its own and a model of them, and sends its requests framed in all ways
that HTTP allows: in pieces, chunked, in pipelines, half-closed, and now and then gone before the
answer. Vandals send what fuzz/requests.py makes of a seed.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fuzz.bytes import Outcome, damaged
from fuzz.cluster import fuzz_cluster
from fuzz.play import Cores, Wrong, play_all
from fuzz.requests import body, chunked, large, request
from product import running_node

from polynya.front.http.protocol.errors import ERRORS

PATIENCE_SECONDS = 40.0  # for an answer: beyond it is a hang
KEEPERS, VANDALS = 3, 3
SITTERS_MAX = 60
QUIET_SECONDS = 0.5
MAY_FAIL = frozenset({"NO_SQL", "HTTP_VERSION"})  # with a 5xx, whatever the client did
NOT_NOW = frozenset({"UNAVAILABLE", "OUTCOME_UNKNOWN", "CLUSTER_STARTING"})  # in a cluster
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")


class Line:
    """A connection. `read` takes one answer; Wrong when none comes."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def send(self, data: bytes, chance: random.Random) -> None:
        """Send in pieces now and then. The server may have closed the connection."""
        with contextlib.suppress(ConnectionError):
            if chance.random() < 0.7 or len(data) > 5000:
                self.socket.sendall(data)
                return
            cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((1, 2, 5))))
            for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                self.socket.sendall(data[begin:end])

    def read(self, method: str) -> tuple[int, dict[str, str], bytes] | None:
        """Read a response. None at the end."""
        try:
            return self._read(method)
        except TimeoutError:
            raise Wrong(
                f"no answer within {PATIENCE_SECONDS:g} s; so far {self.buffer[:300]!r}"
            ) from None

    def _read(self, method: str) -> tuple[int, dict[str, str], bytes] | None:
        while True:
            while b"\r\n\r\n" not in self.buffer:
                if not self._more():
                    if self.buffer:
                        raise Wrong(f"half a head: {self.buffer[:300]!r}")
                    return None
            head, _, rest = self.buffer.partition(b"\r\n\r\n")
            match = _STATUS.match(head + b"\r\n")
            if match is None:
                raise Wrong(f"no answer of HTTP: {head[:300]!r}")
            status = int(match[1])
            headers = {}
            for line in head.decode("latin-1").split("\r\n")[1:]:
                name, colon, value = line.partition(": ")
                if not colon and not line.endswith(":"):
                    raise Wrong(f"no header: {line!r}")
                headers[name.lower()] = value
            self.buffer = rest
            if status != 100:
                return status, headers, self._body(method, status, headers)

    def _body(self, method: str, status: int, headers: dict[str, str]) -> bytes:
        if method == "HEAD" or status in (204, 304):
            return b""
        if headers.get("transfer-encoding") == "chunked":
            found = b""
            while True:
                size = int(self._until(b"\r\n").partition(b";")[0], 16)
                found += self._exactly(size + 2)[:-2]
                if not size:
                    return found
        if "content-length" in headers:
            return self._exactly(int(headers["content-length"]))
        while self._more():
            pass
        found, self.buffer = self.buffer, b""
        return found

    def _until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            if not self._more():
                raise Wrong("an answer that ends in the midst")
        found, _, self.buffer = self.buffer.partition(mark)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            if not self._more():
                raise Wrong("an answer that ends in the midst")
        found, self.buffer = self.buffer[:size], self.buffer[size:]
        return found

    def _more(self) -> bool:
        try:
            piece = self.socket.recv(65_536)
        except ConnectionError:
            return False
        self.buffer += piece
        return bool(piece)

    def close(self) -> None:
        self.socket.close()


def judge(status: int, headers: dict[str, str], content: bytes, allowed: frozenset[str]) -> None:
    """Check the rules for every response. Raises Wrong."""
    if any("evil" in name for name in headers):
        raise Wrong(f"a header that the client has put in: {headers}")
    if status < 400:
        return
    code = ""
    if content:
        try:
            document = json.loads(content)
            if status == 503 and "failed" in document:  # of /health and /readyz
                return
            code = document["error"]["code"]
        except (ValueError, KeyError, TypeError):
            raise Wrong(f"{status} with a body that is no error: {content[:300]!r}") from None
        if ERRORS[code].status != status if code in ERRORS else status >= 500:
            raise Wrong(f"{status} with the code {code}")
    if status >= 500 and code not in allowed and content:
        raise Wrong(f"{status} {code}: {content[:300]!r}")
    if status == 500:
        raise Wrong("500")


class Stream:
    """The keeper's record of one stream: acknowledged `records`, and `maybe`, the unconfirmed last
    append."""

    def __init__(self, name: str, *, is_json: bool) -> None:
        self.name, self.is_json = name, is_json
        self.records: list[bytes] = []
        self.maybe: list[bytes] | None = None
        self.closed = False
        self.sequence = -1

    @property
    def type(self) -> str:
        return "application/json" if self.is_json else "text/plain"

    def token(self, count: int) -> str:
        size = sum(len(record) + self.is_json for record in self.records[:count])
        return f"{count:016d}_{size:016d}"

    def body(self, records: list[bytes]) -> bytes:
        return b"[" + b",".join(records) + b"]" if self.is_json else b"".join(records)


class Keeper:
    """One client with a model."""

    def __init__(
        self, chance: random.Random, number: int, urls: list[str], allowed: frozenset[str]
    ) -> None:
        self.chance, self.number, self.urls, self.allowed = chance, number, urls, allowed
        self.counts: Counter[str] = Counter()
        self.streams: list[Stream] = []
        self._line: Line | None = None
        self._appended = 0

    def act(self) -> None:
        """Create a stream, check one as a whole, or send requests to one. Raises Wrong."""
        chance = self.chance
        if not self.streams or (len(self.streams) < 6 and chance.random() < 0.02):
            self._create()
            return
        stream = chance.choice(self.streams)
        if stream.maybe is not None:
            self._finish(stream)
            return
        act: Callable[[Stream], None] = chance.choice(
            (
                self._append,
                self._append,
                self._append,
                self._pipeline,
                self._produce,
                self._read,
                self._read,
                self._head,
                self._leave,
                self._poll,
            )
        )
        act(stream)
        self.counts[act.__name__.strip("_")] += 1
        if len(stream.records) > 400 or chance.random() < 0.003:
            self._finish(stream)

    def finish(self) -> None:
        """Check the full content of every stream."""
        for stream in list(self.streams):
            self._finish(stream)

    def _ask(
        self, method: str, path: str, content: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request on an open connection or a new one, and retry a temporary refusal."""
        while True:
            status, found, answer = self._once(method, path, content, headers)
            if status != 503 or found.get("stream-outcome") != "refused":
                return status, found, answer
            self.counts["refused for now"] += 1

    def _once(
        self, method: str, path: str, content: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        chance = self.chance
        if self._line is None or chance.random() < 0.2:
            self.hang_up()
            self._line = Line(chance.choice(self.urls))
        ends = chance.random() < 0.1
        self._line.send(self.framed(method, path, content, ends=ends, **headers), chance)
        # who waits for others is then taken to be gone
        if ends and "live=" not in path and chance.random() < 0.5:
            self._line.socket.shutdown(socket.SHUT_WR)
        found = self._line.read(method)
        if found is None:
            raise Wrong(f"{method} {path}: the connection ended without an answer")
        if ends or found[1].get("connection") == "close":
            self.hang_up()
        judge(*found, self.allowed)
        return found

    def hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def framed(
        self,
        method: str,
        path: str,
        content: bytes,
        *,
        ends: bool = False,
        plain: bool = False,
        **headers: str,
    ) -> bytes:
        chance = self.chance
        old = ends and not plain and chance.random() < 0.3
        lines = [f"{method} {path} HTTP/1.{0 if old else 1}", "Host: localhost"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if ends and not old:
            lines.append("Connection: close")
        if content and not old and chance.random() < 0.3:
            lines.append("Transfer-Encoding: chunked")
            content = chunked(chance, content, broken=False)
        elif content:
            lines.append(f"Content-Length: {len(content)}")
        return "\r\n".join([*lines, "", ""]).encode() + content

    # --- what it does -----------------------------------------------------------------------------

    def _create(self) -> None:
        stream = Stream(
            f"keep/{self.number}-{self.chance.randrange(2**40):x}",
            is_json=self.chance.random() < 0.7,
        )
        status, headers, content = self._ask(
            "PUT", f"/v1/stream/{stream.name}", Content_Type=stream.type
        )
        self._must(
            status in (200, 201) and headers["stream-next-offset"] == stream.token(0),
            status,
            content,
        )
        self.streams.append(stream)

    def _records(self, stream: Stream) -> list[bytes]:
        chance = self.chance
        self._appended += 1
        mark = f"{self.number}.{self._appended}".encode()
        if not stream.is_json:
            return [mark + b":" + b"x" * chance.choice((0, 5, 300, 20_000)) + b"\n"]
        count = chance.choice((1, 1, 1, 3, 50))
        return [
            b'{"k":"%b.%d","v":"%b"}' % (mark, at, b"y" * chance.choice((0, 5, 300)))
            for at in range(count)
        ]

    def _append(self, stream: Stream) -> None:
        records = self._records(stream)
        status, headers, content = self._ask(
            "POST", f"/v1/stream/{stream.name}", stream.body(records), Content_Type=stream.type
        )
        if self._unknown(stream, status, headers, records):
            return
        stream.records += records
        self._must(
            status == 204 and headers["stream-next-offset"] == stream.token(len(stream.records)),
            status,
            headers,
            content,
        )

    def _unknown(
        self, stream: Stream, status: int, headers: dict[str, str], records: list[bytes]
    ) -> bool:
        unknown = status == 503 and headers.get("stream-outcome") == "unknown"
        if unknown:
            stream.maybe = records
            self.counts["unknown"] += 1
        return unknown

    def _pipeline(self, stream: Stream) -> None:
        """Send many appends at once; each is answered, in order."""
        self.hang_up()
        line = Line(self.chance.choice(self.urls))
        batches = [self._records(stream) for _ in range(self.chance.choice((2, 5, 30)))]
        path = f"/v1/stream/{stream.name}"
        data = b"".join(
            self.framed("POST", path, stream.body(batch), plain=True, Content_Type=stream.type)
            for batch in batches
        )
        data += self.framed("HEAD", path, b"", plain=True)
        line.send(data, self.chance)
        for batch in batches:
            found = line.read("POST")
            self._must(found is not None, "a pipeline ended early")
            assert found is not None
            judge(*found, self.allowed)
            if found[0] == 204:
                stream.records += batch
                self._must(
                    found[1]["stream-next-offset"] == stream.token(len(stream.records)),
                    found,
                    stream.token(len(stream.records)),
                )
            else:
                self._must(found[0] == 503 and found[1].get("stream-outcome") == "refused", found)
        found = line.read("HEAD")
        line.close()
        self._must(
            found is not None
            and (
                found[0] == 503
                or found[1]["stream-next-offset"] == stream.token(len(stream.records))
            ),
            found,
        )

    def _produce(self, stream: Stream) -> None:
        """Append as an idempotent producer that repeats itself."""
        records = self._records(stream)
        sequence = stream.sequence + 1
        who = {
            "Producer_Id": "p",
            "Producer_Epoch": "0",
            "Producer_Seq": str(sequence),
            "Content_Type": stream.type,
        }
        taken = False
        for _ in range(self.chance.choice((1, 2, 3))):
            status, headers, content = self._ask(
                "POST", f"/v1/stream/{stream.name}", stream.body(records), **who
            )
            while status == 503:
                status, headers, content = self._ask(
                    "POST", f"/v1/stream/{stream.name}", stream.body(records), **who
                )
            if not taken:
                stream.records += records
                stream.sequence, taken = sequence, True
            self._must(
                status in (200, 204) and headers["producer-seq"] == str(sequence),
                status,
                headers,
                content,
            )
        gap = {**who, "Producer_Seq": str(sequence + 5)}
        status, headers, content = self._ask(
            "POST", f"/v1/stream/{stream.name}", stream.body(records), **gap
        )
        self._must(
            status == 409 and headers["producer-expected-seq"] == str(sequence + 1),
            status,
            headers,
            content,
        )

    def _leave(self, stream: Stream) -> None:
        """Send an append, and leave before the answer, or before all was sent."""
        records = self._records(stream)
        line = Line(self.chance.choice(self.urls))
        data = self.framed(
            "POST",
            f"/v1/stream/{stream.name}",
            stream.body(records),
            plain=True,
            Content_Type=stream.type,
        )
        whole = self.chance.random() < 0.6
        line.send(data if whole else data[: self.chance.randrange(len(data))], self.chance)
        line.close()
        if whole:
            stream.maybe = records

    def _read(self, stream: Stream) -> None:
        at = self.chance.randrange(len(stream.records) + 1)
        status, headers, content = self._ask(
            "GET", f"/v1/stream/{stream.name}?offset={stream.token(at)}"
        )
        self._must(
            status == 200 and content == stream.body(stream.records[at:]),
            status,
            headers,
            content[:200],
            at,
        )
        self._must(headers["stream-next-offset"] == stream.token(len(stream.records)), headers)
        if "etag" in headers:
            again = self._ask(
                "GET",
                f"/v1/stream/{stream.name}?offset={stream.token(at)}",
                If_None_Match=headers["etag"],
            )
            self._must(again[0] == 304, again)

    def _poll(self, stream: Stream) -> None:
        at = self.chance.randrange(len(stream.records) + 1)
        status, headers, content = self._ask(
            "GET",
            f"/v1/stream/{stream.name}?offset={stream.token(at)}&live=long-poll&timeout_ms=20",
        )
        expected = 200 if at < len(stream.records) else 204
        self._must(
            status == expected and (status == 204 or content == stream.body(stream.records[at:])),
            status,
            headers,
            content[:200],
        )

    def _head(self, stream: Stream) -> None:
        status, headers, _ = self._ask("HEAD", f"/v1/stream/{stream.name}")
        self._must(
            status == 200 and headers["stream-next-offset"] == stream.token(len(stream.records)),
            status,
            headers,
        )

    def _all(self, stream: Stream) -> list[bytes]:
        status, headers, content = self._ask("GET", f"/v1/stream/{stream.name}?offset=-1")
        self._must(status == 200 and "stream-up-to-date" in headers, status, headers)
        if not stream.is_json:
            return [line + b"\n" for line in content.split(b"\n")[:-1]]
        return [
            json.dumps(record, separators=(",", ":")).encode() for record in json.loads(content)
        ]

    def _finish(self, stream: Stream) -> None:
        """Check the final content: all acknowledged records. An unconfirmed one, which may be in
        flight, is there as a whole or not at all."""
        found = self._all(stream)
        self._must(
            found in (stream.records, stream.records + (stream.maybe or [])),
            "not what was acknowledged",
            len(found),
            len(stream.records),
        )
        status, _, content = self._ask("DELETE", f"/v1/stream/{stream.name}")
        self._must(status in (204, 404), status, content)
        self.streams.remove(stream)

    def _must(self, so: bool, *seen: object) -> None:
        if not so:
            raise Wrong(f"keeper {self.number}: {seen}"[:1500])


class Vandal:
    """One client without manners."""

    def __init__(
        self, chance: random.Random, number: int, urls: list[str], allowed: frozenset[str]
    ) -> None:
        self.chance, self.number, self.urls, self.allowed = chance, number, urls, allowed
        self.counts: Counter[str] = Counter()
        self._sitting: list[Line] = []
        self.data = b""

    def act(self) -> None:
        """Send some requests, perhaps damaged, or leave a connection open. Raises Wrong."""
        chance = self.chance
        requests = self.requests()
        self.data = b"".join(requests)
        line = Line(chance.choice(self.urls))
        self.counts["requests"] += len(requests)
        if chance.random() < 0.15:
            self._sit(line)
            return
        line.send(damaged(chance, self.data) if chance.random() < 0.1 else self.data, chance)
        with contextlib.suppress(OSError):
            line.socket.shutdown(socket.SHUT_WR)
        method = requests[0].partition(b" ")[0].decode("latin-1")
        try:
            # which is cut when the client seems gone
            self._answers(line, method, single=len(requests) == 1 and b"live=sse" not in self.data)
        except Wrong as wrong:
            raise Wrong(f"{wrong}; sent {self.data[:600]!r}") from None
        finally:
            line.close()

    def requests(self) -> list[bytes]:
        """Make the requests of one connection."""
        chance = self.chance
        made = [
            request(chance, ["fuzz/a", "fuzz/b", "x"])
            for _ in range(chance.choice((1, 1, 1, 2, 5)))
        ]
        if chance.random() < 0.03:
            made = [large(chance, "fuzz/a")]
            self.counts["large requests"] += 1
        return made

    def _answers(self, line: Line, method: str, *, single: bool) -> None:
        """Read responses. Where a HEAD may be among them, those behind the first cannot be told
        from a body."""
        if not single:
            self._drain(line)
            for status in re.findall(rb"HTTP/1\.1 (5\d\d) ", line.buffer):
                if int(status) == 500:
                    raise Wrong(f"500: {line.buffer[-600:]!r}")
            self.counts["pipelines"] += 1
            return
        found = line.read(method)
        if found is not None:
            judge(*found, self.allowed)
            self.counts[f"{found[0] // 100}xx"] += 1

    def _drain(self, line: Line) -> None:
        """Read all that comes. Behind the requests before it a live reader may wait for others,
        also after the client has closed its half."""
        waits = b"live=" in self.data
        if waits:
            line.socket.settimeout(QUIET_SECONDS)
        try:
            while line._more():
                pass
        except TimeoutError:
            if not waits:
                raise Wrong(
                    f"no end within {PATIENCE_SECONDS:g} s; so far {line.buffer[-300:]!r}"
                ) from None

    def _sit(self, line: Line) -> None:
        """Leave a connection open after a part of a request, with a live reader that takes nothing,
        or in the middle of a large append."""
        chance = self.chance
        drawn = chance.random()
        if drawn < 0.5:
            line.send(self.data[: chance.randrange(len(self.data) + 1)], chance)
        elif drawn < 0.8:
            line.send(
                b"GET /v1/stream/fuzz/a?offset=-1&live=%b HTTP/1.1\r\nHost: localhost\r\n\r\n"
                % chance.choice((b"sse", b"long-poll")),
                chance,
            )
        else:
            line.send(
                b"POST /v1/stream/fuzz/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                b"application/json\r\nContent-Length: 3000000\r\n\r\n[",
                chance,
            )
            line.send(body(chance), chance)
        self.counts["sitters"] += 1
        self._sitting.append(line)
        if len(self._sitting) > SITTERS_MAX or chance.random() < 0.2:
            left = self._sitting.pop(chance.randrange(len(self._sitting)))
            if chance.random() < 0.5:
                left.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            left.close()

    def finish(self) -> None:
        for line in self._sitting:
            line.close()


def fuzz_http(
    seed: int, folder: Path, *, rounds: int = 0, seconds: float = 0.0, nodes: int = 1
) -> Outcome:
    """Fuzz HTTP for a number of requests per client, or for a time."""
    outcome = Outcome()
    with contextlib.ExitStack() as stack:
        if nodes == 1:
            node = stack.enter_context(
                running_node(folder / "data", "--cores", "2", "--long-poll-timeout", "0.2")
            )
            urls, logs, pids = [node.url], [node.log], [node.process.pid]
        else:
            cluster = stack.enter_context(fuzz_cluster(folder))
            urls, logs = (
                [cluster.url(number) for number in cluster.nodes],
                [each.log for each in cluster.nodes.values()],
            )
            pids = [each.process.pid for each in cluster.nodes.values()]
        cores = Cores(*pids)
        allowed = MAY_FAIL if nodes == 1 else MAY_FAIL | NOT_NOW
        first = Keeper(random.Random(seed), 0, urls, allowed)
        for name in ("fuzz/a", "fuzz/b"):
            first._ask("PUT", f"/v1/stream/{name}", Content_Type="application/json")
        first.hang_up()
        _run(outcome, seed, urls, allowed, rounds, seconds)
        outcome.wrong += cores.aftermath(*logs)
    return outcome


def _run(
    outcome: Outcome,
    seed: int,
    urls: list[str],
    allowed: frozenset[str],
    rounds: int,
    seconds: float,
) -> None:
    kinds = [Keeper] * KEEPERS + [Vandal] * VANDALS
    clients: list[Keeper | Vandal] = [
        kind(random.Random(f"{seed}-{number}"), number, urls, allowed)
        for number, kind in enumerate(kinds)
    ]
    play_all(outcome, seed, clients, urls, rounds, seconds)
