"""The connections of one front, with what serves them: listening sockets, tasks, the sweep."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from polynya.front.common.pipeline import Ticks
from polynya.front.common.tls_handshakes import BACKLOG, Handshakes

SWEEP_SECONDS = 2.0


class Served(Protocol):
    """A connection of a front."""

    def sweep(self, tick: int) -> None:
        """Enforce the timeouts at the coarse second `tick`."""
        ...

    def stop(self) -> None:
        """Read no further requests, and close after the responses in flight."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


_Connection = TypeVar("_Connection", bound=Served)


class ConnectionSet(Generic[_Connection]):
    """The open connections of one front. `stopping`: no further requests are read."""

    def __init__(self) -> None:
        self.ticks = Ticks()
        self.stopping = False
        self._open: set[_Connection] = set()
        self._servers: list[asyncio.Server | Handshakes] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[_Connection]:
        """Iterate over a copy: connections may end meanwhile."""
        return iter(tuple(self._open))

    def add(self, connection: _Connection) -> None:
        """Add a connection that was made."""
        self._open.add(connection)

    def discard(self, connection: _Connection) -> None:
        """Remove a connection that is lost."""
        self._open.discard(connection)
        if self._drained is not None and not self._open:
            self._drained.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work that ends with the front."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def listen(
        self,
        sockets: Sequence[socket.socket],
        make: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        *,
        handshakes_max: int,
        dropped: Callable[[], None],
    ) -> None:
        """Accept connections on listening sockets; `stop` closes them. `dropped`: see
        `Handshakes`."""
        loop = asyncio.get_running_loop()
        for listener in sockets:
            self._servers.append(
                await loop.create_server(make, sock=listener, backlog=BACKLOG)
                if tls is None
                else Handshakes(listener, tls, make, at_most=handshakes_max, dropped=dropped)
            )

    def sweep_with(self, sweep: Callable[[int], None]) -> None:
        """Call `sweep` with the coarse seconds, from now on every other second."""
        loop = asyncio.get_running_loop()
        self.ticks.now = int(loop.time())
        self._timer = loop.call_later(SWEEP_SECONDS, self._sweep, sweep)

    def _sweep(self, sweep: Callable[[int], None]) -> None:
        self.sweep_with(sweep)
        sweep(self.ticks.now)

    def close(self) -> None:
        """Stop accepting connections and reading requests."""
        self.stopping = True
        for server in self._servers:
            server.close()

    async def drain(self, grace: float) -> None:
        """Wait until all connections have ended; after `grace` seconds, abort them."""
        self._drained = asyncio.Event()
        if self._open:
            timer = asyncio.get_running_loop().call_later(grace, self._abort_all)
            await self._drained.wait()
            timer.cancel()

    async def end(self) -> None:
        """End the sweep and the tasks."""
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _abort_all(self) -> None:
        for connection in self:
            connection.abort()
