"""Backups that operators take of a simulated cluster amid all that goes wrong, to a place that
fails as well, and that other clusters begin with in the end. The product's code takes, prunes,
verifies and restores them; what the admin port answers is asked for over the network of the
simulation."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
from sim.life_model import Cut, Deleted, Exchange, Listed, Looked
from sim.linearizability import Operation
from sim.store import GOOD, SimStore, Weather
from sim.tier import CLUSTER

from polynya.admin.backup_routes import Backups
from polynya.backup.manifest import Manifest
from polynya.backup.pruning import prune
from polynya.backup.repository import backups_on
from polynya.backup.streams import BackupStreams, streams_of
from polynya.backup.verifying import BackupVerifier
from polynya.backup.writer import BackupProgress, BackupWriter
from polynya.base.errors import CorruptData, OutcomeUnknown, Unavailable
from polynya.cli.storage.source import PATH, HttpSource
from polynya.cli.terminal.exits import Unreachable
from polynya.client.http import Options
from polynya.front.http.protocol.errors import ERRORS, Failure
from polynya.front.http.protocol.extension import Request
from polynya.local.api import Refusal, info_of
from polynya.objectstore import MemoryStore, ObjectStore, StoreUnavailable
from polynya.stream.features.pages.eviction import where_of
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import Stream

if TYPE_CHECKING:
    from sim.cluster import Node
    from sim.swarm import SwarmEpisode

SHARE = 0.3  # of the worlds in which anybody takes backups
PATIENCE_SECONDS = (0.3, 3.0, 14.0, 14.0)  # of who takes one; then it is interrupted
WEATHERS = (
    GOOD,
    Weather(away=0.05, untold=0.05, conflict=0.02),
    Weather(away=0.2, untold=0.1, delay=(0.02, 0.2)),
)
CALM_TRIES = 3


class Promise(msgspec.Struct):
    """Acknowledged data at the start of a backup: per stream the payloads in record order, and
    those of producers."""

    records: dict[str, dict[int, bytes]]
    produced: dict[str, list[bytes]]
    cursors: dict[str, dict[str, tuple[int, int]]]  # subscription -> stream -> done up to there

    @classmethod
    def of(cls, episode: SwarmEpisode) -> Promise:
        histories = episode.histories.values()
        return cls(
            {
                each.name: {record: payload for payload, (record, _) in each.acknowledged.items()}
                for each in histories
            },
            {each.name: list(each.produced) for each in histories},
            {key: dict(shift.acked) for key, shift in episode.shop.shifts.items()},
        )


class Taken(msgspec.Struct):
    """A whole backup. `streams`: its streams by name, with facts and bytes; `sure`: uids of forks
    that existed before it."""

    manifest: Manifest
    promise: Promise
    streams: dict[str, tuple[Stream, bytes]]
    sure: set[int]


class Operators:
    """One or two operators of an episode, who back up to the same location without knowledge of
    each other."""

    def __init__(self, episode: SwarmEpisode) -> None:
        self._episode, self._random = episode, Random(f"backups {episode.seed}")
        self.strikes = self._random.random() < SHARE
        self._is_calm = False
        self._count, self._keep = self._random.choice((1, 1, 2)), self._random.choice((None, 1, 2))
        self._weather = self._random.choice(WEATHERS)
        self.repository = SimStore(episode.seed, episode._wall_ms)
        self.repository.random = Random(f"shelf {episode.seed}")
        self.counts: Counter[str] = Counter()
        self.taken: dict[str, Taken] = {}

    def clients(self) -> list[asyncio.Future[None]]:
        if not self.strikes:
            return []
        self.repository.weather = self._weather
        return [asyncio.ensure_future(self._operate(number)) for number in range(self._count)]

    async def _operate(self, number: int) -> None:
        random = Random(f"operator {self._episode.seed} {number}")
        while not self._episode.over:
            await asyncio.sleep(random.expovariate(1 / 2.0))
            try:
                async with asyncio.timeout(random.choice(PATIENCE_SECONDS)):
                    await self.take(random)
                    if self._keep is not None and random.random() < 0.7:
                        self.counts["pruned"] += len(await prune(self.repository, self._keep))
            except (Unavailable, StoreUnavailable, TimeoutError) as fault:
                self.counts[type(fault).__name__] += 1

    async def take(self, random: Random) -> Taken:
        """Take one backup of all that was acknowledged before; return it as it is found in the
        repository. Raises Unavailable, StoreUnavailable."""
        episode, began = self._episode, asyncio.get_running_loop().time()
        promise, sure, progress = Promise.of(episode), self._created(), BackupProgress()
        source = HttpSource(Admin(episode.world, random))  # type: ignore[arg-type]
        manifest = await BackupWriter(source, self.repository, self.repository, progress).take(
            episode._wall_ms
        )
        assert not progress.damaged, (
            f"backup {manifest.id}: what was copied is damaged: {progress.damaged}"
        )
        self.counts["taken"] += 1
        self.counts["kept objects"] += progress.kept
        episode.note(f"backup {manifest.id} is taken")
        taken = self.taken[manifest.id] = Taken(
            manifest, promise, {}, sure - self._gone_since(began)
        )
        # else what is in the repository may be deleted by now
        if self._keep is None or self._count == 1 or self._is_calm:
            await self._look(taken, began)
        return taken

    def _created(self) -> set[int]:
        """Return the incarnations with a successful response."""
        pasts = self._episode.lives.pasts.values()
        answers = [each.what.answer for past in pasts for each in past.operations]  # type: ignore[attr-defined]
        return {
            each.uid for each in answers if isinstance(each, Reply) and each.code == Code.CREATED
        }

    def _gone_since(self, began: float) -> set[int]:
        """List incarnations that may have ended or been trimmed since. A fork's group may be
        copied before its source's, when the source is no longer needed."""
        found = set[int]()
        for past in self._episode.lives.pasts.values():
            operations = [
                each
                for each in past.operations
                if each.ended >= began and isinstance(each.what.asked, Deleted | Cut)
            ]  # type: ignore[attr-defined]
            if any(getattr(each.what.answer, "code", Code.OK) == Code.OK for each in operations):  # type: ignore[attr-defined]
                found |= {
                    each.what.answer.uid
                    for each in past.operations
                    if getattr(each.what.answer, "code", None) == Code.CREATED
                }  # type: ignore[attr-defined]
        return found

    async def _look(self, taken: Taken, began: float) -> None:
        """Check that a backup is whole and matches a state of the cluster since it began."""
        repository, id_, found_there = (
            self.calm(),
            taken.manifest.id,
            dict[str, tuple[Stream, bytes]](),
        )
        found = await BackupVerifier(repository, taken.manifest).run()
        assert not found.damages, f"backup {id_} is damaged: {found.damages}"
        library = BackupStreams(repository, taken.manifest)
        for group in range(1, taken.manifest.groups + 1):
            machine = await library.machine(group)
            for stream in streams_of(machine):
                try:
                    pieces = [piece async for piece in library.pieces(machine, stream)]
                except CorruptData as fault:  # made meanwhile, of a source that was made meanwhile as well, behind the copy of its group
                    if stream.uid in taken.sure or "which the backup does not have" not in str(
                        fault
                    ):
                        raise
                    pieces = []
                found_there[stream.name] = (stream, b"".join(piece.payload for piece in pieces))
                for piece in pieces:
                    self._episode.keeps.saw(stream.name, piece.record, piece.payload)
                for piece in pieces if stream.name in self._episode.lives.pasts else ():
                    self._episode.lives.pasts[stream.name].saw(
                        stream.uid, (piece.record, piece.byte), piece.payload
                    )
        taken.streams = found_there  # all of it, or nothing: who looks may be interrupted
        self._promised(taken)
        self._lived(taken, began)

    def _promised(self, taken: Taken) -> None:
        for name, records in taken.promise.records.items():
            assert name in taken.streams, f"backup {taken.manifest.id} has no {name}"
            content = taken.streams[name][1]
            has_kept(
                f"backup {taken.manifest.id}: {name}",
                content,
                records,
                taken.promise.produced[name],
            )

    def _lived(self, taken: Taken, began: float) -> None:
        """Check the short-lived streams against reads of that time (`sim/stream_clients.py`)."""
        for name, past in self._episode.lives.pasts.items():
            stream, content = taken.streams.get(name, (None, b""))
            ended = asyncio.get_running_loop().time()
            if stream is None:
                past.operations.append(
                    Operation(began, ended, Exchange(Listed(), Refusal(Code.NOT_FOUND)))
                )
                continue
            past.ends(stream.uid, (stream.next_record, stream.next_byte))
            # of one that was made meanwhile the source may be of an earlier moment
            if stream.fork is None or stream.uid in taken.sure:
                whole = stream.next_byte - stream.first_byte == len(content)
                assert whole, f"{name}: its backup has {len(content)} bytes, and is {stream}"
            if where_of(stream) is None:  # of what is evicted only the ends are known
                past.operations.append(Operation(began, ended, Exchange(Looked(), info_of(stream))))

    async def finish(self) -> None:
        """Take one more backup of the healthy cluster, which must succeed."""
        if not self.strikes:
            return
        self.repository.weather, self._is_calm = GOOD, True
        for tries in range(CALM_TRIES):
            with suppress(Unavailable):
                self._last = await self.take(Random(f"last {self._episode.seed}"))
                break
            assert tries < CALM_TRIES - 1, "no backup can be taken though all is well"

    async def chosen(self) -> list[Taken]:
        """Return some of the final backups: the last, and another one."""
        found = await self.whole() if self.strikes else []
        others = [taken for taken in found if taken is not self._last and taken.streams]
        return [self._last, *self._random.sample(others, min(1, len(others)))] if found else []

    async def whole(self) -> list[Taken]:
        """Return the whole backups in the repository at the end."""
        found = []
        for manifest in await backups_on(self.calm()):
            damages = (await BackupVerifier(self.calm(), manifest).run()).damages
            assert not damages, f"backup {manifest.id} is damaged in the end: {damages}"
            if manifest.id in self.taken:
                found.append(self.taken[manifest.id])
        return found

    def calm(self) -> MemoryStore:
        """Return the repository, as it is when nothing is wrong with it."""
        calm = MemoryStore()
        calm.objects = self.repository.objects
        return calm


