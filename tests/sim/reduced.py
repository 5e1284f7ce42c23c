"""Workers of a reducer in a simulated cluster, of which some lie at times: they publish a wrong
state, the state of other records, an old one, or one twice, while nodes die.

The first state of some records stays, whatever comes later, and a second one stops the reducer. An
operator adds it again, as another revision. States are chains of hashes: a reader can
tell after which records one was computed, and a worker that begins at a lie goes on with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from random import Random
from unittest import mock

from sim.calls import answer_of
from sim.chaos import FULL, Episode
from sim.cluster import Node
from sim.knobs import Knobs
from sim.moves import Moves

from polynya.base import levels
from polynya.local.api import Page, ReadQuery, Refusal, StreamInfo
from polynya.reducers.bindings import Wanted
from polynya.service.reducers.registry import Bound
from polynya.service.snapshots import Body, Staged, body_of, publish, stage
from polynya.stream.features.marks import held, rules
from polynya.stream.parts import Mark
from polynya.stream.replies import Code, Reply

NAME = "r"
STREAMS = tuple(f"reduced/{letter}" for letter in "ab")
WORKERS = 3
WIDTH = 8
GRACE_MS = 3000
CALL_SECONDS = 10.0
EMPTY = b"0" * 64
LIES = ("wrong", "other records", "late", "twice")
LIE = 0.15  # of the publishes
_REFUSED = (  # by what another worker, or a crash, explains
    Code.SNAPSHOT_OLDER, Code.SNAPSHOT_TOO_SOON, Code.PARTS_GONE, Code.TRIMMED, *FULL,
)  # fmt: skip
Key = tuple[str, str, int]  # stream, origin with its revision, record


def after(state: bytes, records: bytes) -> bytes:
    """Return the state after more records."""
    for at in range(0, len(records), WIDTH):
        state = sha256(state + records[at : at + WIDTH]).hexdigest().encode()
    return state


class ReducedEpisode(Episode):
    """The plain world, with streams that a reducer summarises beside a few clients."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        self.world.release = levels.LEVEL
        self.first: dict[Key, bytes] = {}  # the digest of the state that was there first
        self.sent: dict[Key, set[bytes]] = {}  # that may have been published
        self.lied: set[tuple[str, str]] = set()  # streams and origins with a lie among these
        self.stopped: set[int] = set()  # revisions, once all nodes know
        self.records: dict[str, bytes] = dict.fromkeys(STREAMS, b"")
        self.outcomes = Counter[str]()

    def summary(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        return f"{super().summary()}, {counts}"

    @contextmanager
    def _short_grace(self) -> Iterator[None]:
        with (
            mock.patch.object(held, "SNAPSHOT_GRACE_MS", GRACE_MS),
            mock.patch.object(rules, "SNAPSHOT_GRACE_MS", GRACE_MS),
        ):
            yield

    def play(self) -> str:
        with self._short_grace():
            return super().play()

    def clients(self) -> list[asyncio.Future[None]]:
        work = [self._append(0), self._read(), self._grow(), self._operate()]
        work += [self._work(number) for number in range(WORKERS)]
        return [asyncio.ensure_future(each) for each in work]

    def _any_node(self, random: Random) -> Node | None:
        alive = self.world.alive()
        return random.choice(alive) if alive else None

    # --- streams and the operator -----------------------------------------------------------------

    async def _grow(self) -> None:
        random, count = Random(f"grow {self.seed}"), 0
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / 0.1))
            node = self._any_node(random)
            if node is None:
                continue
            name = random.choice(STREAMS)
            if not count or random.random() < 0.05:
                await answer_of(node, node.create(name), CALL_SECONDS)
            count += 1
            await answer_of(node, node.append(name, b"%07d;" % count), CALL_SECONDS)

    async def _operate(self) -> None:
        """Add the reducer, and again when it has been stopped."""
        random = Random(f"operator {self.seed}")
        while not self.over:
            node = self._any_node(random)
            if node is not None:
                await self._add(node)
            await asyncio.sleep(random.uniform(1.0, 4.0))

    async def _add(self, node: Node) -> None:
        wanted = Wanted(pattern="reduced/*", builtin="count", retain=True)
        made = await answer_of(node, node.engine.service.reducers.put(NAME, wanted), CALL_SECONDS)
        if made is not None:
            self.note(f"revision {made[0].revision} by {node.number}")

    # --- workers ----------------------------------------------------------------------------------

    async def _work(self, number: int) -> None:
        random = Random(f"worker {self.seed} {number}")
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / 0.2))
            lie = random.choice(LIES) if random.random() < LIE else ""
            await self._round(random, random.choice(STREAMS), lie)

    async def _round(self, random: Random, name: str, lie: str) -> None:
        """Compute the state of a stream from its newest snapshot on, and publish it."""
        node = self._any_node(random)
        bound = None if node is None else await self._bound(node)
        if node is None or bound is None or bound.binding.stopped:
            return
        origin = bound.binding.origin(NAME)
        info = await self._info(node, name)
        found = None if info is None else await self._state(node, info, origin)
        if info is None or found is None or found[0] == 0:
            return
        record, byte, state = found
        if lie == "wrong":
            state = sha256(state + b"lie").hexdigest().encode()
        elif lie == "other records":
            state = after(state, b"0000000;")
        elif lie == "late":
            await asyncio.sleep(random.uniform(1.0, 8.0))
        for _ in range(2 if lie == "twice" else 1):
            node = self._any_node(random)
            if node is not None:
                false = lie in ("wrong", "other records")
                await self._publish(node, info, origin, (record, byte), state, false=false)

    async def _bound(self, node: Node) -> Bound | None:
        known = await answer_of(node, node.engine.service.reducers.current(), CALL_SECONDS)
        return None if known is None else known.get(NAME)

    async def _info(self, node: Node, name: str) -> StreamInfo | None:
        info = await answer_of(node, node.engine.service.info(name), CALL_SECONDS)
        return info if isinstance(info, StreamInfo) else None

    async def _state(
        self, node: Node, info: StreamInfo, origin: str
    ) -> tuple[int, int, bytes] | None:
        """Return a place near the tail and the state after the records before it, or None."""
        own = [mark for mark in info.marks or () if mark.origin == origin and not mark.dropped_ms]
        at, state = (0, 0), EMPTY
        if own:
            newest = max(own, key=lambda mark: mark.record)
            body = await self._body(node, info, newest)
            if body is None:
                return None
            at, state = (newest.record, newest.byte), body
        elif info.first_record:
            at = (info.first_record, info.first_byte)  # a revision that has not seen what is gone
            self.lied.add((info.name, origin))
        page = await answer_of(
            node, node.engine.service.read(ReadQuery(info.name, *at)), CALL_SECONDS
        )
        if not isinstance(page, Page):
            return None
        records = b"".join(bytes(span.payload) for span in page.spans)
        self._seen(info.name, page.begin_record, records)
        return page.record, page.byte, after(state, records)

    def _seen(self, name: str, begin: int, records: bytes) -> None:
        known = self.records[name]
        at = begin * WIDTH
        both = min(len(known), at + len(records)) - at
        if both > 0:
            assert known[at : at + both] == records[:both], f"{name}: two reads differ"
        if at <= len(known) < at + len(records):
            self.records[name] = known[:at] + records

    async def _body(self, node: Node, info: StreamInfo, mark: Mark) -> bytes | None:
        body = await answer_of(node, body_of(node.engine.service, info, mark), CALL_SECONDS)
        if body is None or isinstance(body, Refusal):
            return None
        assert sha256(body).digest() == mark.sha256, f"the body of {mark} is another one"
        return bytes(body)

    async def _publish(
        self, node: Node, info: StreamInfo, origin: str, at: tuple[int, int], state: bytes,
        *, false: bool,
    ) -> None:  # fmt: skip
        """Publish as the front does: not by a reducer that is stopped, and stop one that
        contradicts itself."""
        bound = await self._bound(node)
        if bound is None or bound.binding.stopped or bound.binding.origin(NAME) != origin:
            return
        revision = bound.binding.revision
        assert revision not in self.stopped, f"revision {revision} was stopped, and goes on"
        digest = sha256(state).digest()
        key = (info.name, origin, at[0])
        service = node.engine.service
        part = await answer_of(node, stage(service, info, state, diskless=False), CALL_SECONDS)
        if not isinstance(part, Staged):
            return
        if false:
            self.lied.add((info.name, origin))
        self.sent.setdefault(key, set()).add(digest)
        body = Body(digest, "text/plain", origin)
        reply = await answer_of(node, publish(service, info, at, body, [part]), CALL_SECONDS)
        if reply is None:
            self.outcomes["publishes unknown"] += 1
            return
        self._judge(key, digest, reply)
        if reply.code == Code.SNAPSHOT_CONFLICT:
            stop = service.reducers.stop(NAME, revision, "two states")
            async with asyncio.timeout(CALL_SECONDS):
                await answer_of(node, stop, CALL_SECONDS)
            again = await self._bound(node)
            if again is not None and again.binding.revision == revision and again.binding.stopped:
                self.stopped.add(revision)
                self.note(f"revision {revision} is stopped")

    def _judge(self, key: Key, digest: bytes, reply: Reply) -> None:
        code = Code(reply.code)
        self.outcomes[f"publishes {code.name}"] += 1
        self.note(f"{key} {digest[:4].hex()}: {code.name}")
        if code in (Code.CREATED, Code.OK):
            self._is_first(key, digest)
        elif code == Code.SNAPSHOT_CONFLICT:
            assert self.sent[key] > {digest}, f"{key}: a conflict of one state with itself"
        else:
            assert code in _REFUSED, reply

    def _is_first(self, key: Key, digest: bytes) -> None:
        first = self.first.setdefault(key, digest)
        assert first == digest, f"{key}: another state was there first"
        assert digest in self.sent[key], f"{key}: a state that no worker sent"

    # --- the end ----------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Look at all snapshots of the healthy cluster, and let an honest worker publish."""
        random = Random(f"settle {self.seed}")
        for name in STREAMS:
            await self._surely(random, name)
            for node in self.world.alive():
                info = await self._info(node, name)
                assert info is not None
                await self._check(node, info)

    async def _surely(self, random: Random, name: str) -> None:
        for _ in range(60):
            node = random.choice(self.world.alive())
            await answer_of(node, node.create(name), CALL_SECONDS)
            await answer_of(node, node.append(name, b"settled;"), CALL_SECONDS)
            await self._add(node)
            before = self.outcomes["publishes CREATED"]
            await self._round(random, name, "")
            if self.outcomes["publishes CREATED"] > before:
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"no state of {name} can be published though all is well")

    async def _check(self, node: Node, info: StreamInfo) -> None:
        marks = [mark for mark in info.marks or () if not mark.dropped_ms]
        assert marks
        assert not info.first_record or any(mark.record >= info.first_record for mark in marks), (
            f"{info.name}: records are gone that no snapshot has"
        )
        for mark in info.marks or ():
            self._is_first((info.name, mark.origin, mark.record), mark.sha256)
            if (info.name, mark.origin) in self.lied:
                continue
            records = self.records[info.name][: mark.record * WIDTH]
            if len(records) == mark.record * WIDTH:
                state = after(EMPTY, records)
                assert sha256(state).digest() == mark.sha256, f"{info.name}: {mark} is not true"
                self.outcomes["true states at the end"] += 1
        for mark in marks:
            body = await self._body(node, info, mark)
            assert body is not None, f"{info.name}: the body of {mark} is gone"


def run_reduced(seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> str:
    """Play an episode; the same seed gives the same checksum. Raises AssertionError with the
    violated invariant."""
    return ReducedEpisode(seed, mishaps, knobs).play()


class ReducedMoves(ReducedEpisode, Moves):
    """The same while groups move, and nodes come and go."""

    def clients(self) -> list[asyncio.Future[None]]:
        control = [asyncio.ensure_future(self._control(number)) for number in range(2)]
        return [*ReducedEpisode.clients(self), *control]

    async def settle(self) -> None:
        await Moves.settle(self)
        await ReducedEpisode.settle(self)


def run_reduced_moves(seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> str:
    """Play an episode of `ReducedMoves`."""
    return ReducedMoves(seed, mishaps, knobs).play()
