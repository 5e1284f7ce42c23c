"""A writer of diskless streams over a log that follows the rules of commits, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from google_crc32c import value as crc32c
from sim.loop import run_simulated

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.limits import WRITE_MS_MAX, WRITER_IDLE_MS
from polynya.cold import FaultedStreams
from polynya.diskless import DisklessSettings, Writer
from polynya.objectstore import MemoryStore, StoreUnavailable
from polynya.stream.command import Command, level_for
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.packs.commands import PackWritten
from polynya.stream.features.profiles.commands import CommitSlices
from polynya.stream.machine import Machine
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code, Done, Reply
from polynya.stream.state.model import HotBatch
from polynya.wire.pack import read_footer
from polynya.wire.slices import Slice, parse_slice

CLUSTER = "5e" * 16
PUT_SECONDS = 0.04
LOG_SECONDS = 0.01


class SlowStore(MemoryStore):
    """A store that takes time. `how` says what happens to the put of this number."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[tuple[float, str]] = []
        self.open_now = self.open_most = 0
        self.seconds: Callable[[int], float] = lambda number: PUT_SECONDS
        self.how: Callable[[int], str] = lambda number: ""  # "", "before" or "after"

    async def put(self, key: str, parts: bytes | Sequence[bytes]) -> None:
        number = len(self.puts) + 1
        self.puts.append((asyncio.get_running_loop().time(), key))
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            await asyncio.sleep(self.seconds(number))
        finally:
            self.open_now -= 1
        if self.how(number) == "before":
            raise StoreUnavailable("503 Slow Down", "503 Slow Down")
        await super().put(key, parts)
        if self.how(number) == "after":
            raise StoreUnavailable("no answer came in time")


class Log:
    """The groups as a writer sees them: each judges a commit once, and a repeat as the first."""

    def __init__(self, store: SlowStore) -> None:
        self.store = store
        self.now = 1_700_000_000_000
        self.ahead_ms = 0  # of the log time of groups to that of this core
        self.level = 3  # of all groups
        self.recent: dict[int, int] = {}
        self.faulted = FaultedStreams({})
        self.packs: dict[str, list[int]] = {}  # as owner groups have them
        self.commits: list[tuple[float, int, CommitSlices]] = []  # as they were proposed
        self.applied: dict[str, list[bytes]] = {}  # payloads of each stream, as the pack has them
        self.seconds: Callable[[int], float] = lambda group: LOG_SECONDS
        self.leaderless: set[int] = set()
        self.intents: list[tuple[int, str]] = []  # home and pack, as they were logged
        # what happens to the commit of this number: "", "before", "after", "lost", "never"
        self.how: Callable[[int], str] = lambda number: ""
        self.judge: Callable[[Append, float], Code] = lambda command, now: Code.OK
        # number and replies of the last commit, and the log time at which it was applied
        self._last: dict[tuple[str, int], tuple[int, list[Reply], int]] = {}

    # What `Groups` has.

    def machines(self) -> Mapping[int, Machine]:
        return {}

    @property
    def numbers(self) -> Sequence[int]:
        return range(1, 6)

    def leader_of(self, group: int) -> int:
        return -1 if group in self.leaderless else 1

    def turns(self) -> int:
        return 0

    def term(self, group: int) -> int:
        return 1

    def now_ms(self) -> int:
        return self.now

    def covered_ms(self) -> int:
        return self.now

    def want_snapshots(self) -> None:
        """Ignore it."""

    def may_log(self, machine: Machine, level: int) -> bool:
        return True

    def may_commit(self, group: int, level: int) -> bool:
        return self.level >= level

    async def repair(self, group: int, uid: int, batches: Sequence[HotBatch]) -> bool:
        return False

    async def propose(self, group: int, command: Command) -> Reply:
        assert isinstance(command, PackWritten)
        if group in self.leaderless:
            raise Unavailable("no leader")
        await asyncio.sleep(self.seconds(group))
        self.intents.append((group, command.pack))
        self.packs[command.pack] = command.groups
        return Reply(Code.CREATED)

    # What the writer's commits go to.

    def propose_commit(self, group: int, command: Command, done: Done) -> None:
        assert isinstance(command, CommitSlices)
        assert level_for(command) <= self.level
        loop = asyncio.get_running_loop()
        self.commits.append((loop.time(), group, command))
        how = self.how(len(self.commits))
        if how != "never":
            loop.call_later(self.seconds(group), self._arrive, group, command, done, how)

    def _arrive(self, group: int, command: CommitSlices, done: Done, how: str) -> None:
        if how == "before" or group in self.leaderless:
            done(Unavailable("no leader"))
        elif how == "lost":
            done(OutcomeUnknown("who knows"))
        else:
            reply = self._apply(group, command)
            done(OutcomeUnknown("who knows") if how == "after" else reply)

    def _apply(self, group: int, command: CommitSlices) -> Reply:
        log_ms = self.now + self.ahead_ms
        last, replies, applied_ms = self._last.get((command.writer, group), (0, [], log_ms))
        if applied_ms < log_ms - WRITER_IDLE_MS:
            last = 0  # the group has forgotten the writer
        if command.sequence == last:
            return Reply(Code.OK, detail=replies)
        if command.sequence < last:
            return Reply(Code.FENCED)
        if abs(log_ms - command.intent_ms) > WRITE_MS_MAX:
            return Reply(Code.GONE, detail=log_ms)
        found = [
            reply for each in command.slices for reply in self._judged(group, command.pack, each)
        ]
        self._last[command.writer, group] = command.sequence, found, log_ms
        return Reply(Code.OK, detail=found)

    def _judged(self, group: int, pack: str, each: Any) -> list[Reply]:
        payloads: list[bytes] = []
        if each.stored:
            assert group in self.packs[pack], "committed before the intent"
            assert pack in self.store.objects, "committed before the put"
            data = self.store.objects[pack][0]
            found = parse_slice(data[each.offset : each.offset + each.stored], each.crc)
            payloads = [bytes(hot.payload) for hot in found.hot_batches(record=0, byte=0)]
        replies = []
        now = asyncio.get_running_loop().time()
        for packed in each.appends:
            payload = payloads.pop(0) if packed.command.batch is not None else b""
            assert len(payload) == packed.length
            code = self.judge(packed.command, now)
            stream = self.applied.setdefault(packed.command.name, [])
            if code == Code.OK and payload:
                stream.append(payload)
            replies.append(Reply(code, record=len(stream), byte=sum(map(len, stream))))
        assert not payloads, "a batch that no append names"
        return replies


