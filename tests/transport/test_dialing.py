"""A connection that breaks while it is made costs nobody else a descriptor, and whoever dials goes on dialing."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import struct
import threading

import pytest
import uvloop

from polynya.transport.dialing import Dialer, PeerTls
from polynya.transport.hello import PREAMBLE, Hello
from polynya.transport.link import PROTOCOL_VERSION

OWN = Hello(PROTOCOL_VERSION, PROTOCOL_VERSION, "c" * 32, 1, 4, 1, 0, 1, "s", "test")
TRIES = 150


def reset_all(listener: socket.socket) -> None:
    """Accepts, and breaks what it accepted when the first bytes have come, as a proxy does whose other side is gone."""
    while True:
        try:
            accepted, _ = listener.accept()
        except OSError:
            return
        accepted.recv(PREAMBLE.size)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        accepted.close()


async def dial(dialer: Dialer) -> list[int]:
    """Descriptors that were opened meanwhile by others."""
    opened: list[int] = []
    for _ in range(TRIES):
        tries = [asyncio.ensure_future(dialer.connect(0, 0)) for _ in range(2)]
        while not all(each.done() for each in tries):
            opened.append(os.open(os.devnull, os.O_RDONLY))
            await asyncio.sleep(0)
        for each in tries:
            with pytest.raises(OSError):
                each.result()
    del tries, each
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0.01)
    return opened


def test_a_connection_that_breaks_at_once_closes_its_own_descriptor_alone() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        thread = threading.Thread(target=reset_all, args=(listener,), daemon=True)
        thread.start()
        dialer = Dialer(OWN, 2, listener.getsockname(), PeerTls(context, context), lambda hello: None)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            opened = runner.run(dial(dialer))
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    null = os.stat(os.devnull)
    for descriptor in opened:
        assert os.path.samestat(os.fstat(descriptor), null), f"descriptor {descriptor} is another's now"
        os.close(descriptor)


def test_what_nobody_foresaw_is_a_failure_like_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(dialer: Dialer, core: int, lane: int) -> None:
        raise RuntimeError("File descriptor 26 is used by transport")

    monkeypatch.setattr(Dialer, "_connect", broken)
    dialer = Dialer(OWN, 2, ("127.0.0.1", 9), None, lambda hello: None)
    with pytest.raises(ConnectionError, match="descriptor 26"):
        asyncio.run(dialer.connect(0, 0))
