"""Requests for slices: those that are neighbours in a pack share one request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from polynya.base import limits
from polynya.objectstore.api import ObjectStore
from polynya.stream.parts import ColdSlice

GAP_BYTES_MAX = 64 * limits.KIB  # largest gap between two slices that one request fetches
REQUEST_BYTES_MAX = 4 * limits.MIB
_LOCATION = attrgetter("pack", "offset")

Answer = asyncio.Future[bytes | None]  # the stored bytes; None: fetch the slice alone


def cut_requests(slices: Sequence[ColdSlice]) -> list[list[ColdSlice]]:
    """Group slices that are neighbours in a pack into one request each. Parts of one slice are in
    one request."""
    requests: list[list[ColdSlice]] = []
    for cold in sorted(slices, key=_LOCATION):
        if requests:
            first, last = requests[-1][0], requests[-1][-1]
            gap = cold.offset - last.offset - last.stored
            if (
                cold.pack == last.pack
                and gap <= GAP_BYTES_MAX
                and cold.offset + cold.stored - first.offset <= REQUEST_BYTES_MAX
            ):
                requests[-1].append(cold)
                continue
        requests.append([cold])
    return requests


class ReadCounters(msgspec.Struct):
    """Counters for metrics; they only grow."""

    hits: int = 0
    misses: int = 0  # fetches, and readers that waited for one
    fetched_bytes: int = 0


class SliceRequests:
    """Fetches the stored bytes of slices. Those that are wanted in one pass of the loop, by
    whichever readers, are grouped by `cut_requests`."""

    def __init__(self, store: ObjectStore, counters: ReadCounters) -> None:
        self._counters = counters
        self._store = store
        self._wanted: list[tuple[ColdSlice, Answer]] = []
        self._running: set[asyncio.Task[None]] = set()

    async def fetch(self, cold: ColdSlice) -> bytes:
        """Return the stored bytes of a slice. Raises NotFound, StoreUnavailable, or ValueError for
        an object that is too short."""
        loop = asyncio.get_running_loop()
        if not self._wanted:
            loop.call_soon(self._send)
        answer: Answer = loop.create_future()
        self._wanted.append((cold, answer))
        return await answer or (await self._get([cold]))[0]

    async def close(self) -> None:
        """Cancel requests in flight."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _send(self) -> None:
        """Send a request for each group of slices. A slice that is alone is left to its reader."""
        wanted, self._wanted = self._wanted, []
        waiting: dict[tuple[str, int], list[Answer]] = {}
        for cold, answer in wanted:
            waiting.setdefault((cold.pack, cold.offset), []).append(answer)
        for request in cut_requests([cold for cold, _ in wanted]):
            if len(request) == 1:
                _answer(waiting[request[0].pack, request[0].offset], None)
                continue
            locations = {(cold.pack, cold.offset): cold for cold in request}
            task = asyncio.create_task(
                self._fetch(list(locations.values()), [waiting[location] for location in locations])
            )
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _fetch(
        self, request: Sequence[ColdSlice], waiting: Sequence[Sequence[Answer]]
    ) -> None:
        """Fetch the range of all slices, and give each its bytes."""
        try:
            found = await self._get(request)
        except ValueError:  # a slice is behind the object's end; the others may be there
            for answers in waiting:
                _answer(answers, None)
        except Exception as fault:
            for answers in waiting:
                _fail(answers, fault)
        except asyncio.CancelledError:
            for answers in waiting:
                _fail(answers, None)
            raise
        else:
            for data, answers in zip(found, waiting, strict=True):
                _answer(answers, data)

    async def _get(self, request: Sequence[ColdSlice]) -> list[bytes]:
        begin, end = request[0].offset, request[-1].offset + request[-1].stored
        data = await self._store.get_range(request[0].pack, begin, end - begin)
        self._counters.fetched_bytes += len(data)
        if len(request) == 1:
            return [data]
        view = memoryview(data)
        return [
            bytes(view[cold.offset - begin : cold.offset - begin + cold.stored]) for cold in request
        ]


def _answer(answers: Iterable[Answer], data: bytes | None) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_result(data)


def _fail(answers: Iterable[Answer], fault: Exception | None) -> None:
    """Raise the fault in the readers; None: they are cancelled."""
    for answer in answers:
        if fault is None:
            answer.cancel()
        elif not answer.done():
            answer.set_exception(fault)
