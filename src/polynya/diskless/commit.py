"""Commits of stored packs: a chain for each group, in which the next commit leaves when the outcome
of the one before is final."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec import structs

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.futures import settle
from polynya.base.limits import WRITE_MS_MAX
from polynya.diskless.buffer import BuiltSlice, taken_of
from polynya.stream.command import Command
from polynya.stream.features.profiles.commands import CommitSlices
from polynya.stream.replies import Code, Done, Reply

GIVE_UP_SECONDS = 30.0  # while the log fails
AGAIN_SECONDS = 0.05  # first pause before a repeat; doubles up to AGAIN_SECONDS_MAX
AGAIN_SECONDS_MAX = 1.0
NOT_YET_SECONDS = 5.0  # for which an append waits until its stream is ready for it
_NOT_READY = (Code.NOT_YET, Code.EVICTED)
log = logging.getLogger("polynya.diskless")


class StoredPack(msgspec.Struct):
    """A pack in the object store, with its slices by group. `left`: groups that are not done."""

    key: str
    owner_group: int
    intent_ms: int
    slices: dict[int, list[BuiltSlice]]
    left: int = 0


class Part(msgspec.Struct):
    """The slices of a pack that one commit names. `since`: when the group first refused them as
    not ready; 0: it did not."""

    pack: StoredPack
    slices: list[BuiltSlice]
    since: float = 0.0

    @property
    def names(self) -> set[str]:
        return {each.name for each in self.slices}


class CommitCounters(msgspec.Struct):
    """Counters for metrics; they only grow."""

    commits: int = 0
    seconds: float = 0.0  # from the first proposal of a commit to its final outcome
    repeats: int = 0  # proposals of a commit whose outcome was not final
    abandoned: int = 0  # commits without a final outcome


class Commits:
    """The commits of one writer, whose name is unique to a start of a core. `propose` sends a
    command to the group's leader. `finished` gets each pack with which all groups are done, `keep`
    each slice with an append that was applied."""

    def __init__(
        self,
        writer: str,
        propose: Callable[[int, Command, Done], None],
        now_ms: Callable[[], int],
        finished: Callable[[StoredPack], None],
        keep: Callable[[str, BuiltSlice], None] = lambda key, found: None,
    ) -> None:
        self.writer = writer
        self.propose = propose
        self.now_ms = now_ms
        self.finished = finished
        self.keep = keep
        self.counters = CommitCounters()
        self._chains: dict[int, _Chain] = {}

    def add(self, group: int, pack: asyncio.Future[StoredPack | None]) -> None:
        """Commit the group's part of a pack behind those of earlier packs, once it is stored. None:
        it could not be stored, and its appends are answered."""
        chain = self._chains.get(group)
        if chain is None:
            chain = self._chains[group] = _Chain(self, group)
        chain.add(pack)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The chains with a commit under way."""
        return [chain.task for chain in self._chains.values() if chain.task is not None]


