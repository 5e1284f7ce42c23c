"""Clients that fork a stream, and trim it, limit its retention or delete it between the steps of
the fork. A fork that was created has all that its source had between the source's first record,
when it was pinned, and the fork point; and it keeps that until it is trimmed or deleted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from worlds.service import raw_batch

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import Page, ReadQuery, Refusal, StreamInfo, TrimQuery
from polynya.local.forks import create_fork
from polynya.service.node_service import NodeService
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import ConfirmPin, PinSource
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.retention.commands import SetRetention
from polynya.stream.parts import Encoding, Producer, Retention
from polynya.stream.replies import Code, Reply
from polynya.wal import DiskFull

if TYPE_CHECKING:
    from sim.chaos import Episode
    from sim.cluster import Node

Result = TypeVar("Result")
SHARE = 0.35  # of the worlds
CLIENTS = 2
WIDTH = 8  # bytes of each record
# the last step before the source changes
PINNED, CREATED, CONFIRMED = (
    "pinned",
    "created",
    "confirmed",
)
STEPS = {PinSource: PINNED, Create: CREATED, ConfirmPin: CONFIRMED}
CHANGES = ("trim", "retain", "delete")
RETAIN_SECONDS = 2.5  # the retainer finds it in its second pass
FOR_NOW = (Code.DISK_FULL, Code.MEMORY_PRESSURE)
# pins whose coordinator died wait for a minute of log time, and then for room in a group whose
# limit of uncommitted bytes may be a few entries (seed 48286612: 155 s)
SETTLED_SECONDS = 400.0


class Interrupted:
    """A node's service, as the coordinator of a fork sees it: behind the step `after` the source
    changes."""

    def __init__(
        self,
        service: NodeService,
        source: str,
        after: str,
        change: str,
        cut: tuple[int, int],
        pause: float,
    ) -> None:
        self._service, self._source = service, source
        self._after, self._change, self._cut, self._pause = after, change, cut, pause

    def now_ms(self) -> int:
        return self._service.now_ms()

    def group_of(self, name: str) -> int:
        return self._service.group_of(name)

    async def read(self, query: ReadQuery) -> Page | Refusal:
        return await self._service.read(query)

    async def call(self, group: int, command: Command) -> Reply:
        reply = await self._service.call(group, command)
        if STEPS.get(type(command)) == self._after and reply.code in (Code.OK, Code.CREATED):
            with suppress(Unavailable, OutcomeUnknown, DiskFull):
                await change_source(self._service, self._source, self._change, self._cut)
            await asyncio.sleep(self._pause)  # for the flusher, the retainer and the collector
        return reply


async def change_source(
    service: NodeService, source: str, change: str, cut: tuple[int, int]
) -> None:
    """Trim the source up to `cut`, keep none of its bytes, or delete it."""
    group, now_ms = service.group_of(source), service.now_ms()
    if change == "trim":
        await service.trim(TrimQuery(source, *cut))
    elif change == "retain":
        await service.call(group, SetRetention(source, Retention(None, 0), now_ms, 0))
    else:
        await service.call(group, Delete(source, now_ms))


class Round:
    """One source and one fork of it, under names of their own."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.source, self.fork = f"forks/{key}-source", f"forks/{key}-fork"
        self.records: list[bytes] = []  # of the source
        # the first record of the source when it is pinned, and the fork point
        self.first = self.point = 0
        self.created: bool | None = None  # None: unknown

    def payload(self) -> bytes:
        """Return the source's next record."""
        return b"f%06d;" % (hash_of(self.key) * 10 + len(self.records))

    def append(self, payload: bytes, now_ms: int) -> Append:
        """Return an append that can be repeated: the record's number is the producer's sequence."""
        return Append(
            self.source,
            now_ms,
            "text/plain",
            raw_batch(payload),
            Producer("forks", 0, len(self.records)),
        )

    def check(self, page: Page | Refusal, first: int, content: bytes) -> None:
        """Check the fork's content. `content`: all of the fork from its first record on."""
        wanted = b"".join(self.records[self.first : self.point])
        assert isinstance(page, Page), (
            f"{self.fork} cannot be read from its first record on: {page}"
        )
        assert (first, content) == (self.first, wanted), (
            f"{self.fork} has {content!r} from {first} on, and inherited {wanted!r} from "
            f"{self.first} on"
        )


