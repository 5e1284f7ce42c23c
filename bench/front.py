"""Cost of an append in the HTTP front alone: bytes in to proposal, and reply to bytes out. No
socket, no journal, no machine.

    python -m bench.front [--requests 200000]

The request is what `ursula-bench multi-stream --api-style durable` sends (reqwest's headers, a
producer, 256 bytes), 500 streams, each on its own connection."""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any

from polynya.access import Access, Limits
from polynya.access.token_file import TokenFile, Wanted
from polynya.front.http.auth.authorization import Authorizer
from polynya.front.http.connection import Connection
from polynya.front.http.protocol.exchange import Protection
from polynya.front.http.server import HttpFront
from polynya.stream.replies import Reply

STREAMS = 500
_AMPLE = Limits(requests_per_second=10**9, bytes_per_second=10**15)
ROUNDS = 5


class _Transport(asyncio.Transport):
    written = 0

    def write(self, data: Any) -> None:
        self.written += len(data)

    def is_closing(self) -> bool:
        return False


class _Service:
    """Answers every append at once, as a turn would later."""

    def now_ms(self) -> int:
        return 1_800_000_000_000

    hint = None

    async def info(self, name: str, *, local: bool = False) -> Any:
        raise AssertionError("appends ask for nothing")

    def open(self, name: str) -> Any:
        return SimpleNamespace(name=name, append=self._append)

    def _append(self, command: Any, done: Any) -> None:
        producer = command.producer
        done(Reply(0, 1 << 48 | 7, 12345, 3160320, False, producer.epoch, producer.sequence))


def _requests(content_type: str, body: bytes, token: str) -> list[bytes]:
    lines = (
        "POST /v1/stream/s{:08d} HTTP/1.1\r\ncontent-type: {}\r\nproducer-id: bench-{}\r\n"
        "producer-epoch: 0\r\nproducer-seq: {}\r\n"
    )
    proof = f"authorization: Bearer {token}\r\n" if token else ""
    rest = f"{proof}accept: */*\r\nhost: 127.0.0.1:4437\r\ncontent-length: {len(body)}\r\n\r\n"
    return [
        (lines.format(stream, content_type, stream, sequence) + rest).encode() + body
        for sequence in range(4)
        for stream in range(STREAMS)
    ]


def _protected(folder: str, limits: Limits) -> tuple[Protection, str]:
    tokens = TokenFile(folder)
    _, token = tokens.add(Wanted(name="bench", scopes=["append"], limits=limits), 0)
    return Protection(authorizer=Authorizer(Access(tokens), audit=lambda *act: None)), token


def measure(content_type: str, body: bytes, requests: int, limits: Limits | None = None) -> float:
    """Return the microseconds of CPU per append: the median of the rounds. With `limits`, each
    needs a token, of which all connections have one."""
    with tempfile.TemporaryDirectory() as folder:
        protection, token = _protected(folder, limits) if limits is not None else (None, "")
    front = HttpFront(_Service(), protection=protection)  # type: ignore[arg-type]
    receivers = []
    for _ in range(STREAMS):
        connection = Connection(front.context)
        connection.connection_made(_Transport())
        receivers.append(connection.data_received)
    sent = _requests(content_type, body, token)
    took: list[float] = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        for number in range(requests // ROUNDS):
            receivers[number % STREAMS](sent[number % len(sent)])
        took.append((time.process_time() - begin) / (requests // ROUNDS) * 1e6)
    return statistics.median(took)


def main(requests: int = 200_000) -> dict[str, float]:
    """Return the measurements by name, in microseconds."""
    gc.freeze()
    payload = b'{"id":123,"name":"' + b"x" * 220 + b'","v":1.5}'
    return {
        "binary_us": round(measure("application/octet-stream", b"x" * 256, requests), 2),
        "binary_with_token_us": round(
            measure("application/octet-stream", b"x" * 256, requests, Limits()), 2
        ),
        "binary_with_limits_us": round(
            measure("application/octet-stream", b"x" * 256, requests, _AMPLE), 2
        ),
        "json_us": round(measure("application/json", payload, requests), 2),
    }


if __name__ == "__main__":
    count = int(sys.argv[sys.argv.index("--requests") + 1]) if "--requests" in sys.argv else 200_000
    for name, value in main(count).items():
        print(f"{name:12} {value:6.2f}")
