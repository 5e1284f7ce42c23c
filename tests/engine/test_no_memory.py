"""A core without memory stops instead of continuing half-done work."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from polling import turns

from polynya.cluster.discovery import ask_others
from polynya.config.model import Config
from polynya.local.api import LiveEvent
from polynya.local.feeds import Feeds
from polynya.node.fail_stop import EXIT_FAULT, lost_callback, lost_thread
from polynya.transport import report_lost


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(threading, "excepthook", lost_thread)
    yield codes


def starve() -> None:
    raise MemoryError


def test_a_thread_that_dies_takes_its_core_down(ended: list[int]) -> None:
    """End the process with its journal thread: the loop would otherwise wait without end for a
    write's completion."""
    thread = threading.Thread(target=starve)
    thread.start()
    thread.join()
    assert ended == [EXIT_FAULT]


def test_a_callback_that_found_no_memory_takes_its_core_down(ended: list[int]) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lost_callback)
        loop.call_soon(lambda: 1 // 0)
        await asyncio.sleep(0)
        assert ended == []
        loop.call_soon(starve)
        await asyncio.sleep(0)
        assert ended == [EXIT_FAULT]

    asyncio.run(story())


def test_a_connection_that_found_no_memory_is_cut_and_costs_no_other(ended: list[int]) -> None:
    class Starving(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            raise MemoryError

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lost_callback)
        server = await loop.create_server(Starving, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"x")
        try:
            assert await reader.read() == b""
        except ConnectionResetError:
            pass
        writer.close()
        server.close()
        assert ended == []

    for runner in (asyncio.run, uvloop.run):
        runner(story())


@pytest.mark.parametrize("handler", [lost_callback, report_lost])
def test_a_connection_that_ends_as_something_arrives_is_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture, handler: Any
) -> None:
    """uvloop's TLS answers on a transport that is closed, and tells the loop of it
    (uvloop/sslproto.pyx, `_do_read`)."""
    caplog.set_level(logging.INFO)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(handler)
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        transport, protocol = await loop.create_connection(
            asyncio.Protocol, *server.sockets[0].getsockname()
        )
        transport.abort()
        await turns()
        with pytest.raises(RuntimeError) as caught:
            transport.write(b"x")
        context = {
            "message": "Fatal error on SSL protocol",
            "exception": caught.value,
            "transport": transport,
            "protocol": protocol,
        }
        loop.call_exception_handler(context)
        server.close()

    uvloop.run(story())
    (line,) = caplog.records
    assert (line.levelno, line.exc_info, "closed" in line.error) == (logging.INFO, None, True)  # type: ignore[attr-defined]


@pytest.mark.parametrize("handler", [lost_callback, report_lost])
def test_a_transport_that_an_error_closed_counts_as_ended(
    caplog: pytest.LogCaptureFixture, handler: Any
) -> None:
    """A reset during the handshake closes uvloop's transport without marking it as closing."""
    caplog.set_level(logging.INFO)
    fault = RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")

    async def story() -> None:
        transport = SimpleNamespace(is_closing=lambda: False)
        handler(asyncio.get_running_loop(), {"exception": fault, "transport": transport})

    asyncio.run(story())
    (line,) = caplog.records
    assert (line.levelno, line.exc_info) == (logging.INFO, None)


def test_who_asks_other_nodes_before_it_starts_reports_so_too() -> None:
    async def story() -> None:
        assert await ask_others(Config(), []) == {}
        assert asyncio.get_running_loop().get_exception_handler() is report_lost

    asyncio.run(story())


def test_a_live_reader_that_failed_hears_that_it_has_to_resume() -> None:
    """A feed to another core would else stand still for all readers there, as nothing tells of the
    event that is missing."""
    heard: list[bool] = []

    class Reader:
        def live(self, event: LiveEvent) -> None:
            heard.append(event.cut)
            if not event.cut:
                raise MemoryError

    feeds = Feeds()
    feeds.attach(7, Reader())
    feeds.publish(LiveEvent(7, 0, 0, 1, 1, 0, b"x"))
    assert heard == [False, True] and not feeds.uids()
