"""The transactional topics by HTTP: a reader of rows, changes of a topic's profile, and the ends of
the committed records."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from random import Random
from typing import Any

from chaos.nodes import Cluster
from chaos.transaction_clients import PROFILES, STREAMS, SWITCHED
from chaos.transaction_history import ROWS, Held, Poll
from chaos.wire import Answer, Lost, Unsent, ask_once

ASK_SECONDS = 12.0
CHANGE_SECONDS = 60.0
STANDS_SECONDS = 240.0  # at most, with a disk that stands still
READ_SECONDS = 0.2  # between two reads
SWITCH_SECONDS = (2.0, 6.0)  # between two changes
BACK_RECORDS = 50  # that a reader goes back at most
PAGE_RECORDS = 500
LAST_SECONDS = 60.0  # for a read of a whole stream by each node
OPEN = re.compile(r"^polynya_transactions_open(?:{[^}]*})? ([0-9.e+]+)$", re.MULTILINE)


class TransactionWatch:
    """The HTTP client of one run. `polls` and `held` belong to the history."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.polls: list[Poll] = []
        self.held: list[Held] = []
        self.wrong: list[str] = []
        self.switches = 0
        self._cluster, self._seed = cluster, seed
        self._known = dict.fromkeys(STREAMS, 0)

    async def read(self) -> None:
        """Read from some record on, by any node, until cancelled."""
        draw = Random(f"rows {self._seed}")
        while True:
            stream, node = draw.choice(STREAMS), self._any(draw)
            begin = max(0, self._known[stream] - draw.choice((0, 0, BACK_RECORDS)))
            end = await self._page(node, stream, begin)
            self._known[stream] = max(self._known[stream], end)
            await asyncio.sleep(draw.expovariate(1 / READ_SECONDS))

    async def switch(self) -> None:
        """Change the profile of a topic to and fro, until cancelled."""
        draw, wanted = Random(f"switches {self._seed}"), "replicated"
        assert PROFILES[SWITCHED] != wanted
        while True:
            await asyncio.sleep(draw.uniform(*SWITCH_SECONDS))
            if await self._change(self._any(draw), SWITCHED, wanted):
                self.switches += 1
                wanted = "diskless" if wanted == "replicated" else "replicated"

    async def change(self, topic: str, profile: str) -> None:
        """Change the profile of a topic, at one node after the other."""
        deadline = time.monotonic() + 2 * CHANGE_SECONDS
        while time.monotonic() < deadline:
            for node in self._cluster.numbers:
                if await self._change(node, topic, profile):
                    return
            await asyncio.sleep(READ_SECONDS)
        self.wrong.append(f"liveness: {topic} does not become {profile}")

    async def _change(self, node: int, topic: str, profile: str) -> bool:
        body = json.dumps({"configs": {"profile": profile}}).encode()
        kind, path = "application/json", f"/v1/topics/{topic}"
        answer = await self._ask(
            node, "PATCH", path, body, seconds=CHANGE_SECONDS, Content_Type=kind
        )
        if answer is not None and answer.status not in (200, 409, 503):
            self.wrong.append(f"node {node} answers a change of {topic} with {answer}")
        return answer is not None and answer.status == 200

    async def ends(self) -> dict[str, int]:
        """Return the end of the committed records of each stream that a node tells."""
        found = {}
        for stream in STREAMS:
            for node in self._cluster.numbers:
                answer = await self._ask(node, "HEAD", f"/v1/stream/{stream}")
                if answer is not None and answer.status == 200:
                    found[stream] = int(answer.headers["stream-next-offset"].partition("_")[0])
                    break
        return found

    async def until_moved(
        self, before: dict[str, int], seconds: float, is_served: Callable[[], bool] = lambda: True
    ) -> str:
        """Wait until each stable end has moved; return the streams whose end stands."""
        last = time.monotonic() + STANDS_SECONDS
        deadline = time.monotonic() + seconds
        while True:
            now = await self.ends()
            standing = [each for each, end in before.items() if now.get(each, end) <= end]
            if not standing:
                return ""
            if not is_served():
                deadline = min(time.monotonic() + seconds, last)
            if time.monotonic() > deadline:
                return f"the stable ends of {', '.join(standing)} stand for {seconds:.0f} s"
            await asyncio.sleep(0.2)

    async def finish(self) -> None:
        """Read all streams a last time by each node, and count what is held."""
        for node in self._cluster.numbers:
            for stream in STREAMS:
                await self._whole(node, stream)
            answer = await self._ask(node, "GET", "/metrics")
            if answer is not None and answer.status == 200:
                count = int(sum(map(float, OPEN.findall(answer.body.decode()))))
                self.held.append(Held(f"node {node}", time.monotonic(), count))

    async def _whole(self, node: int, stream: str) -> None:
        begin, deadline = 0, time.monotonic() + LAST_SECONDS
        while True:
            end = await self._page(node, stream, begin)
            if end == begin and self._is_last(stream, end):
                return
            if time.monotonic() > deadline:
                self.wrong.append(
                    f"liveness: {stream} cannot be read by node {node} in the end: it is at {end}"
                )
                return
            begin = end

    def _is_last(self, stream: str, end: int) -> bool:
        """Report whether no other answer was further."""
        return end >= max((each.end for each in self.polls if each.stream == stream), default=0)

    async def _page(self, node: int, stream: str, begin: int) -> int:
        """Read a page, and return where it ends: at `begin`, if there is none."""
        began = time.monotonic()
        path = f"/v1/stream/{stream}?record={begin}&record_view=records&max_records={PAGE_RECORDS}"
        answer = await self._ask(node, "GET", path)
        if answer is None or answer.status == 503:
            return begin
        if answer.status != 200:
            self.wrong.append(f"{stream}: node {node} answers a read from {begin} on with {answer}")
            return begin
        end = int(answer.headers["stream-next-offset"].partition("_")[0])
        records = [(each["offset"], each["value"]) for each in json.loads(answer.body)]
        now = time.monotonic()
        self.polls.append(Poll(ROWS, f"node {node}", stream, began, now, begin, end, records))
        return end

    def _any(self, draw: Random) -> int:
        return draw.choice(self._cluster.numbers)

    async def _ask(
        self, node: int, method: str, path: str, body: bytes = b"", *, seconds: float = ASK_SECONDS,
        **headers: Any,
    ) -> Answer | None:  # fmt: skip
        try:
            address = self._cluster.network.http(node)
            return await ask_once(address, method, path, body, seconds=seconds, **headers)
        except (Lost, Unsent):
            return None
