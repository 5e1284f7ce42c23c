"""Appends to streams of several groups, all or nothing, in a simulated cluster: requests at any
node, which are repeated until they are answered, while nodes die. All or none of a request's
records are ever seen, each once: none of those that were refused, all of those that were
acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import re
from random import Random

from sim.calls import answer_of
from sim.chaos import Episode
from sim.cluster import Node
from sim.knobs import Knobs
from worlds.service import raw_batch

from polynya.base import levels
from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import Page, ReadQuery, StreamInfo
from polynya.service.transactions.appends import Part
from polynya.stream.features.appends.commands import Append, AppendIf
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding, Producer
from polynya.stream.replies import Code, Reply

NAMES = tuple(f"test/together{number}" for number in range(5))
WRITERS = 4
CALL_SECONDS = 25.0  # longer than a request may take
_VALUE = re.compile(rb"<([^>]*)>")


class Request:
    """A request, and what its writer knows of it."""

    def __init__(self, value: str, names: list[str]) -> None:
        self.value, self.names = value, names
        self.outcome: bool | None = None  # None: not known


class TogetherEpisode(Episode):
    """The plain world, with writers to several streams beside a few clients of HTTP."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        self.world.release = levels.LEVEL
        self.world.runs_transactions = True
        self.requests: list[Request] = []
        self.seen: dict[str, set[str]] = {name: set() for name in NAMES}
        self.uids: dict[str, int] = {}

    def acknowledged_count(self) -> int:
        return super().acknowledged_count() + sum(each.outcome is True for each in self.requests)

    def summary(self) -> str:
        counts = [sum(each.outcome is wanted for each in self.requests) for wanted in (True, False)]
        return f"{super().summary()}, {counts[0]} requests applied, {counts[1]} refused"

    def clients(self) -> list[asyncio.Future[None]]:
        work = [self._append(0), self._read(), self._together()]
        return [asyncio.ensure_future(each) for each in work]

    async def _together(self) -> None:
        for name in NAMES:
            while name not in self.uids and not self.over:
                with contextlib.suppress(Unavailable, OutcomeUnknown, IndexError):
                    node = self.random.choice(self.world.alive())
                    reply = await node.propose(name, Create(name, 0, "text/plain", Encoding.BYTES))
                    if reply.code in (Code.CREATED, Code.EXISTS):
                        self.uids[name] = reply.uid
                await asyncio.sleep(0.1)
        if len(self.uids) == len(NAMES):
            writers = (self._write(number) for number in range(WRITERS))
            await asyncio.gather(*writers, self._look(), self._alone())

    # --- writers ----------------------------------------------------------------------------------

    async def _write(self, number: int) -> None:
        random = Random(f"together {self.seed} {number}")
        sequences = dict.fromkeys(NAMES, 0)
        while not self.over:
            value = f"{number}:{len(self.requests)}"
            names = random.sample(NAMES, random.randint(2, 3))
            request = Request(value, names)
            self.requests.append(request)
            first = names[0]
            producer = Producer(f"together{number}", 0, sequences[first])
            made = [self._part(name, value, random) for name in names[1:]]
            batch = raw_batch(f"<{value}>".encode())
            parts: list[Part] = [Append(first, 0, "text/plain", batch, producer), *made]
            if random.random() < 0.2:
                lone = random.choice([name for name in NAMES if name not in names])
                parts.append(AppendIf(lone, 0, "", None, record=await self._tail(lone)))
            random.shuffle(parts)
            if await self._until_known(request, parts, random):
                sequences[first] += 1
            await asyncio.sleep(random.expovariate(1 / 0.1))

    def _part(self, name: str, value: str, random: Random) -> Part:
        batch = raw_batch(f"<{value}>".encode())
        if random.random() < 0.15:  # it is refused
            return AppendIf(name, 0, "text/plain", batch, record=1 << 40)
        return Append(name, 0, "text/plain", batch)

    async def _until_known(self, request: Request, parts: list[Part], random: Random) -> bool:
        """Repeat a request until it is applied or refused; report whether it is applied. When all
        is over it may stay unknown."""
        while not self.over:
            reply = await self._ask(parts)
            match reply and Code(reply.code):
                case Code.OK | Code.DUPLICATE:
                    request.outcome = True
                    self.note(f"{request.value} is applied")
                    return True
                case Code.NONE_APPENDED:
                    assert reply is not None
                    code = Code(reply.detail[1][0])
                    self.note(f"{request.value} is refused: {code.name}")
                    if code == Code.PRECONDITION:
                        request.outcome = False
                        return False
                    assert code in (Code.UNSTABLE, Code.NOT_YET, Code.TOO_MANY), reply
                case None | Code.DISK_FULL | Code.MEMORY_PRESSURE:
                    pass
                case _:
                    raise AssertionError(f"{request.value} is answered {reply}")
            await asyncio.sleep(random.uniform(0.05, 0.5))
        return False

    async def _ask(self, parts: list[Part]) -> Reply | None:
        """Send a request to any node; None: its outcome is not known."""
        alive = self.world.alive()
        if not alive:
            return None
        node = self.random.choice(alive)
        return await answer_of(node, node.engine.appends_across.append(parts), CALL_SECONDS)

    async def _alone(self) -> None:
        """Append to single streams, among the requests."""
        random, count = Random(f"alone {self.seed}"), 0
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / 0.3))
            count += 1
            alive = self.world.alive()
            if alive:
                with contextlib.suppress(Unavailable, OutcomeUnknown):
                    await random.choice(alive).append(random.choice(NAMES), b"(%d)" % count)

    # --- readers ----------------------------------------------------------------------------------

    async def _tail(self, name: str) -> int:
        """Return where a stream ends, or where it surely does not."""
        alive = self.world.alive()
        if alive:
            node = self.random.choice(alive)
            with contextlib.suppress(Unavailable, OutcomeUnknown, TimeoutError):
                async with asyncio.timeout(3):
                    info = await node.process.drive(node.engine.service.info(name))
                if isinstance(info, StreamInfo):
                    return info.record
        return 1 << 40

    async def _look(self) -> None:
        while not self.over:
            await asyncio.sleep(self.random.expovariate(1 / 0.2))
            alive = self.world.alive()
            if alive:
                with contextlib.suppress(Unavailable, OutcomeUnknown, TimeoutError):
                    async with asyncio.timeout(3):
                        await self._values(self.random.choice(alive), self.random.choice(NAMES))

    async def _values(self, node: Node, name: str) -> list[str]:
        """Read a stream; what is seen once must stay."""
        life = node.life
        found: list[str] = []
        at = (0, 0)
        while True:
            page = await node.process.drive(node.engine.service.read(ReadQuery(name, *at)))
            assert isinstance(page, Page), page
            for span in page.spans:
                found += [each.decode() for each in _VALUE.findall(bytes(span.payload))]
            if page.up_to_date:
                break
            at = (page.record, page.byte)
        if node.life == life and node.alive:
            assert self.seen[name] <= set(found), f"{name} loses {self.seen[name] - set(found)}"
            self.seen[name] = set(found)
        return found

    # --- the end ----------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait on the healthy cluster until nothing is undecided, then read all and check."""
        if len(self.uids) < len(NAMES):
            return
        for _ in range(100):
            await asyncio.sleep(0.5)
            if not self._held():
                break
        assert not self._held(), f"what is undecided though all is well: {self._held()}"
        alive = self.world.alive()
        contents = {name: await self._values(self.random.choice(alive), name) for name in NAMES}
        for request in self.requests:
            self._check(request, contents)

    def _check(self, request: Request, contents: dict[str, list[str]]) -> None:
        counts = {name: contents[name].count(request.value) for name in request.names}
        assert len(set(counts.values())) == 1, f"a part of {request.value} is seen: {counts}"
        (count,) = set(counts.values())
        assert count <= 1, f"{request.value} is there {count} times"
        wanted = {True: (1,), False: (0,), None: (0, 1)}[request.outcome]
        assert count in wanted, f"{request.value} is there {count} times: {request.outcome}"

    def _held(self) -> list[str]:
        return [
            f"{node.number}: {what}"
            for node in self.world.alive()
            for machine in node.engine.local.led.values()
            for what in (
                *machine.transactions.active,
                *(stream.name for stream in machine.directory.undecided.values()),
            )
        ]


def run_together(seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> str:
    """Play an episode; the same seed gives the same checksum. Raises AssertionError with the
    violated invariant."""
    return TogetherEpisode(seed, mishaps, knobs).play()
