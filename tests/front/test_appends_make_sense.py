"""Engines trust the appends of this node's own front: whatever its parser accepts is a command
without a fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.protocol.router import Router
from polynya.front.http.routes import append as appends
from polynya.front.http.routes.append_request import compile_template
from polynya.replica.log import decode_heard, encode_command
from polynya.stream.command_validation import fault_of
from polynya.stream.features.appends.commands import Append
from polynya.wire.http.http1 import BadRequest, HeadParser

NUMBERS = st.one_of(
    st.sampled_from(
        [
            "0",
            "-1",
            "007",
            "",
            "1e3",
            "٣",
            str(2**53 - 1),
            str(2**53),
            str(2**63 - 1),
            str(2**63),
            str(2**64),
            "9" * 20,
            "9" * 40,
        ]
    ),
    st.integers(-(2**70), 2**70).map(str),
)
BODIES = st.one_of(
    st.sampled_from([b"", b"[]", b"[1]", b"[1,2]", b"[[1],[]]", b"[,]", b" 7 ", b"{}"]),
    st.binary(max_size=64),
    st.lists(st.binary(max_size=4)).map(lambda parts: b"[" + b",".join(parts) + b"]"),
)
HEADERS = {
    "Content-Type": st.sampled_from(
        ["application/json", "text/plain", "Application/JSON; a=b", "x" * 400]
    ),
    "Producer-Id": st.sampled_from(["p", "ü", "x" * 300, ""]),
    "Producer-Epoch": NUMBERS,
    "Producer-Seq": NUMBERS,
    "Stream-Seq": st.sampled_from(["a", "é" * 40, "x" * 300]),
    "Stream-Incarnation": NUMBERS,
    "Stream-Closed": st.sampled_from(["true", "TRUE", "no"]),
}


class _Context:
    """The part of a front that a handler needs. It keeps the proposed commands."""

    def __init__(self) -> None:
        self.proposed: list[Append] = []
        self.service = self
        self.counters = SimpleNamespace(appends=0, bytes_in=0)

    def now_ms(self) -> int:
        return 1_800_000_000_000

    def open(self, name: str) -> Any:
        return SimpleNamespace(
            name=name, append=lambda command, done: self.proposed.append(command)
        )


def proposed_by(body: bytes, headers: dict[str, str]) -> list[Append]:
    """The commands that a request and its repetition, whose head is known by then, propose; none if
    it is refused."""
    context: Any = _Context()
    peer: Any = SimpleNamespace(responses=None, last_append=None)
    lines = "".join(f"\r\n{name}: {value}" for name, value in headers.items())
    block = f"POST /v1/stream/s HTTP/1.1\r\nHost: h{lines}\r\nContent-Length: {len(body)}".encode()
    try:
        head = HeadParser().parse(block)
        exchange = Exchange(context, peer, 0, head, body)
        exchange.route, exchange.query = Router({}, {}).resolve(head.target)
        exchange.stream = context.open(exchange.route.name)
        appends.append(exchange)
    except (BadRequest, Failure):
        return context.proposed
    template = compile_template(peer.last_append, block)
    found = template.read(block + b"\r\n\r\n" + body) if template is not None else None
    if template is not None and found is not None:
        template.request.propose(*found, template.done)
        assert context.proposed[0] == context.proposed[1]
    return context.proposed


@given(BODIES, st.fixed_dictionaries({}, optional=HEADERS))
@example(
    b"[1,2]",
    {
        "Content-Type": "application/json",
        "Producer-Id": "p",
        "Producer-Epoch": "0",
        "Producer-Seq": str(2**53 - 1),
    },
)
@example(b"x", {"Content-Type": "text/plain", "Stream-Incarnation": "9" * 20})
def test_what_the_parser_accepts_is_a_command_without_a_fault(
    body: bytes, headers: dict[str, str]
) -> None:
    for command in proposed_by(body, headers):
        assert fault_of(command) == ""
        assert decode_heard(encode_command(command)) == command


def test_a_repeated_request_is_among_what_is_judged() -> None:
    headers = {
        "Content-Type": "text/plain",
        "Producer-Id": "p",
        "Producer-Epoch": "0",
        "Producer-Seq": "7",
    }
    assert len(proposed_by(b"x", headers)) == 2
    assert len(proposed_by(b"x", headers | {"Stream-Seq": "a"})) == 1
    assert proposed_by(b"x", headers | {"Producer-Seq": str(2**53)}) == []
