"""TLS handshakes: bounded in number and time, and counted from the accept on.

A server of the event loop reports a connection only after its handshake. Handshakes that never
complete would go uncounted and use up all file descriptors. Above the limit, the oldest handshake
is dropped: a real client needs milliseconds.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable

HANDSHAKE_SECONDS = 10  # timeout of a handshake
# concurrent, and at most a quarter of the allowed connections; beyond it the oldest is dropped
HANDSHAKES_MAX = 512
BACKLOG = 1024
ACCEPTS_PER_PASS = 16  # per loop pass: each costs a signature that delays other connections
PAUSE_SECONDS = 0.25  # while the process has no file descriptors left
_NO_ROOM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
log = logging.getLogger("polynya.http")


class Handshakes:
    """The handshakes of one listening socket. `make` creates the protocol of a connection;
    `dropped` is called for each dropped handshake."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        at_most: int,
        dropped: Callable[[], None],
    ) -> None:
        self._listener, self._context, self._make, self._at_most, self._dropped = (
            listener,
            context,
            make,
            at_most,
            dropped,
        )
        self._loop = asyncio.get_running_loop()
        self._pending: dict[asyncio.Task[None], socket.socket] = {}  # oldest first
        self._pause: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._loop.add_reader(listener, self._accept)

    def __len__(self) -> int:
        return len(self._pending)

    def close(self) -> None:
        """Stop accepting, and cancel the handshakes in progress."""
        if self._listener.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._pending:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_PASS):
            try:
                raw, _where = self._listener.accept()
            except OSError as error:
                # the connection stays in the kernel's queue, and would wake the loop at once
                if error.errno in _NO_ROOM:
                    self._loop.remove_reader(self._listener)
                    self._pause = self._loop.call_later(PAUSE_SECONDS, self._resume)
                return
            if len(self._pending) >= self._at_most:
                self._drop_oldest()
            raw.setblocking(False)
            task = self._loop.create_task(self._shake(raw))
            self._pending[task] = raw
            task.add_done_callback(self._done)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    def _drop_oldest(self) -> None:
        task = next(iter(self._pending))
        task.cancel()
        del self._pending[task]  # the task may need another loop pass to end
        self._dropped()

    def _done(self, task: asyncio.Task[None]) -> None:
        raw = self._pending.pop(task, None)
        if task.cancelled() and raw is not None:  # perhaps before it started
            raw.close()

    async def _shake(self, raw: socket.socket) -> None:
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._make,
                raw,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=HANDSHAKE_SECONDS,
            )
        except OSError as error:  # includes ssl.SSLError and TimeoutError
            log.debug("a TLS handshake failed", extra={"reason": str(error)})
            raw.close()
        except BaseException:
            raw.close()
            raise
