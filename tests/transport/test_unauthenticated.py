"""Outsiders at the peer port cost a node little and others nothing. In one process, mostly without
sockets."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from polling import wait_for
from worlds.two_nodes import each_loop, impatient, one_way, port_of  # noqa: F401 the fixtures

from polynya.base.errors import InvalidMessage
from polynya.transport import Hello
from polynya.transport.handshake import LANE_ASK, MAGIC, PREAMBLE, encode_hello
from polynya.transport.link import FRAME_BYTES_MAX, HEADER, HELLO_BYTES_MAX, FrameLink, FrameType
from polynya.transport.peer_listener import ConnectionSet, InboundConnection
from polynya.transport.unauthenticated import (
    ARRIVALS_MAX,
    TICKS_MAX,
    UNAUTHENTICATED_MAX,
    UnauthenticatedConnections,
)

run = asyncio.run
pytestmark = pytest.mark.usefixtures("each_loop", "impatient")
OWN = Hello(4, 4, "c", 1, 4, 1, 0, 1, "life")
OTHER = Hello(4, 4, "c", 1, 4, 2, 0, 1, "life")
NUMBERS = (0, 1, 2, 255, 2**16 - 1, 2**31, 2**32 - 1)


class Wire:
    """The stand-in for a link's connection."""

    def __init__(self, link: FrameLink) -> None:
        self.link, self.sent, self.ended = link, b"", False
        link.connection_made(self)  # type: ignore[arg-type]

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.sent += b"".join(pieces)

    def abort(self) -> None:
        if not self.ended:
            self.ended = True
            self.link.connection_lost(None)

    close = abort

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def get_extra_info(self, name: str) -> None:
        return None


def frame(
    type_: int,
    kind: int,
    ident: int,
    body: bytes,
    *,
    length: int | None = None,
    crc: int | None = None,
) -> bytes:
    sender = FrameLink(lambda: None, lambda *given: None, lambda: None, checked=True)
    wire = Wire(sender)
    sender.send(type_, kind, ident, body)
    sender.flush()
    whole = HEADER.unpack(wire.sent[: HEADER.size])
    return (
        HEADER.pack(
            len(body) if length is None else length,
            type_,
            kind,
            ident,
            whole[4] if crc is None else crc,
        )
        + body
    )


def connection_of(
    connections: ConnectionSet, *, greeted: bool = True
) -> tuple[InboundConnection, Wire]:
    listener: Any = None
    port = port_of(connections, OWN, listener=listener)
    pending, _ = port._unauthenticated.enter("10.0.0.9")
    connection = InboundConnection(
        connections, lambda *given: port._check_hello(pending, *given), checked=True
    )
    wire = Wire(connection.link)
    if greeted:
        connection.link.data_received(frame(FrameType.HELLO, 0, 0, encode_hello(OTHER)))
        assert connection.core == 2 << 8
    return connection, wire


def test_noise_from_a_seed_ends_its_own_connection_and_nothing_else(caplog):
    async def story():
        def hear(sender: int, body: bytes) -> None:
            raise InvalidMessage("it says what cannot be")

        connections = ConnectionSet(hear)
        connections.handlers[1] = lambda body, reply, sender: reply(body)
        connections.stream_handlers[1] = lambda body, push, sender: push.item(body)
        still, kept = connection_of(connections)
        for seed in range(400):
            chance = random.Random(seed)
            connection, wire = connection_of(connections, greeted=chance.random() < 0.7)
            for _ in range(chance.randrange(1, 12)):
                if wire.ended:
                    break
                connection.link.data_received(noise(chance))
            assert wire.ended or connection.core >= 0 or not wire.sent
            assert sum(map(len, connection.link._pieces)) <= 1 << 16
            wire.abort()
        assert connections.inbound == {still} and not kept.ended
        assert any("invalid data" in record.getMessage() for record in caplog.records)

    run(story())


def noise(chance: random.Random) -> bytes:
    body = chance.choice(
        (
            b"",
            chance.randbytes(chance.randrange(200)),
            encode_hello(OTHER),
            encode_hello(OTHER)[:-3],
        )
    )
    type_, kind, ident = (
        chance.randrange(16),
        chance.choice((0, 1, 9)),
        chance.choice((0, 1, 2**63, 2**64 - 1)),
    )
    made = frame(type_, kind, ident, body)
    match chance.randrange(6):
        case 0:
            return chance.randbytes(chance.randrange(1, 300))
        case 1:
            return frame(type_, kind, ident, body, length=chance.choice(NUMBERS))
        case 2:
            return frame(type_, kind, ident, body, crc=chance.getrandbits(32))
        case 3:
            return made[: chance.randrange(1, len(made) + 1)]
        case _:
            return made


@pytest.mark.parametrize(
    "data",
    [
        HEADER.pack(2**32 - 1, FrameType.HELLO, 0, 0, 0),
        HEADER.pack(HELLO_BYTES_MAX + 1, FrameType.HELLO, 0, 0, 0),
        HEADER.pack(1 << 20, FrameType.CALL, 1, 1, 0),
    ],
)
def test_who_has_not_said_hello_may_say_little(data):
    async def story():
        connection, wire = connection_of(ConnectionSet(), greeted=False)
        connection.link.data_received(data)
        assert wire.ended
        connection, wire = connection_of(ConnectionSet())
        connection.link.data_received(HEADER.pack(FRAME_BYTES_MAX, FrameType.CALL, 1, 1, 0))
        assert not wire.ended
        connection.link.data_received(b"x" * 100)
        assert connection.link.awaited == FrameType.CALL

    run(story())


