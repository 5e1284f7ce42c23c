"""Clients of short-lived streams: conditional and concurrent requests to a few names. A checker
decides whether all responses are possible (`sim/linearizability.py`, `sim/life_model.py`),
refusals included, which the direct check of appends cannot judge."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from sim.life_model import (
    Appended,
    Created,
    Cut,
    Deleted,
    Exchange,
    Listed,
    Looked,
    Model,
    Paged,
    Pinned,
)
from sim.linearizability import FOREVER, Operation, Search, Undecided
from worlds.service import raw_batch

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import LiveEvent, Page, Position, ReadQuery, Refusal, StreamInfo, TrimQuery
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.parts import Encoding, Producer
from polynya.stream.replies import Code, Reply
from polynya.wal import DiskFull

if TYPE_CHECKING:
    from sim.chaos import Episode
    from sim.cluster import Node

NAMES = ("life/a", "life/b", "life/c", "life/d")
CLIENTS = 4
PAUSE_SECONDS = 0.15
VERBS = (
    "append",
    "condition",
    "produce",
    "close",
    "delete",
    "create",
    "fork",
    "look",
    "list",
    "page",
    "trim",
    "tail",
)
OF_SOURCE = (Code.NOT_FOUND, Code.TRIMMED, Code.OFFSET_BEYOND_TAIL, Code.FORK_DEPTH)


class Past:
    """The operations on one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.operations: list[Operation] = []
        self.known: dict[tuple[int, int], bytes] = {}  # at (uid, record)
        self.begins: dict[tuple[int, int], int] = {}  # its byte
        self.over: dict[
            int, float
        ] = {}  # uid -> since when a live reader knows that this life is over
        self.positions = [(0, 0)]  # tails that were seen: record and byte
        self.sequence = 1
        self.there = False  # as far as was last heard

    def saw(self, uid: int, at: tuple[int, int], content: bytes) -> None:
        """Check that each record of an incarnation has one payload and one first byte,
        permanently."""
        record, byte = at
        for piece in content.split(b";")[:-1]:
            position, payload = (uid, record), piece + b";"
            assert self.known.setdefault(position, payload) == payload, (
                f"{self.name}: record {position} is {self.known[position]!r}, and {payload!r}"
            )
            self.ends(uid, (record, byte))
            record, byte = record + 1, byte + len(payload)
        assert byte == at[1] + len(content), f"{self.name}: a record is cut"
        self.ends(uid, (record, byte))

    def ends(self, uid: int, at: tuple[int, int]) -> None:
        """Check that a life has this boundary."""
        known = self.begins.setdefault((uid, at[0]), at[1])
        assert known == at[1], (
            f"{self.name}: record {at[0]} of life {uid} begins at {known}, and at {at[1]}"
        )

    def tail(self, uid: int, at: tuple[int, int]) -> None:
        """Record a tail that was seen."""
        self.ends(uid, at)
        self.positions = [*self.positions[-5:], at]

    def lives(self, uid: int, began: float) -> None:
        """Check that an operation which began then may see this incarnation."""
        assert began <= self.over.get(uid, FOREVER), (
            f"{self.name}: life {uid} was over, and is seen"
        )