class _Chain:
    """The commits of one writer to one group."""

    def __init__(self, commits: Commits, group: int) -> None:
        self.task: asyncio.Task[None] | None = None
        self._commits = commits
        self._group = group
        self._sequence = 0
        self._queue: deque[asyncio.Future[StoredPack | None]] = deque()
        # parts that the group was not ready for; later appends to their streams wait behind them
        self._deferred: deque[Part] = deque()
        self._again_at = 0.0
        self._loop = asyncio.get_running_loop()

    def add(self, pack: asyncio.Future[StoredPack | None]) -> None:
        self._queue.append(pack)
        if self.task is None:
            self.task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        part: Part | None = None
        try:
            while (part := await self._next()) is not None:
                await self._commit(part)
                part = None
        except asyncio.CancelledError:
            self._abandon(part)
            raise
        finally:
            self.task = None

    async def _next(self) -> Part | None:
        """Return the next part to commit, or None if there is nothing more."""
        while self._queue or self._deferred:
            wait = self._again_at - self._loop.time()
            if self._deferred and wait <= 0:
                return self._deferred.popleft()
            if not self._queue:
                await asyncio.sleep(wait)
                continue
            await asyncio.wait([self._queue[0]], timeout=wait if self._deferred else None)
            if self._queue[0].done():
                part = self._ready(self._queue.popleft().result())
                if part is not None:
                    return part
        return None

    def _ready(self, pack: StoredPack | None) -> Part | None:
        """Return the group's part of a pack, without the streams that wait."""
        slices = [] if pack is None else pack.slices.get(self._group, [])
        if pack is None or not slices:
            return None
        waiting: set[str] = set().union(*(part.names for part in self._deferred))
        held = [each for each in slices if each.name in waiting]
        if held:
            self._deferred.append(Part(pack, held))
            pack.left += 1
        ready = [each for each in slices if each.name not in waiting]
        if ready:
            return Part(pack, ready)
        self._done(pack)
        return None

    async def _commit(self, part: Part) -> None:
        pack, commits = part.pack, self._commits
        self._sequence += 1
        command = CommitSlices(
            pack.key,
            pack.owner_group,
            commits.writer,
            self._sequence,
            pack.intent_ms,
            [each.packed for each in part.slices],
            commits.now_ms(),
        )
        began = self._loop.time()
        outcome = await self._final(command, pack)
        commits.counters.commits += 1
        commits.counters.seconds += self._loop.time() - began
        replies = _replies_of(outcome, part)
        if replies is None:
            _answer(part.slices, _refusal_of(outcome))
        else:
            self._answer(part, replies)
        self._done(pack)

    async def _final(self, command: CommitSlices, pack: StoredPack) -> Reply | BaseException:
        """Propose a commit until its outcome is final. Give up with OutcomeUnknown if it may have
        been applied."""
        until, pause, unknown = self._loop.time() + GIVE_UP_SECONDS, AGAIN_SECONDS, False
        counters = self._commits.counters
        while True:
            command = structs.replace(command, now_ms=self._commits.now_ms())
            outcome = await self._propose(command)
            if isinstance(outcome, Reply) and outcome.code == Code.OK:
                return outcome
            # the group may have applied an earlier attempt and forgotten the writer since
            intent_ms = None if unknown else self._corrected(command, pack, outcome)
            if intent_ms is not None:
                command = structs.replace(command, intent_ms=intent_ms)
                continue
            unknown |= isinstance(outcome, OutcomeUnknown)
            is_final = not isinstance(outcome, Unavailable | OutcomeUnknown)
            if is_final or self._loop.time() + pause > until:
                # a refusal says nothing of an earlier attempt that the group may have forgotten
                counters.abandoned += 1
                return OutcomeUnknown(_LOST) if unknown else outcome
            counters.repeats += 1
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_SECONDS_MAX)

    def _corrected(
        self, command: CommitSlices, pack: StoredPack, outcome: Reply | BaseException
    ) -> int | None:
        """Return the time of the intent by the clock of the group, if its log time is far from that
        of this core; None: the commit is late, or was not refused for that.

        The group told its log time before now, so the result is never after the intent."""
        if not isinstance(outcome, Reply) or outcome.code != Code.GONE or outcome.detail is None:
            return None
        age_ms = self._commits.now_ms() - pack.intent_ms
        if command.intent_ms != pack.intent_ms or age_ms > WRITE_MS_MAX:
            return None
        return int(outcome.detail) - age_ms

    async def _propose(self, command: CommitSlices) -> Reply | BaseException:
        future: asyncio.Future[Reply] = self._loop.create_future()
        try:
            self._commits.propose(self._group, command, partial(settle, future))
            return await future
        except Exception as fault:  # noqa: BLE001 (each append gets it)
            return fault

    def _answer(self, part: Part, replies: list[Reply]) -> None:
        """Answer the appends of a part, and defer the streams that the group was not ready for."""
        given = dict(zip(map(id, taken_of(part.slices)), replies, strict=True))
        codes = _codes_of(part.slices, given)
        now = self._loop.time()
        since = part.since or now
        late = [
            name
            for name, found in codes.items()
            # an append that was applied must not be in another commit
            if not found.isdisjoint(_NOT_READY)
            and Code.OK not in found
            and now - since < NOT_YET_SECONDS
        ]
        for each in part.slices:
            # before the answers: a client may read what it wrote at once
            if each.parts and any(given[id(taken)].code == Code.OK for taken in each.taken):
                self._commits.keep(part.pack.key, each)
        again = [each for each in part.slices if each.name in late]
        for taken in taken_of([each for each in part.slices if each.name not in late]):
            reply = given[id(taken)]
            taken.done(Unavailable(_UNREADY) if reply.code in _NOT_READY else reply)
        if again:
            self._deferred.appendleft(Part(part.pack, again, since))
            part.pack.left += 1
            self._again_at = now + AGAIN_SECONDS

    def _done(self, pack: StoredPack) -> None:
        pack.left -= 1
        if not pack.left:
            self._commits.finished(pack)

    def _abandon(self, part: Part | None) -> None:
        """Answer everything that waits: the commit in flight may be applied, the others never."""
        if part is not None:
            _answer(part.slices, OutcomeUnknown(_STOPPING))
            self._done(part.pack)
        for each in self._deferred:
            _answer(each.slices, Unavailable(_STOPPING))
            self._done(each.pack)
        for future in self._queue:
            pack = future.result() if future.done() else None
            slices = [] if pack is None else pack.slices.get(self._group, [])
            if pack is not None and slices:
                _answer(slices, Unavailable(_STOPPING))
                self._done(pack)
        self._queue.clear()
        self._deferred.clear()


def _codes_of(slices: Sequence[BuiltSlice], given: Mapping[int, Reply]) -> dict[str, set[int]]:
    """Return the codes that the appends of each stream got."""
    found: dict[str, set[int]] = {}
    for each in slices:
        codes = found.setdefault(each.name, set())
        codes.update(given[id(taken)].code for taken in each.taken)
    return found


def _replies_of(outcome: Reply | BaseException, part: Part) -> list[Reply] | None:
    """Return the replies to the appends of a commit that was applied, else None."""
    if not isinstance(outcome, Reply) or outcome.code != Code.OK:
        return None
    replies = msgspec.convert(outcome.detail or [], list[Reply])  # lists, from another core
    if len(replies) == sum(len(each.taken) for each in part.slices):
        return replies
    log.error("a commit has another number of replies than appends: %s", part.pack.key)
    return None


def _refusal_of(outcome: Reply | BaseException) -> Reply | BaseException:
    """Return the answer to all appends of a commit that was not applied as a whole."""
    if isinstance(outcome, BaseException):
        return outcome
    if outcome.code == Code.GONE:
        return Unavailable(
            "the pack with the append was committed too late: nothing was applied; retry"
        )
    if outcome.code in (Code.OK, Code.FENCED):
        return OutcomeUnknown(_LOST)
    return outcome


def _answer(slices: Sequence[BuiltSlice], outcome: Reply | BaseException) -> None:
    for taken in taken_of(slices):
        taken.done(outcome)


_LOST = "the group did not report the outcome of a commit: the append may have been applied"
_UNREADY = "the stream is not ready for appends: its profile changes, or it is being flushed; retry"
_STOPPING = "this node is stopping"
