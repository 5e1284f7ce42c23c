"""The proxy of the client's tests: whatever is under way when it closes ends with it."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import ExitStack

import pytest
from fault_proxy import FaultProxy, Faults


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_is_just_made_ends_with_it(turns: int) -> None:
    """Close the proxy in each of the first passes of its loop after a connection arrived. In one
    pass the copying tasks have not begun. A loop that drops them warns much later that a
    coroutine was never awaited."""
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as stack:
        proxy, held, gate = (
            FaultProxy(server.getsockname()[:2], Faults(), 1),
            threading.Event(),
            threading.Event(),
        )
        for _ in range(2):
            stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port)))
            stack.enter_context(server.accept()[0])

        def end(after: int) -> None:
            if after:
                proxy._loop.call_soon(end, after - 1)
            else:
                proxy._ended.set()

        proxy._loop.call_soon_threadsafe(lambda: (held.set(), gate.wait(60), end(turns)))
        assert held.wait(60)
        stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port)))
        gate.set()
        proxy._thread.join(60)
        assert not asyncio.all_tasks(proxy._loop)
