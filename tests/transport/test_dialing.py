"""A connection that breaks during its handshake leaks no descriptor on either side, and the dialer
keeps dialing."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import struct
import threading
from pathlib import Path

import pytest
import uvloop
from polling import turns
from worlds.two_nodes import port_of

from polynya.cluster.certificates import make_authority, make_certificate, peer_tls
from polynya.transport.dialing import Dialer, PeerTls, _Greeting
from polynya.transport.handshake import LANE_ASK, MAGIC, PREAMBLE, Hello
from polynya.transport.link import PROTOCOL_VERSION
from polynya.transport.link_events import LinkEvents
from polynya.transport.peer_listener import ConnectionSet
from polynya.transport.port import NodePort

OWN = Hello(PROTOCOL_VERSION, PROTOCOL_VERSION, "c" * 32, 1, 4, 1, 0, 1, "s", "test")
TRIES = 150
HELD_MAX = 300


def reset_all(listener: socket.socket) -> None:
    """Accept connections and reset each at its first bytes, as a proxy does whose other side is
    gone."""
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        accepted.recv(PREAMBLE.size)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()


async def one_more(opened: list[int]) -> None:
    """Another descriptor, in this pass of the loop; the oldest goes when there are many, however
    slow the machine is."""
    opened.append(os.open(os.devnull, os.O_RDONLY))
    await asyncio.sleep(0)
    if len(opened) > HELD_MAX:
        os.close(opened.pop(0))


async def dial(dialer: Dialer) -> list[int]:
    """Descriptors that were opened meanwhile by others."""
    opened: list[int] = []
    for _ in range(TRIES):
        tries = [asyncio.ensure_future(dialer.connect(0, 0)) for _ in range(2)]
        while not all(each.done() for each in tries):
            await one_more(opened)
        for each in tries:
            with pytest.raises(OSError):
                each.result()
    del tries, each
    for _ in range(3):
        gc.collect()
        await turns()
    return opened


def test_a_connection_that_breaks_at_once_closes_its_own_descriptor_alone() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        thread = threading.Thread(target=reset_all, args=(listener,), daemon=True)
        thread.start()
        dialer = Dialer(OWN, 2, listener.getsockname(), PeerTls(context, context), LinkEvents())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            opened = runner.run(dial(dialer))
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    null = os.stat(os.devnull)
    for descriptor in opened:
        assert os.path.samestat(os.fstat(descriptor), null), (
            f"descriptor {descriptor} is another's now"
        )
        os.close(descriptor)


def test_a_connection_lost_before_anybody_waits_for_its_answer_is_no_error_of_the_loop() -> None:
    async def story() -> None:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: reported.append(what))
        greeting = _Greeting(ConnectionResetError("gone"), checked=False)
        greeting.link.connection_lost(None)
        await asyncio.sleep(0)
        assert isinstance(greeting.answer.exception(), ConnectionResetError)
        other = _Greeting(ConnectionResetError("gone"), checked=False)
        other.link.connection_lost(None)
        await asyncio.sleep(0)
        del greeting, other
        gc.collect()
        assert reported == []

    asyncio.run(story())


def knock(core_id: tuple[str, int], stop: threading.Event) -> None:
    """Connects, says for which core, and breaks the connection in the middle of what should be a
    handshake."""
    for turn in range(TRIES):
        if stop.is_set():
            return
        with socket.create_connection(core_id) as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.sendall(PREAMBLE.pack(MAGIC, 0, LANE_ASK) + (b"no handshake" if turn % 2 else b""))


async def visited(port: NodePort, core_id: tuple[str, int]) -> list[int]:
    """Descriptors that were opened by others while strangers knocked, one in each pass of the
    loop."""
    opened: list[int] = []
    port.open()
    stop = threading.Event()
    inbound = [asyncio.create_task(asyncio.to_thread(knock, core_id, stop)) for _ in range(2)]
    while not all(each.done() for each in inbound):
        await one_more(opened)
    stop.set()
    await asyncio.gather(*inbound)
    await port.close()
    gc.collect()
    return opened


def test_who_is_turned_away_at_the_door_takes_nobody_s_descriptor_along(tmp_path: Path) -> None:
    make_authority(tmp_path)
    make_certificate(tmp_path, 1, ["127.0.0.1"])
    tls = peer_tls(tmp_path / "ca.crt", tmp_path / "node-1.crt", tmp_path / "node-1.key")
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    listener.setblocking(False)
    port = port_of(ConnectionSet(), OWN, listener=listener, directory=str(tmp_path), tls=tls)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        opened = runner.run(visited(port, listener.getsockname()))
    null = os.stat(os.devnull)
    for descriptor in opened:
        assert os.path.samestat(os.fstat(descriptor), null), (
            f"descriptor {descriptor} is another's now"
        )
        os.close(descriptor)


def test_what_nobody_foresaw_is_a_failure_like_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(dialer: Dialer, core: int, lane: int) -> None:
        raise RuntimeError("File descriptor 26 is used by transport")

    monkeypatch.setattr(Dialer, "_connect", broken)
    dialer = Dialer(OWN, 2, ("127.0.0.1", 9), None, LinkEvents())
    with pytest.raises(ConnectionError, match="descriptor 26"):
        asyncio.run(dialer.connect(0, 0))
