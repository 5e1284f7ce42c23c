"""Bad clients on the real server: 4xx or a closed connection, never a 5xx, a hang or a leak; others
are served meanwhile."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_world import JSON, World, address, descriptors, drain, metric, raw, read_until, resident
from polling import wait_until

pytestmark = pytest.mark.process
STREAM = "/v1/stream/bad/s"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Yield one node of two cores for all tests of this file."""
    world = World(Path(tmp_path_factory.mktemp("bad")) / "data")
    try:
        world.start("--cores", "2", "--long-poll-timeout", "0.5")
        assert world.ask("PUT", STREAM, **JSON).status == 201
        yield world
        assert world.stop() == 0
        assert not re.search(r"Traceback|level=(error|critical)", world.log), world.log
    finally:
        world.close()


def head(*lines: str, method: str = "POST") -> bytes:
    return "\r\n".join(
        [
            f"{method} {STREAM} HTTP/1.1",
            "Host: localhost",
            "Content-Type: application/json",
            *lines,
            "",
            "",
        ]
    ).encode("latin-1")


BAD = {
    "both lengths": head("Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "two lengths": head("Content-Length: 3", "Content-Length: 4") + b"[1]",
    "two equal lengths": head("Content-Length: 3", "Content-Length: 3") + b"[1]",
    "a list of lengths": head("Content-Length: 3, 3") + b"[1]",
    "a length with a sign": head("Content-Length: +5") + b"[1,2]",
    "a negative length": head("Content-Length: -1"),
    "a length in hexadecimal": head("Content-Length: 0x3") + b"[1]",
    "a length with an underscore": head("Content-Length: 1_0") + b"[1,2,3,4,5]",
    "a length of digits that are not ASCII": head("Content-Length: \xb3") + b"[1]",
    "an empty length": head("Content-Length: "),
    "a huge length": head("Content-Length: 99999999999999999999"),
    "identity coding": head("Transfer-Encoding: identity"),
    "a hidden coding": head("Transfer-Encoding: xchunked") + b"0\r\n\r\n",
    "two codings": head("Transfer-Encoding: gzip, chunked") + b"0\r\n\r\n",
    "a coding with a tab": head("Transfer-Encoding:\x0bchunked") + b"0\r\n\r\n",
    "a space before the colon": head("Content-Length : 3") + b"[1]",
    "a folded header": head("X-A: b", " c"),
    "a bare LF": f"POST {STREAM} HTTP/1.1\nHost: localhost\n\n".encode(),
    "a bare LF in a header": head("X-A: b\nContent-Length: 3") + b"[1]",
    "a bare CR in a header": head("X-A: b\rContent-Length: 3") + b"[1]",
    "a NUL in a header": head("X-A: b\0c"),
    "no host": f"GET {STREAM} HTTP/1.1\r\n\r\n".encode(),
    "two hosts": head("Host: y"),
    "a chunk size that is none": head("Transfer-Encoding: chunked") + b"zz\r\n",
    "a chunk size with a sign": head("Transfer-Encoding: chunked") + b"+3\r\n[1]\r\n0\r\n\r\n",
    "a chunk size in C": head("Transfer-Encoding: chunked") + b"0x3\r\n[1]\r\n0\r\n\r\n",
    "a chunk without its end": head("Transfer-Encoding: chunked") + b"3\r\n[1]x0\r\n\r\n",
    "a chunk with bare LF": head("Transfer-Encoding: chunked") + b"3\n[1]\n0\n\n",
    "a huge chunk": head("Transfer-Encoding: chunked") + b"FFFFFFFF\r\n",
    "an endless chunk line": head("Transfer-Encoding: chunked") + b"1;" + b"a" * 5000,
    "a chunk size of many digits": head("Transfer-Encoding: chunked")
    + b"0" * 50
    + b"3\r\n[1]\r\n0\r\n\r\n",
    "300 KB of headers": head(*(f"X-{number}: {'y' * 3000}" for number in range(100))),
    "one header of 300 KB": head("X-A: " + "y" * 300_000),
    "a path of 300 KB": b"GET /v1/stream/"
    + b"a" * 300_000
    + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "1,000 headers": head(*(f"X-{number}: y" for number in range(1000))),
    "200,000 brackets": head("Content-Length: 200000") + b"[" * 200_000,
    "100,000 closed brackets": head("Content-Length: 200000") + b"[" * 100_000 + b"]" * 100_000,
    "200,000 braces": head("Content-Length: 1000000") + b'{"a":' * 200_000,
    "invalid UTF-8": head("Content-Length: 5") + b'["\xff"]',
    "half a surrogate in UTF-8": head("Content-Length: 7") + b'["\xed\xa0\x80"]',
    "no JSON": head("Content-Length: 4") + b"nope",
    "NaN": head("Content-Length: 5") + b"[NaN]",
    "an unknown method": head(method="BREW"),
    "a method that is none": b"P@ST / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an absolute nonsense": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500 + b"\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "a target with a space": b"GET /v1/stream/a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an encoded slash": b"GET /v1/stream/a%2Fb?offset=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an encoded NUL": b"PUT /v1/stream/a%00b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "dots": b"GET /v1/stream/../../etc/passwd?offset=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "encoded dots": b"GET /v1/stream/%2e%2e/x?offset=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "half an escape": b"GET /v1/stream/a%2?offset=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an escape that is no UTF-8": b"PUT /v1/stream/a%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an injected line in a query": b"GET /v1/stream/bad/s?offset=%0d%0aX-Evil:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an injected line in a producer": head(
        "Content-Length: 3", "Producer-Id: a\r b", "Producer-Epoch: 0", "Producer-Seq: 0"
    )
    + b"[1]",
    "a number that is none": head(
        "Content-Length: 3", "Producer-Id: a", "Producer-Epoch: \xb2", "Producer-Seq: 0"
    )
    + b"[1]",
    "a huge TTL": head("Stream-TTL: 99999999999999999999", method="PUT"),
    "an expectation": head("Content-Length: 3", "Expect: coffee"),
}
MAY_BE_CLOSED = frozenset({"an absolute nonsense"})


def statuses(answer: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]


@pytest.mark.parametrize("case", list(BAD))
def test_what_is_malformed_gets_one_4xx_and_changes_nothing(served: World, case: str) -> None:
    before = served.records("bad/s")
    with raw(served.url) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(BAD[case])
            connection.shutdown(socket.SHUT_WR)
        answer = drain(connection)
    found = statuses(answer)
    assert len(found) == 1 and (
        400 <= found[0] < 500 or (found[0] == 505 and case in MAY_BE_CLOSED)
    ), (case, answer[:2000])
    assert b"x-evil" not in answer.partition(b"\r\n\r\n")[0].lower()
    assert served.records("bad/s") == before


def test_a_smuggled_request_is_not_taken_for_one(served: World) -> None:
    inner = b"DELETE /v1/stream/bad/s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for outer in (
        "Content-Length: 4\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 4",
    ):
        with raw(served.url) as connection:
            connection.sendall(head(outer) + b"0\r\n\r\n" + inner)
            assert statuses(drain(connection)) == [400]
    assert served.ask("HEAD", STREAM).status == 200