class Lives:
    """The streams of one episode."""

    def __init__(self, episode: Episode) -> None:
        self._episode, self._world = episode, episode.world
        self.pasts = {name: Past(name) for name in NAMES}
        self.counts: Counter[str] = Counter()
        self._count = 0
        drawn = Random(f"lives {episode.seed}")
        self._weights = [drawn.choice((0, 1, 1, 3)) for _ in VERBS]
        self._weights[VERBS.index("create")] = 2
        self._weights[0] = 3

    def clients(self) -> list[asyncio.Future[None]]:
        return [asyncio.ensure_future(self._client(number)) for number in range(CLIENTS)]

    async def finish(self) -> None:
        """Read every name on a healthy cluster and judge its whole history."""
        for name in self.pasts:
            for node in self._world.alive()[:2]:
                await Worker(self, node, Random(name), "end").whole(name)
        for past in self.pasts.values():
            self.judge(past)
            self._trace(past)

    def judge(self, past: Past) -> None:
        search = Search(past.operations, None, Model(past.known).step)
        try:
            found = search.run()
        except Undecided as fault:
            raise AssertionError(
                f"{past.name}: {fault} of {len(past.operations)} operations nothing is decided"
            ) from None
        count, state, able = search.furthest
        assert found, (
            f"{past.name}: {count} of {len(past.operations)} operations can have happened, up to "
            f"{state}; not one of {able}"
        )

    def _trace(self, past: Past) -> None:
        """Check that a fork inherited the content of some incarnation of its source."""
        for operation in past.operations:
            asked, answer = operation.what.asked, operation.what.answer  # type: ignore[attr-defined]
            if (
                not isinstance(asked, Created)
                or asked.source is None
                or answer is None
                or answer.code != Code.CREATED
            ):
                continue
            source = self.pasts[asked.source[0]]
            mine = [past.known.get((answer.uid, record)) for record in range(asked.source[1])]
            found = any(
                all(
                    one is None or source.known.get((uid, at), one) == one
                    for at, one in enumerate(mine)
                )
                for uid, _ in source.known
            )
            sent = {
                each.what.asked.payload
                for each in source.operations
                if isinstance(each.what.asked, Appended | Created)
            }  # type: ignore[attr-defined]
            inherits = any(
                isinstance(each.what.asked, Created) and each.what.asked.source
                for each in source.operations
            )  # type: ignore[attr-defined]
            # perhaps of an incarnation without any other response
            found = found or inherits or all(one is None or one in sent for one in mine)
            assert found, (
                f"{past.name}: the fork {answer.uid} of {source.name} has what that never had: "
                f"{mine}"
            )

    async def _client(self, number: int) -> None:
        random, id_ = Random(f"life {self._episode.seed} {number}"), f"w{number}"
        own: dict[str, list[Any]] = {}
        while not self._episode.over:
            await asyncio.sleep(random.expovariate(1 / PAUSE_SECONDS))
            alive = self._world.alive()
            if alive:
                worker = Worker(self, random.choice(alive), random, id_, own)
                verb = random.choices(VERBS, self._weights)[0]
                name = random.choice(NAMES)
                if not self.pasts[name].there and random.random() < 0.6:
                    verb = random.choice(("create", "fork"))
                await self._verb(verb)(worker, name)

    def _verb(self, verb: str) -> Callable[[Worker, str], Awaitable[None]]:
        found: Callable[[Worker, str], Awaitable[None]] = getattr(Worker, verb)
        return found

    def payload(self, random: Random) -> bytes:
        """Return a unique payload of random length."""
        self._count += 1
        return b"n%06d%s;" % (self._count, b"." * random.choice((0, 0, 0, 1, 3, 30)))