UNREADABLE = (b"\xc1", b"\xa3\xff\xff\xff", b"\x9b\x01\x03\xa1\xff", b"\x91" * 5000)


@pytest.mark.parametrize("body", UNREADABLE)
def test_a_greeting_that_cannot_be_read_is_refused_in_words(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story():
        connection, wire = connection_of(ConnectionSet(), greeted=False)
        connection.link.data_received(frame(FrameType.HELLO, 0, 0, body))
        assert wire.ended and connection.core < 0

    run(story())
    assert [record.getMessage() for record in caplog.records] == [
        "a connection to the peer port was refused"
    ]


@pytest.mark.parametrize("body", UNREADABLE)
def test_a_question_that_cannot_be_read_is_answered_and_logged_in_a_line(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story():
        connections = ConnectionSet()
        connections.handlers[1] = lambda body, reply, sender: msgspec.msgpack.decode(
            body, type=Hello
        )
        connections.stream_handlers[1] = lambda body, push, sender: msgspec.msgpack.decode(
            body, type=Hello
        )
        connection, wire = connection_of(connections)
        for type_ in (FrameType.CALL, FrameType.OPEN):
            connection.link.data_received(frame(type_, 1, type_, body))
        connection.link.flush()
        assert not wire.ended and b"cannot read that message" in wire.sent

    run(story())
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("body", UNREADABLE)
def test_what_another_pushes_and_nobody_can_read_ends_its_connection_alone(body: bytes) -> None:
    async def story():
        lost: list[str] = []
        link = FrameLink(
            lambda: None,
            lambda *what: msgspec.msgpack.decode(what[3], type=Hello),
            lambda: lost.append("lost"),
            checked=True,
            on_invalid=lost.append,
        )
        wire = Wire(link)
        link.data_received(frame(FrameType.ITEM, 0, 1, body))
        assert (
            wire.ended and lost[0].startswith("a frame cannot be decoded") and lost[1:] == ["lost"]
        )

    run(story())


def test_a_subscription_that_is_there_is_not_opened_again():
    async def story():
        connections, gone = ConnectionSet(), []

        def hold(body: bytes, push: Any, sender: int) -> None:
            push.on_cancel = lambda: gone.append(body)

        connections.stream_handlers[1] = hold
        connection, wire = connection_of(connections)
        connection.link.data_received(frame(FrameType.OPEN, 1, 7, b"first"))
        connection.link.data_received(frame(FrameType.OPEN, 1, 7, b"second"))
        assert wire.ended and gone == [b"first"]

    run(story())


def test_strangers_are_few_for_a_short_while_and_keep_nobody_out():
    strangers, dropped = UnauthenticatedConnections(), []
    for number in range(UNAUTHENTICATED_MAX + 10):
        crowd, _ = strangers.enter("10.0.0.1")
        crowd.drop = lambda number=number: dropped.append(number)
        if number == 0:
            friend, _ = strangers.enter("10.0.0.2")
            friend.drop = lambda: dropped.append("friend")
    assert len(strangers) == UNAUTHENTICATED_MAX and dropped == list(range(11))
    strangers.leave(friend)
    for _ in range(TICKS_MAX):
        assert strangers.tick() == []
    assert set(strangers.tick()) == {"10.0.0.1"} and len(strangers) == 0 and "friend" not in dropped
    assert [strangers.welcome("10.0.0.1") for _ in range(ARRIVALS_MAX + 2)] == [
        True
    ] * ARRIVALS_MAX + [False] * 2
    assert strangers.welcome("10.0.0.2")
    strangers.tick()
    assert strangers.welcome("10.0.0.1")


def test_whoever_never_finishes_a_hello_is_let_go_and_a_node_comes_in_meanwhile(tmp_path):
    async def story():
        async with one_way(tmp_path) as (one, two):
            callers = [
                socket.create_connection(("127.0.0.1", two.port)) for _ in range(ARRIVALS_MAX // 2)
            ]
            try:
                for caller in callers:
                    caller.setblocking(False)
                    caller.sendall(PREAMBLE.pack(MAGIC, 0, LANE_ASK))
                one.links.add_node(2, ("127.0.0.1", two.port))
                await wait_for(lambda: "found 2" in one.seen)
                port: Any = two.links._port
                await wait_for(lambda: not trickle(callers))
                await wait_for(lambda: len(port._unauthenticated) == 0)
            finally:
                for caller in callers:
                    caller.close()

    run(story())


def trickle(callers: list[socket.socket]) -> bool:
    """A byte on each; whether any is still taken."""
    alive = False
    for caller in callers:
        try:
            caller.send(b"\1")
            caller.recv(1)
        except BlockingIOError:
            alive = True
        except OSError:
            pass
    return alive


def test_without_room_for_an_open_file_nothing_spins_and_it_goes_on_by_itself(tmp_path):
    async def story():
        async with one_way(tmp_path) as (one, two):
            port: Any = two.links._port
            real, tries = port._listener, []

            def refuse() -> None:
                tries.append(1)
                raise OSError(errno.EMFILE, "Too many open files")

            port._listener = SimpleNamespace(accept=refuse, fileno=real.fileno)
            ticks = []
            tick = port.tick
            port.tick = lambda: (ticks.append(1), tick())
            one.links.add_node(2, ("127.0.0.1", two.port))
            await wait_for(lambda: len(ticks) > 5)
            assert 1 <= len(tries) <= len(ticks) + 1
            port._listener = SimpleNamespace(
                accept=real.accept, fileno=real.fileno, close=real.close
            )
            await wait_for(lambda: "found 2" in one.seen)
            port._listener = real

    run(story())