def has_kept(what: str, content: bytes, records: dict[int, bytes], produced: list[bytes]) -> None:
    """Assert that all that was acknowledged is there, each where it was, and producers' in their
    order."""
    width = 8
    for record, payload in records.items():
        assert content[(record - 1) * width : record * width] == payload, (
            f"{what}: {payload!r} was acknowledged before, and is not there"
        )
    there = {content[at : at + width]: at for at in range(0, len(content), width)}
    missing = [payload for payload in produced if payload not in there]
    assert not missing, f"{what}: {missing} were acknowledged before, and are not there"


# --- the admin port


class AdminEndpoint:
    """The admin endpoint of one incarnation of a node."""

    def __init__(self, node: Node, store: ObjectStore | None) -> None:
        identity = SimpleNamespace(
            cluster_id=CLUSTER, history=node.world.history, groups=node.engine.service.groups
        )
        start = SimpleNamespace(identity=identity, groups=identity.groups)
        tier = None if store is None else SimpleNamespace(store=store)
        self._backups = Backups(start, node.engine, tier)  # type: ignore[arg-type]

    async def answer(
        self, method: str, path: str, query: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        """Return (status, body), as the front derives them from exceptions."""
        segments = tuple(filter(None, path.removeprefix(PATH).split("/")))
        try:
            response = await self._backups.handle(
                Request(method, path, segments, query, {}, body, "http://node")
            )
        except Failure as fault:
            return ERRORS[fault.code].status, b""
        except Unavailable:
            return ERRORS["UNAVAILABLE"].status, b""
        except OutcomeUnknown:
            return ERRORS["OUTCOME_UNKNOWN"].status, b""
        return response.status, response.body


class Admin:
    """Stand-in for a client of the admin port and its connections: each call reaches any node."""

    options = Options(servers=("http://node",))

    def __init__(self, world: Any, random: Random) -> None:
        self._world, self._random = world, random

    def refused(self, answer: httpx.Response) -> Exception:
        return AssertionError(f"a backup is refused: {answer.status_code}")

    async def send_on(self, wire: object, method: str, path: str, **more: Any) -> httpx.Response:
        alive = self._world.alive()
        if not alive:
            raise Unreachable("nobody is there")
        node = self._random.choice(alive)
        query = {name: str(value) for name, value in more.get("params", {}).items()}
        content = msgspec.json.encode(more["body"]) if "body" in more else b""
        work: Coroutine[Any, Any, tuple[int, bytes]] = node.process.drive(
            node.admin_endpoint.answer(method, path, query, content)
        )
        try:
            status, body = await node.background.ask(work, 10.0)
        except OutcomeUnknown:
            raise Unreachable("the connection broke") from None
        return httpx.Response(status, content=body)


__all__ = ["AdminEndpoint", "Operators", "Taken"]
