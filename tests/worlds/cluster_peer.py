"""Another node of a cluster, as far as greetings go: a transport on a port, in a thread of its
own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from free_ports import free_ports

from polynya.system.ports import shared_listener
from polynya.transport import PeerCluster, Transport


@contextmanager
def cluster_peer(
    directory: Path,
    port: int,
    *,
    cluster: str,
    history: int,
    node: int = 2,
    groups: int = 4,
    removed: int = 0,
) -> Iterator[None]:
    """Run a peer that knows node 1. `removed`: the epoch of the map in which it is no longer
    listed."""
    directory.mkdir(exist_ok=True)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    about = PeerCluster(
        cluster,
        history,
        node,
        groups,
        {1: ("127.0.0.1", free_ports(1)[0])},
        shared_listener("127.0.0.1", port),
        None,
    )

    async def start() -> Transport:
        made = Transport(0, 1, str(directory), start_id="peer", cluster=about)
        await made.start()
        if removed:
            assert made.node_links is not None
            made.node_links.dismiss_node(1, removed)
        return made

    transport = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(transport.close(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