class DisklessWorld:
    """A writer, its store and its log."""

    def __init__(self, **settings: Any) -> None:
        self.store = SlowStore()
        self.log = Log(self.store)
        self.in_flight: set[str] = set()
        self.kept: list[tuple[str, int, Slice]] = []  # pack and offset of slices for readers
        self.writer = Writer(
            self.log,
            self.log.propose_commit,
            self.store,
            DisklessSettings(**settings),
            CLUSTER,
            in_flight=self.in_flight,
            keep=lambda *kept: self.kept.append(kept),
        )
        self.outcomes: list[tuple[float, str, Reply | BaseException]] = []

    def append(  # noqa: PLR0913
        self, name: str, payload: bytes, *, group: int = 1, close: bool = False, **more: Any
    ) -> asyncio.Future[Reply | BaseException]:
        """Append one record, and return its outcome later."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply | BaseException] = loop.create_future()
        batch = Batch(Encoding.BYTES, 1, payload, crc32c(payload)) if payload else None

        def done(outcome: Reply | BaseException) -> None:
            self.outcomes.append((loop.time(), f"{name} {payload.decode()}", outcome))
            future.set_result(outcome)

        command = Append(name, self.log.now, "text/plain", batch, close=close, **more)
        self.writer.append(group, command, done)
        return future

    @property
    def codes(self) -> dict[str, object]:
        """Return the outcome of each append: a code, or the kind of a fault."""
        return {
            what: Code(outcome.code) if isinstance(outcome, Reply) else type(outcome)
            for _, what, outcome in self.outcomes
        }

    def footer(self, number: int) -> list[tuple[str, int]]:
        """Return the streams of a pack, with the batches of each."""
        data = self.store.objects[self.store.puts[number][1]][0]
        return [(entry.path, entry.batches) for entry in read_footer(data).entries]


def diskless_story(
    work: Callable[[DisklessWorld], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    """Run a story in virtual time. Nothing is left of it: no task, no key in flight, no bytes."""

    async def run() -> None:
        world = DisklessWorld(**settings)
        await work(world)
        await world.writer.close()
        counters = world.writer.counters
        assert (counters.waiting_now, counters.bytes_now, counters.puts_now) == (0, 0, 0)
        assert not world.in_flight
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_simulated(run())