def hash_of(key: str) -> int:
    """Return a number of five digits at most: rounds of one episode rarely share one."""
    return sum((index + 1) * 131 * byte for index, byte in enumerate(key.encode())) % 100_000


class Forkers:
    """Clients of one episode that create and read forks."""

    def __init__(self, episode: Episode) -> None:
        self._episode, self._world = episode, episode.world
        self.strikes = Random(f"forks {episode.seed}").random() < SHARE
        self.rounds: list[Round] = []
        self.counts: Counter[str] = Counter()

    def clients(self) -> list[asyncio.Future[None]]:
        return (
            [asyncio.ensure_future(self._client(number)) for number in range(CLIENTS)]
            if self.strikes
            else []
        )

    async def finish(self) -> None:
        """Check on a healthy cluster that each fork has what it inherited. After the deletion of
        both, nothing is left of them."""
        random = Random("forks")
        for each in self.rounds:
            await self._surely(lambda each=each: self._read(each, random))  # type: ignore[misc]
        for each in self.rounds:
            for name in (each.source, each.fork):
                await self._surely(lambda name=name: self._delete(name, random))  # type: ignore[misc]
        deadline = asyncio.get_running_loop().time() + SETTLED_SECONDS
        while left := self._left():
            assert asyncio.get_running_loop().time() < deadline, (
                f"deleted, and still there though all is well: {left}"
            )
            await asyncio.sleep(1.0)

    def _left(self) -> list[str]:
        """List the streams that are in a machine of some leader."""
        names = {name for each in self.rounds for name in (each.source, each.fork)}
        led = [machine for node in self._world.alive() for machine in node.core.led.values()]
        return sorted(
            name
            for machine in led
            for name in names
            & (machine.directory.streams.keys() | machine.directory.evicted.keys())
        )

    async def _client(self, number: int) -> None:
        random, count = Random(f"forker {self._episode.seed} {number}"), 0
        while not self._episode.over:
            await asyncio.sleep(random.expovariate(1 / 0.5))
            each, count = Round(f"{number}-{count}"), count + 1
            if await self._prepare(each, random):
                self.rounds.append(each)
                await self._fork(each, random)
                await asyncio.sleep(random.uniform(0.0, 2.0))
                with suppress(Unavailable, OutcomeUnknown):
                    await self._read(each, random)

    # --- before

    async def _prepare(self, each: Round, random: Random) -> bool:
        """Create a source whose records are all known. False: there was no time for it."""
        create = lambda node: node.propose(  # noqa: E731
            each.source, Create(each.source, self._now_ms(node), "text/plain", Encoding.BYTES)
        )
        if await self._until(create, random, (Code.CREATED, Code.EXISTS)) is None:
            return False
        for _ in range(random.randint(2, 5)):
            payload = each.payload()
            append = lambda node, payload=payload: node.propose(  # noqa: E731
                each.source, each.append(payload, self._now_ms(node))
            )
            if await self._until(append, random, (Code.OK, Code.DUPLICATE)) is None:
                return False
            each.records.append(payload)
            await asyncio.sleep(random.choice((0.0, 0.0, 0.6)))  # some are flushed meanwhile
        each.first = random.choice((0, 0, 1))
        each.point = random.randint(each.first + 1, len(each.records))
        while each.first and not self._episode.over:
            with suppress(Unavailable, OutcomeUnknown, DiskFull, IndexError):
                node = random.choice(self._world.alive())
                await self._ask(
                    node,
                    node.engine.service.trim(
                        TrimQuery(each.source, each.first, each.first * WIDTH)
                    ),
                )
                break
            await asyncio.sleep(0.2)
        return not self._episode.over

    async def _until(self, propose: Any, random: Random, codes: tuple[Code, ...]) -> Reply | None:
        """Ask one node after the other until the answer is one of these. None: the episode is
        over."""
        while not self._episode.over:
            alive = self._world.alive()
            if alive:
                node = random.choice(alive)
                with suppress(Unavailable, OutcomeUnknown):
                    reply: Reply = await self._ask(node, propose(node))
                    if reply.code in codes:
                        return reply
                    assert reply.code in FOR_NOW, f"a source of a fork: {reply}"
            await asyncio.sleep(0.2)
        return None

    # --- the fork

    async def _fork(self, each: Round, random: Random) -> None:
        alive = self._world.alive()
        if not alive:
            each.created = False
            return
        node, after, change = (
            random.choice(alive),
            random.choice((PINNED, PINNED, PINNED, CREATED, CONFIRMED)),
            random.choice(CHANGES),
        )
        cut = random.randint(each.first + 1, len(each.records))
        pause = RETAIN_SECONDS if change == "retain" else random.choice((0.0, 0.3, 2.0))
        service = Interrupted(
            node.engine.service, each.source, after, change, (cut, cut * WIDTH), pause
        )
        create = Create(each.fork, self._now_ms(node), "", Encoding.BYTES)
        code = "unknown"
        try:
            work = create_fork(service, create, each.source, (each.point, each.point * WIDTH, 0))
            reply = await self._ask(node, work, 20.0)
            each.created, code = reply.code == Code.CREATED, Code(reply.code).name
            # refused: a clock that jumps by a minute ends an attempt that is not confirmed
            assert reply.code in (Code.CREATED, Code.ATTEMPT_REFUSED, *FOR_NOW), (
                f"{each.fork}: {reply}, though its source was there when it was pinned"
            )
        except (Unavailable, DiskFull):
            each.created, code = None, "unavailable"
        except OutcomeUnknown:
            each.created = None
        self.counts[f"{after} {change} {code}"] += 1
        self._episode.note(f"{each.fork}: {change} once {after}: {code}")

    # --- behind it

    async def _read(self, each: Round, random: Random) -> None:
        """Read all of the fork, and check it. Raises Unavailable, OutcomeUnknown."""
        alive = self._world.alive()
        if not alive:
            raise Unavailable("no node is up")
        node, at, content, first = random.choice(alive), (-1, 0), b"", -1
        while True:
            query = ReadQuery(each.fork, *at, bytes_max=self._world.page_bytes, whole_records=True)
            page = await self._ask(node, node.engine.service.read(query), 30.0)
            if isinstance(page, Refusal) and page.code == Code.NOT_FOUND and not each.created:
                return
            if not isinstance(page, Page):
                each.check(page, first, content)
                return
            first = page.begin_record if first < 0 else first
            content += b"".join(bytes(span.payload) for span in page.spans)
            if page.up_to_date:
                each.check(page, first, content)
                self.counts["read"] += 1
                return
            at = (page.record, page.byte)

    async def _delete(self, name: str, random: Random) -> None:
        node = random.choice(self._world.alive())
        await self._ask(node, node.propose(name, Delete(name, self._now_ms(node))))
        info: StreamInfo | Refusal = await self._ask(node, node.engine.service.info(name))
        if isinstance(info, StreamInfo):
            raise Unavailable("it was not deleted")

    async def _surely(self, act: Any) -> None:
        """Run an action that must succeed on a healthy cluster."""
        last: Exception | None = None
        for _ in range(50):
            try:
                await act()
                return
            except (Unavailable, OutcomeUnknown) as fault:
                last = fault
            await asyncio.sleep(0.2)
        raise AssertionError(f"forks and their sources cannot be used though all is well: {last}")

    async def _ask(
        self, node: Node, work: Coroutine[Any, Any, Result], seconds: float = 7.0
    ) -> Result:
        return await node.background.ask(work, seconds)

    def _now_ms(self, node: Node) -> int:
        return node.engine.service.now_ms()


__all__ = ["Forkers"]