def test_one_byte_at_a_time_is_slow_but_right(served: World) -> None:
    assert served.ask("PUT", "/v1/stream/bad/slow", **JSON).status == 201
    text = (
        b"POST /v1/stream/bad/slow HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
        b"application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    text += (
        b"3;ext=1\r\n[1]\r\n0\r\nTrailer: x\r\n\r\n"
        b"HEAD /v1/stream/bad/slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    with raw(served.url) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in text:
            connection.sendall(bytes([byte]))
        assert statuses(drain(connection)) == [204, 200]
    assert served.records("bad/slow") == [1]


PHASES = (
    b"",
    b"P",
    b"POST /v1/stream/bad/s HTTP/1.1\r\nHo",
    head("Content-Length: 1000"),
    head("Content-Length: 1000") + b"[1",
    head("Content-Length: 33000000") + b"[" + b"1," * 100_000,
    head("Transfer-Encoding: chunked") + b"3\r\n[",
    head("Expect: 100-continue", "Content-Length: 10"),
    f"GET {STREAM}?offset=now&live=long-poll HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
    f"GET {STREAM}?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
    f"GET {STREAM}?offset=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 50,
    b"PUT /v1/stream/bad/early HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"PUT /v1/stream/bad/fork HTTP/1.1\r\nHost: localhost\r\nStream-Forked-From: "
    b"/v1/stream/bad/s\r\n\r\n",
)


def abandon(world: World, count: int) -> None:
    """Open connections that stop in the middle of something; half of them by a reset."""
    for number in range(count):
        with socket.create_connection(address(world.url), timeout=60) as connection:
            if number % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(ConnectionError):
                connection.sendall(PHASES[number % len(PHASES)])


def test_abandoned_connections_leave_nothing_behind(served: World) -> None:
    abandon(served, 400)  # what grows once, grows now
    cores = served.cores()
    wait_until(lambda: served.ask("GET", "/livez").status == 200, what="an answer")
    before = descriptors(cores), resident(cores)
    abandon(served, 1000)
    wait_until(
        lambda: descriptors(cores) <= before[0] + 4,
        what=f"descriptors: {before[0]} before, {descriptors(cores)} after",
    )
    assert resident(cores) < before[1] + 24 * 2**20, (before[1], resident(cores))
    assert served.cores() == cores


def test_half_requests_do_not_keep_others_waiting(served: World) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(1000):
            connection = stack.enter_context(
                socket.create_connection(address(served.url), timeout=60)
            )
            connection.sendall(PHASES[number % 5])
        assert served.ask("POST", STREAM, b"[1]", **JSON).status == 204


@pytest.mark.parametrize("megabytes", [10, 31, 40])
def test_large_bodies_are_taken_whole_or_refused(served: World, megabytes: int) -> None:
    name = f"/v1/stream/bad/large-{megabytes}"
    assert served.ask("PUT", name, Content_Type="application/octet-stream").status == 201
    body = bytes(range(256)) * (4096 * megabytes)
    with raw(served.url, 60) as connection:
        request = (
            f"POST {name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: "
            "application/octet-stream\r\n"
        )
        with contextlib.suppress(ConnectionError):
            connection.sendall(f"{request}Content-Length: {len(body)}\r\n\r\n".encode())
            connection.sendall(body)
        answer = drain(connection)
    if megabytes > 32:
        assert statuses(answer) in ([413], []), answer[:500]
        assert served.ask("HEAD", name).next_offset.endswith("_" + "0" * 16)
        return
    assert statuses(answer) == [204], answer[:500]
    found, offset = b"", "-1"
    while len(found) < len(body):
        page = served.ask("GET", f"{name}?offset={offset}")
        assert page.status == 200 and 0 < len(page.body) <= 4 << 20, page
        found, offset = found + page.body, page.next_offset
    assert found == body


def test_200_appends_at_once_are_all_there(served: World) -> None:
    assert served.ask("PUT", "/v1/stream/bad/many", **JSON).status == 201
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(address(served.url), timeout=60))
            for _ in range(200)
        ]
        for number, connection in enumerate(connections):
            body = json.dumps([number]).encode()
            request = (
                "POST /v1/stream/bad/many HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                "Content-Type: application/json\r\n"
            )
            connection.sendall(f"{request}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert {tuple(statuses(drain(connection))) for connection in connections} == {(204,)}
    assert sorted(served.records("bad/many")) == list(range(200))


def test_a_slow_reader_is_cut_with_a_reason_while_others_get_everything(served: World) -> None:
    name = "/v1/stream/bad/slow-reader"
    assert served.ask("PUT", name, Content_Type="text/plain").status == 201
    ask = f"GET {name}?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    block = b"0123456789abcdef" * 65_536
    with (
        raw(served.url) as slow,
        raw(served.url) as quick,
        contextlib.closing(served.connect()) as writer,
    ):
        for reader in (slow, quick):
            reader.sendall(ask)
            read_until(reader, b"streamNextOffset")
        for _ in range(40):  # more than the buffers of the kernel and the bound together
            assert writer.ask("POST", name, block, Content_Type="text/plain").status == 204
            got = 0
            while got < len(block):
                got += len(quick.recv(1 << 20))
            if metric(served, "polynya_http_sse_cut_total"):
                break
        text = drain(slow)
    assert b"SLOW_READER" in text[-2000:], text[-500:]
    assert text.endswith(b"0\r\n\r\n")
