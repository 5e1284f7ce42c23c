"""Attacks on the ports of a node of one core: other clients are served meanwhile, and the loop of
the core has no turn of a quarter of a second of its own CPU time.

Each says how the node fared without the bounds, on a machine of two cores.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from struct import pack

import pytest
from long_tests import long
from worlds.attacked_node import (
    TURN_SECONDS_MAX,
    AttackedNode,
    attacked_node,
    send_all,
    unharmed,
)
from worlds.wide_requests import NAME, uvarint, wide_requests

from polynya.base.limits import GROUP_OFFSETS_MAX, KAFKA_ELEMENTS_MAX

pytestmark = pytest.mark.process
MIB = 1024 * 1024
OF_GROUPS = ("OffsetCommit", "OffsetFetch")  # with an offset for each element
ADMIN_REQUESTS = (
    ("POST", "/v1/admin/tokens"), ("POST", "/v1/admin/jwts"), ("POST", "/v1/admin/backup"),
    ("POST", "/v1/admin/store/verify"), ("POST", "/v1/admin/tables/x/plan"),
    ("POST", "/v1/admin/tables/x/commit"), ("POST", "/v1/cluster/nodes"), ("POST", "/v1/sql"),
    ("PUT", "/v1/tables/x"), ("POST", "/v1/tables/x/schema"), ("GET", "/metrics"),
)  # fmt: skip
ANSWERED = (("GET", "/metrics"), ("POST", "/v1/admin/store/verify"))
NAMED = b'{"name":"x","allow":["all"]}'
ROUNDS = 3  # of the bystander, while connections of an attack are held


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedNode]:
    """Yield one node for all attacks of this file."""
    with attacked_node(tmp_path_factory.mktemp("attacked")) as made:
        yield made


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def api_versions(size: int) -> bytes:
    """Return an unauthenticated request with that many bytes of empty tagged fields."""
    count = size // 2
    return framed(
        bytes.fromhex("0012 0003 00000001 ffff 00 01 01") + uvarint(count) + b"\x7f\0" * count
    )


def many_topics(count: int) -> bytes:
    """Return a Produce request of version 9 with that many topics without a name and without
    partitions."""
    head = bytes.fromhex("0000 0009 00000001 0000 00") + bytes.fromhex("00 ffff 00001000")
    return framed(head + uvarint(count + 1) + b"\1\1\0" * count + b"\0")


@pytest.mark.parametrize("connections", [1, *long([20])])
def test_a_frame_of_63_mib_before_authentication(node: AttackedNode, connections: int) -> None:
    """One cost 13.7 CPU seconds, in which an append waited for 31.9 seconds."""
    data = api_versions(63 * MIB)
    spent = node.cpu_seconds()
    with unharmed(node):
        for _ in range(connections):
            assert send_all(node.kafka, data) == b""
    assert node.cpu_seconds() - spent < 2 + connections / 2


@pytest.mark.parametrize("count", [4_000_000, *long([1_000_000])])
def test_a_produce_request_of_very_many_topics(node: AttackedNode, count: int) -> None:
    """A million cost 7.9 CPU seconds and a silence of 17.2 seconds; four million took the loop
    away for 98.8 seconds."""
    spent = node.cpu_seconds()
    with unharmed(node), node.line().socket as line, suppress(ConnectionError):
        line.sendall(many_topics(count))
        assert line.recv(1) == b""
    assert node.cpu_seconds() - spent < 2


def test_four_connections_that_announce_64_mib_each(node: AttackedNode) -> None:
    """Announce 64 MiB on each: in the past they held the whole budget and blocked Produce
    requests."""
    with ExitStack() as stack, unharmed(node) as bystander:
        for _ in range(4):
            line = stack.enter_context(socket.create_connection(node.kafka))
            line.sendall((64 * MIB).to_bytes(4))
        for _ in range(4):
            line = stack.enter_context(node.line().socket)
            line.sendall((64 * MIB).to_bytes(4) + bytes(4))
        bystander.wait_rounds(ROUNDS)
        with node.line().socket as line:  # who produces much
            large = many_topics(15_000)
            line.sendall(large)
            assert len(line.recv(4)) == 4


def test_a_request_of_very_many_elements_of_each_key(node: AttackedNode) -> None:
    """OffsetFetch of 20,000 groups took the loop for a second."""
    node.create(NAME, 100)
    with unharmed(node):
        for wide in sorted(wide_requests(), key=lambda wide: wide.api.name.startswith("Delete")):
            most = 2 * GROUP_OFFSETS_MAX if wide.api.name in OF_GROUPS else KAFKA_ELEMENTS_MAX
            with node.line().socket as line:
                line.sendall(wide.frame(most - 10))
                size = int.from_bytes(line.recv(4, socket.MSG_WAITALL))
                assert size > 0, f"{wide} got no answer"
                line.recv(size, socket.MSG_WAITALL)
            assert node.turn_seconds() < TURN_SECONDS_MAX, wide


@pytest.mark.parametrize("port", ["kafka", "text"])
def test_idle_connections_that_never_authenticate(node: AttackedNode, port: str) -> None:
    """5,000 filled the port: a client with a token was not let in."""
    address: tuple[str, int] = getattr(node, port)
    with ExitStack() as stack, unharmed(node):
        for _ in range(5000):
            stack.enter_context(socket.create_connection(address))
        node.line().socket.close()
        assert node.text_line().ask("METRICS").startswith("{")


def test_the_largest_line_of_the_text_port(node: AttackedNode) -> None:
    with unharmed(node):
        for size in (0xFFFF_FFFF, 64 * MIB, 65_537):
            with suppress(ConnectionError):
                said = send_all(node.text, pack("<I", size) + b"x" * MIB)
                assert b"ERR invalid frame length" in said
        for _ in range(20):
            most = b"AUTH " + b"x" * (65_536 - 5)
            with socket.create_connection(node.text, 60) as line, suppress(ConnectionError):
                line.sendall((pack("<I", len(most)) + most) * 50)
                line.shutdown(socket.SHUT_WR)
                while line.recv(65_536):
                    pass


@pytest.mark.parametrize(("line", "is_known"), [
    (b"X", False), (b"PUT t x", True), (b"AUTH x", False),
    *long([(b"X", True), (b"PUT t x", False), (b"AUTH x", True)]),
])  # fmt: skip
def test_very_many_lines_of_the_text_port(
    node: AttackedNode, line: bytes, *, is_known: bool
) -> None:
    """400,000 lines of one byte by a stranger took the loop for 2.3 seconds in one turn."""
    count = 5_000 if line.startswith(b"AUTH") or is_known else 20_000
    lines = (pack("<I", len(line)) + line) * count
    with unharmed(node), ExitStack() as stack:
        for _ in range(20):  # who never read
            unread = stack.enter_context(socket.create_connection(node.text))
            unread.setblocking(False)
            with suppress(BlockingIOError):
                unread.send(lines * 20)
        known = node.text_line() if is_known else None
        reader = known.socket if known else socket.create_connection(node.text, 60)
        stack.enter_context(reader)
        sender = threading.Thread(target=_send_and_end, args=(reader, lines))
        sender.start()
        answered = b""
        while piece := reader.recv(MIB):
            answered += piece
        sender.join()
    assert _responses(answered) == count


def _send_and_end(line: socket.socket, data: bytes) -> None:
    line.sendall(data)
    line.shutdown(socket.SHUT_WR)


def _responses(answered: bytes) -> int:
    at = count = 0
    while at < len(answered):
        at += 4 + int.from_bytes(answered[at : at + 4], "little")
        count += 1
    return count


@pytest.mark.parametrize("size", [8, *long([30])])
@pytest.mark.parametrize(
    "record", [b"[[[[]]]]", b'"["', b'{"id":1,"v":[1,2]}', *long([b"[]", b"1"])]
)
def test_json_bodies_that_take_long_to_parse(node: AttackedNode, record: bytes, size: int) -> None:
    """`[[[[]]]]` 3,000,000 times cost 5.9 seconds in one turn, a million usual records 1.5."""
    records = b"[" + record + (b"," + record) * (size * MIB // (len(record) + 1)) + b"]"
    with unharmed(node):
        assert node.ask("PUT", "/v1/stream/large/json") in (200, 201)
        assert node.ask("POST", "/v1/stream/large/json", records) in (204, 413)
        assert node.ask("POST", "/v1/stream/large/json", b"[" + records + b"]") == 204
        assert node.ask("GET", "/v1/stream/large/json?offset=-1") == 200


def test_server_sent_events_of_very_many_lines(node: AttackedNode) -> None:
    """30 MiB of line ends cost 14.7 seconds in one turn, for each reader."""
    text = "text/plain"
    with unharmed(node):
        assert node.ask("PUT", "/v1/stream/large/text", content_type=text) == 201
        assert node.ask("POST", "/v1/stream/large/text", b"\n" * (8 * MIB), text) == 204
        with socket.create_connection(node.http, 60) as line:
            head = "GET /v1/stream/large/text?offset=-1&live=sse HTTP/1.1\r\nHost: x\r\n"
            line.sendall(f"{head}Authorization: Bearer {node.token}\r\n\r\n".encode())
            got = b""
            while b'"upToDate":true' not in got:
                got = got[-100:] + line.recv(MIB)


@pytest.mark.parametrize(
    ("form", "kind"),
    [("plain", "one"), ("batch", "many"), *long([("plain", "many"), ("batch", "one")])],
)
def test_readers_of_the_largest_json(node: AttackedNode, form: str, kind: str) -> None:
    """A record of 30 MiB as a line took the loop for 0.246 seconds."""
    path = f"/v1/stream/large/{form}-{kind}"
    text = b'"' + b"x" * (30 * MIB) + b'"'
    many = b'"' + b"x" * 290 + b'"'
    values = [text] if kind == "one" else [many] * 99_000
    if form == "batch":
        values = [b'{"key":"k","value":%b}' % value for value in values]
    content = "application/vnd.polynya.records+json" if form == "batch" else "application/json"
    with unharmed(node):
        assert node.ask("PUT", path) == 201
        assert node.ask("POST", path, b"[" + b",".join(values) + b"]", content) == 204
        text_line = node.text_line()
        for _ in range(3):
            assert text_line.ask(f"GET large/{form}-{kind}")[:6] in ("OK xxx", "EMPTY")
        text_line.socket.close()
        for accept in ("application/x-ndjson", "application/json", content):
            for live in ("", "&live=long-poll"):
                query = f"?offset=-1&max_bytes={32 * MIB}{live}"
                assert node.ask("GET", path + query, accept=accept) == 200
                assert node.turn_seconds() < TURN_SECONDS_MAX, (accept, live)


@pytest.mark.parametrize(
    ("part", "is_known"),
    [
        (b"[[[[]]]]", False),
        (b"[[[[]]]]", True),
        (NAMED, True),
        *long([(b'"["', True), (b"1", True), (b'"["', False), (NAMED, False), (b"1", False)]),
    ],
)
def test_the_largest_bodies_of_the_admin_port(
    node: AttackedNode, part: bytes, *, is_known: bool
) -> None:
    size = 4 * MIB - 4096
    many = b"[" + part + (b"," + part) * (size // (len(part) + 1)) + b"]"
    heads = {"Authorization": f"Bearer {node.token}"} if is_known else {}
    with unharmed(node):
        for body in (many, b'{"name":' + many + b"}", b'{"name":"x","allow":' + many + b"}"):
            for method, path in ADMIN_REQUESTS:
                line = http.client.HTTPConnection(*node.remote_admin, timeout=60)
                with suppress(ConnectionError):
                    line.request(method, path, body, heads | {"Content-Type": "application/json"})
                    status = line.getresponse().status
                    refused = 400 <= status < 500 if is_known else status in (401, 413)
                    assert refused or (is_known and (method, path) in ANSWERED), (path, status)
                line.close()
                assert node.turn_seconds() < TURN_SECONDS_MAX, path


@pytest.mark.parametrize("is_known", [False, True])
def test_a_body_over_a_limit_is_refused_at_its_headers(
    node: AttackedNode, *, is_known: bool
) -> None:
    """`/v1/sql` and subscriptions waited for the body of who has a token."""
    routes = (
        ("POST", "/v1/stream/x", 33, node.http),
        ("POST", "/v1/sql", 1, node.http),
        ("PUT", "/v1/stream/__ds/subscriptions/x", 3, node.http),
        ("POST", "/v1/topics", 33, node.http),
        ("POST", "/v1/cluster/nodes", 5, node.admin),
    )
    bearer = f"Authorization: Bearer {node.token}\r\n" if is_known else ""
    with unharmed(node):
        for method, path, size, address in routes:
            head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{bearer}"
            head += f"Content-Type: application/json\r\nContent-Length: {size * MIB}\r\n\r\n"
            with socket.create_connection(address, 20) as line:
                line.sendall(head.encode())
                refused = (b"413",) if is_known else (b"401", b"413")
                assert line.recv(65_536)[9:12] in refused, path