class Worker:
    """One request of a client, to one node."""

    def __init__(
        self,
        lives: Lives,
        node: Node,
        random: Random,
        id_: str,
        own: dict[str, list[Any]] | None = None,
    ) -> None:
        self._lives, self._node, self._random, self._id = lives, node, random, id_
        # of each name: epoch, sequence, and the payload of the producer's last append
        self._own = {} if own is None else own

    async def append(self, name: str) -> None:
        await self._append(
            name, Appended(self._lives.payload(self._random), close=self._random.random() < 0.03)
        )

    async def condition(self, name: str) -> None:
        """`Stream-Seq`: mostly the next, or one that somebody else has taken, or one of before."""
        past = self._lives.pasts[name]
        number = past.sequence + self._random.choice((-1, 0, 0, 1, 1, 2))
        producer = (f"{self._id}c", number % 3, 0) if self._random.random() < 0.3 else None
        answer = await self._append(
            name, Appended(self._lives.payload(self._random), f"{number:05d}", producer)
        )
        if answer is None or answer.code == Code.OK:
            past.sequence = max(past.sequence, number)

    async def produce(self, name: str) -> None:
        """Append the next, a repeat, one of an older epoch, one too far, or a new epoch that begins
        as it should, or does not."""
        epoch, sequence, payload = self._own.setdefault(name, [0, 0, b""])
        act = self._random.random()
        if act < 0.25 and payload:
            await self._append(
                name, Appended(payload, None, (self._id, epoch, sequence - 1)), repeats=True
            )
        elif act < 0.35:
            await self._append(
                name,
                Appended(self._lives.payload(self._random), None, (self._id, epoch, sequence + 2)),
            )
        elif act < 0.5 and epoch:
            await self._append(
                name,
                Appended(
                    self._lives.payload(self._random),
                    None,
                    (self._id, epoch - 1, self._random.choice((0, sequence))),
                ),
            )
        elif act < 0.55:
            await self._append(
                name, Appended(self._lives.payload(self._random), None, (self._id, epoch + 1, 3))
            )
        else:
            if act < 0.7:
                epoch, sequence = epoch + 1, 0
            asked = Appended(
                self._lives.payload(self._random),
                None,
                (self._id, epoch, sequence),
                self._random.random() < 0.02,
            )
            for _ in range(self._random.randint(1, 4)):  # the same again, until it is known
                self._own[name] = [epoch, sequence + 1, asked.payload]
                answer = await self._append(name, asked, repeats=True)
                if answer is not None:
                    if answer.code in (Code.PRODUCER_GAP, Code.NOT_FOUND, Code.CLOSED):
                        self._own[name] = [epoch + 1, 0, b""]  # of a life before
                    break

    async def close(self, name: str) -> None:
        if self._random.random() < 0.15:
            await self._append(name, Appended(None, close=True))

    async def delete(self, name: str) -> None:
        if self._random.random() < 0.6:
            await self._propose(name, Deleted(), Delete(name, self._now_ms()))

    async def create(self, name: str) -> None:
        asked = Created(
            self._lives.payload(self._random) if self._random.random() < 0.5 else None,
            self._random.random() < 0.03,
        )
        batch = None if asked.payload is None else raw_batch(asked.payload)
        command = Create(
            name, self._now_ms(), "text/plain", Encoding.BYTES, closed=asked.closed, batch=batch
        )
        answer = await self._propose(name, asked, command)
        if answer is not None and answer.code == Code.CREATED and asked.payload is not None:
            self._lives.pasts[name].saw(answer.uid, (0, 0), asked.payload)

    async def fork(self, name: str) -> None:
        """Fork another name, mostly at the last seen tail."""
        source = self._random.choice([each for each in NAMES if each != name])
        past = self._lives.pasts[source]
        record, byte = self._random.choice(
            (past.positions[-1], past.positions[-1], self._random.choice(past.positions))
        )
        if self._random.random() < 0.05:
            record, byte = record + 1, byte + 8
        began = self._time()
        command = Create(name, self._now_ms(), "", Encoding.BYTES)
        answer: Reply | None = None
        try:
            answer = await self._node.background.ask(
                self._node.engine.service.fork(command, source, record, byte, 0)
            )
        except Unavailable:
            self._note(source, began, Pinned(record), None)  # for a while, perhaps
            return
        except OutcomeUnknown:
            pass
        if answer is not None and answer.code in (*OF_SOURCE, Code.GONE):
            of_source = answer.code in OF_SOURCE and answer.code != Code.FORK_DEPTH
            self._note(source, began, Pinned(record), answer if of_source else None)
            return
        self._note(
            source,
            began,
            Pinned(record),
            None
            if answer is None or answer.code in (Code.DISK_FULL, Code.ATTEMPT_REFUSED)
            else True,
        )
        self._note(name, began, Created(source=(source, record, byte)), answer)

    async def look(self, name: str) -> None:
        began = self._time()
        with suppress(Unavailable, OutcomeUnknown):
            self._looked(
                name, began, await self._node.background.ask(self._node.engine.service.info(name))
            )

    async def list(self, name: str) -> None:
        began = self._time()
        try:
            found = {
                info.name: info
                for info in await self._node.background.ask(
                    self._node.engine.service.list_streams("life/", "", 100)
                )
            }
        except (Unavailable, OutcomeUnknown):
            return
        for each in NAMES:
            if each in found:
                self._looked(each, began, found[each])
            else:
                self._note(each, began, Listed(), Refusal(Code.NOT_FOUND))

    async def page(self, name: str) -> None:
        """Read some pages from the start or from a random position."""
        past = self._lives.pasts[name]
        at = self._random.choice(
            ((-1, 0), (-1, 0), past.positions[-1], self._random.choice(past.positions))
        )
        with suppress(Unavailable, OutcomeUnknown):
            await self._read(name, at, 5)

    async def whole(self, name: str) -> None:
        """Read the whole stream on a healthy cluster, where all of it must be there."""
        await self.look(name)
        for tries in count():
            try:
                await self._read(name, (-1, 0), 1 << 30)
                break
            except Unavailable:
                assert tries < 50, f"{name} cannot be read though all is well"
                await asyncio.sleep(0.2)

    async def _read(self, name: str, at: tuple[int, int], pages: int) -> None:
        """Read page by page, each judged alone. Raises Unavailable, OutcomeUnknown."""
        past = self._lives.pasts[name]
        for _ in range(pages):
            began = self._time()
            query = ReadQuery(name, *at, bytes_max=self._node.world.page_bytes, whole_records=True)
            page = await self._node.background.ask(self._node.engine.service.read(query), 30.0)
            self._note(name, began, Paged(at[0]), page)
            if not isinstance(page, Page):
                return
            uid, record = page.info.uid, page.info.first_record if at[0] < 0 else at[0]
            past.lives(uid, began)
            assert page.begin_record == record, (
                f"{name}: a page from {at} begins at {page.begin_record}"
            )
            content = b"".join(bytes(span.payload) for span in page.spans)
            past.saw(uid, (record, page.begin_byte), content)
            past.tail(uid, (page.info.record, page.info.byte))
            past.ends(uid, (page.info.first_record, page.info.first_byte))
            records = content.count(b";")
            assert (page.record, page.byte) == (record + records, page.begin_byte + len(content)), (
                f"{name}: a page is not as long as it says"
            )
            assert not page.up_to_date or page.record == page.info.record, (
                f"{name}: a page says that it is the last, and is not"
            )
            if page.up_to_date:
                return
            at = (page.record, page.byte)

    async def trim(self, name: str) -> None:
        record, byte = self._random.choice(self._lives.pasts[name].positions)
        began = self._time()
        answer: Any = None
        try:
            answer = await self._node.background.ask(
                self._node.engine.service.trim(TrimQuery(name, record, byte))
            )
        except (Unavailable, DiskFull):
            return
        except OutcomeUnknown:
            pass
        self._note(name, began, Cut(record), answer)

    async def tail(self, name: str) -> None:
        """Live for a while."""
        past, ear, began, service = (
            self._lives.pasts[name],
            LiveReader(name),
            self._time(),
            self._node.engine.service,
        )
        try:
            info = await self._node.background.ask(service.open(name).attach(ear))
        except (Unavailable, OutcomeUnknown):
            return
        if not isinstance(info, StreamInfo):
            self._looked(name, began, info)
            return
        # the rest may be older, and of more than one moment: of those that follow one stream
        # elsewhere
        past.lives(info.uid, began)
        past.tail(info.uid, (info.record, info.byte))
        node, life = self._node, self._node.life
        deadline = self._time() + self._random.uniform(0.1, 2.0)
        while not ear.over and node.alive and node.life == life and self._time() < deadline:
            await asyncio.sleep(0.05)
        if node.alive and node.life == life:
            service.detach(info.uid, ear)
        ear.check(past, info)

    # --- requests

    async def _append(self, name: str, asked: Appended, *, repeats: bool = False) -> Reply | None:
        """Append to a stream, and note the outcome. `repeats`: of this sequence there is no other
        payload."""
        batch = None if asked.payload is None else raw_batch(asked.payload)
        producer = None if asked.producer is None else Producer(*asked.producer)
        kind = "" if batch is None else "text/plain"
        answer = await self._propose(
            name,
            asked,
            Append(name, self._now_ms(), kind, batch, producer, asked.sequence, asked.close),
        )
        if answer is None:
            return None
        past = self._lives.pasts[name]
        if (
            (answer.code == Code.OK or (answer.code == Code.DUPLICATE and repeats))
            and answer.first_record >= 0
            and asked.payload is not None
        ):
            position = (answer.uid, answer.first_record)
            assert past.known.setdefault(position, asked.payload) == asked.payload, (
                f"{name}: {position} is {past.known[position]!r}, {asked.payload!r}"
            )
        if answer.code == Code.OK:
            past.tail(answer.uid, (answer.record, answer.byte))
        return answer

    async def _propose(self, name: str, asked: Any, command: Any) -> Reply | None:
        began = self._time()
        try:
            answer = await self._node.background.ask(self._node.propose(name, command), 7.0)
        except Unavailable:
            return None
        except OutcomeUnknown:
            self._note(name, began, asked, None)
            return None
        self._note(name, began, asked, answer)
        return answer

    def _looked(self, name: str, began: float, answer: StreamInfo | Refusal) -> None:
        self._note(name, began, Looked(), answer)
        if isinstance(answer, StreamInfo):
            past = self._lives.pasts[name]
            past.tail(answer.uid, (answer.record, answer.byte))
            past.ends(answer.uid, (answer.first_record, answer.first_byte))
            past.lives(answer.uid, began)

    def _note(self, name: str, began: float, asked: Any, answer: Any) -> None:
        ended = FOREVER if answer is None else self._time()
        past = self._lives.pasts[name]
        past.operations.append(Operation(began, ended, Exchange(asked, answer)))
        if answer is not None:
            past.there = getattr(answer, "code", Code.OK) not in (
                Code.NOT_FOUND,
                Code.GONE,
            ) and not isinstance(asked, Deleted)
        code = (
            "unknown"
            if answer is None
            else Code(answer.code).name
            if isinstance(answer, Reply | Refusal)
            else "ok"
        )
        self._lives.counts[f"{type(asked).__name__} {code}"] += 1
        self._lives._episode.note(f"{name} {asked} {code}")

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

    def _now_ms(self) -> int:
        return self._node.engine.service.now_ms()


class LiveReader:
    """A live reader of one incarnation: its data has no gap and ends with the incarnation."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._events: list[tuple[float, LiveEvent]] = []
        self.over = False

    def live(self, event: LiveEvent) -> None:
        assert not self.over, f"{self._name}: after its end a live reader hears something"
        self._events.append((asyncio.get_running_loop().time(), event))
        self.over = event.gone or event.cut

    def check(self, past: Past, info: StreamInfo) -> None:
        """Check the reader's data. `info`: its first response."""
        record = info.record
        for at, event in self._events:
            if event.cut:
                return
            assert event.uid == info.uid, f"{self._name}: a live reader hears of another life"
            if event.gone:
                past.over[event.uid] = min(at, past.over.get(event.uid, FOREVER))
                return
            past.saw(event.uid, (event.begin_record, event.begin_byte), bytes(event.payload))
            if event.record > record:
                assert event.begin_record == record, (
                    f"{self._name}: a gap in what a live reader hears"
                )
                record = event.record


__all__ = ["NAMES", "Lives", "Past", "Position"]
