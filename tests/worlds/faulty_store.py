"""An S3 server before which a proxy fails as a test says, in a thread of its own."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos.objects import FAIR, Store, Weather, address_of  # noqa: E402 (no part of the package)

__all__ = ["FAIR", "FaultyStore", "Weather", "faulty"]
SEED = 7
STOP_SECONDS = 10.0


class FaultyStore:
    """The proxy of a server. `endpoint` is where nodes reach it."""

    def __init__(self) -> None:
        self.endpoint = ""
        self._store = Store(SEED)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def met(self) -> Counter[str]:
        """Count the injected faults by kind."""
        return self._store.met

    def turn(self, weather: Weather) -> None:
        self._loop.call_soon_threadsafe(self._store.turn, weather)

    def start(self, upstream: str) -> None:
        self._thread.start()
        listening = self._store.listen("127.0.0.1", address_of(upstream))
        host, port = asyncio.run_coroutine_threadsafe(listening, self._loop).result(STOP_SECONDS)
        self.endpoint = f"http://{host}:{port}"

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        self._loop.close()

    async def _end(self) -> None:
        self._store.turn(FAIR)  # who waits for an answer goes on, and ends
        await self._store.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def faulty(upstream: str) -> Iterator[FaultyStore]:
    """Start the proxy before the server at this endpoint."""
    made = FaultyStore()
    made.start(upstream)
    try:
        yield made
    finally:
        made.stop()
