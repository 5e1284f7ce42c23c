"""The copy of batches: one reader for each leader of the source, one writer for each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from polynya.cli.mirror.committed import OldBatch, committed_in
from polynya.cli.mirror.connection import BrokerLost
from polynya.cli.mirror.source import Fetched, Source, SourceTopic, TopicPartition
from polynya.cli.mirror.target import Chunk, Ends, Target, gathered, owned, patiently
from polynya.cli.terminal import exits

_CHUNK_BYTES = 4 << 20  # of a request; a larger batch goes alone
_CHUNK_BATCHES = 2000
_WAITING = 2  # chunks of a partition that were read and are not written yet
_WAITING_BYTES = 64 << 20  # of all partitions
_IDLE_SECONDS = 0.05  # until a partition may be read again
_LEADERLESS_SECONDS = 0.5
_AGAIN = frozenset(
    (
        *("not_leader_or_follower", "leader_not_available", "unknown_leader_epoch"),
        *("fenced_leader_epoch", "replica_not_available", "kafka_storage_error"),
        *("offset_not_available", "unknown_server_error", "not_enough_replicas"),
    )
)


class Part:
    """A partition: how far it is read, written, and known at the source."""

    def __init__(self, partition: TopicPartition, leader: int, ends: Ends) -> None:
        self.partition, self.leader = partition, leader
        self.first, self.next = ends.first, ends.next  # here
        self.read = self.sent = ends.next  # up to here it is read at the source, and queued
        self.start = self.stable = self.high = -1  # at the source; -1: not known yet
        self.size = 0  # bytes that were written
        self.chunks: asyncio.Queue[Chunk] = asyncio.Queue(_WAITING)
        self.is_gone = False  # its topic was deleted at the source

    @property
    def lag(self) -> int:
        """The offsets that are committed at the source and not here."""
        return max(0, self.stable - self.next)

    @property
    def name(self) -> str:
        return f"{self.partition[0]}/{self.partition[1]}"


class Copy:
    """The copy of all partitions. `run` goes on until it is cancelled, or raises `exits.Ended`."""

    def __init__(self, source: Source, target: Target, retry_seconds: float) -> None:
        self._source, self._target, self._retry_seconds = source, target, retry_seconds
        self.parts: dict[TopicPartition, Part] = {}
        self._group: asyncio.TaskGroup | None = None
        self._readers: dict[int, asyncio.Task[None]] = {}
        self._waiting_bytes = 0
        self._written = asyncio.Event()
        self.stale = asyncio.Event()  # the leaders are to be looked up again

    async def run(self) -> None:
        """Copy the partitions that `follow` is told of."""
        async with owned() as group:
            self._group = group
            group.create_task(_forever())  # readers and writers come later
            for part in self.parts.values():
                self._begin(part)

    async def follow(self, topics: Mapping[str, SourceTopic]) -> None:
        """Take over the partitions and leaders of the source. Raises BrokerLost, `exits.Ended`."""
        leaders = {
            (name, each.number): each.leader
            for name, topic in topics.items()
            for each in topic.partitions
        }
        for partition, part in self.parts.items():
            part.leader, part.is_gone = leaders.get(partition, -1), partition not in leaders
        fresh = [partition for partition in leaders if partition not in self.parts]
        ends = await gathered([self._target.ends(partition) for partition in fresh])
        for partition, here in zip(fresh, ends, strict=True):
            part = self.parts[partition] = Part(partition, leaders[partition], here)
            if self._group is not None:
                self._begin(part)
        await self._learn_starts()
        await self.look()
        for leader in {part.leader for part in self.parts.values()} - self._readers.keys():
            if leader >= 0 and self._group is not None:
                self._readers[leader] = self._group.create_task(self._read_from(leader))

    async def _learn_starts(self) -> None:
        """Learn where the source's logs start; a partition without a leader is asked for later."""
        unknown = {part.partition: part.leader for part in self.alive if part.start < 0}
        for partition, start in (await self._source.ends(unknown, start=True)).items():
            part = self.parts[partition]
            part.start = start
            if start > part.read and not part.next:
                part.read = start

    async def look(self) -> None:
        """Learn the ends of the source. Raises BrokerLost, and `exits.Refused` for a source that is
        not the one of before."""
        leaders = {part.partition: part.leader for part in self.alive}
        for partition, end in (await self._source.ends(leaders)).items():
            self.parts[partition].high = end
        for partition, end in (await self._source.ends(leaders, committed=True)).items():
            self.parts[partition].stable = end
        for part in self.alive:
            if 0 <= part.high < part.next:
                raise _other_log(part)

    @property
    def alive(self) -> list[Part]:
        """The partitions that the source has."""
        return [part for part in self.parts.values() if not part.is_gone]

    def _begin(self, part: Part) -> None:
        assert self._group is not None
        self._group.create_task(self._write(part))
        if part.leader >= 0 and part.leader not in self._readers:
            self._readers[part.leader] = self._group.create_task(self._read_from(part.leader))

    # --- reading ----------------------------------------------------------------------------------

    async def _read_from(self, leader: int) -> None:
        """Read the partitions of a leader."""
        turn = 0
        while True:
            while self._waiting_bytes > _WAITING_BYTES:
                self._written.clear()
                await self._written.wait()
            mine = [
                part
                for part in self.alive
                if part.leader == leader and not part.chunks.full() and part.start >= 0
            ]
            if not mine:
                await asyncio.sleep(_IDLE_SECONDS)
                continue
            turn += 1  # a broker fills its answer from the first partition on
            first = turn % len(mine)
            asked = {part.partition: part.read for part in (*mine[first:], *mine[:first])}

            async def fetch(asked: Mapping[TopicPartition, int] = asked) -> list[Fetched]:
                return await self._source.fetch(leader, asked)

            try:
                answers = await patiently(fetch, BrokerLost, self._retry_seconds, "the source")
            except BrokerLost as lost:
                if not any(part.leader == leader for part in self.alive):
                    return  # its partitions have other leaders now
                raise exits.Unreachable(f"the source is lost: {lost}") from None
            await self._take_all(answers)

    async def _take_all(self, answers: Iterable[Fetched]) -> None:
        failed = False
        for answer in answers:
            part = self.parts[answer.partition]
            if not answer.error:
                await self._take(part, answer)
            elif answer.error == "offset_out_of_range":
                await self._move(part)
            elif answer.error == "topic_authorization_failed":
                raise exits.Refused(f"the source does not let this login read {part.name}")
            else:
                self.stale.set()
                failed = True
        if failed:
            await asyncio.sleep(_LEADERLESS_SECONDS)

    async def _take(self, part: Part, answer: Fetched) -> None:
        """Queue the committed batches of an answer."""
        part.stable, part.high = max(part.stable, answer.stable), max(part.high, answer.high)
        moved = answer.start > max(part.start, part.first)
        part.start = max(part.start, answer.start)
        try:
            found = committed_in(answer.records, part.read, answer.aborted)
        except OldBatch as old:
            raise exits.Refused(
                f"{part.name} has records of a format from before Kafka 0.11, at offset {old}",
                hint="Copy the topic with MirrorMaker 2, or wait until the source deletes them.",
            ) from None
        begin = part.sent
        if not part.next and not part.sent:  # the source's log starts there, or inside a batch
            begin = part.read if found.first < 0 else min(part.read, found.first)
        if found.end == part.sent and not moved:
            return
        for chunk in _chunks(found.batches, begin, found.end, part.start):
            self._waiting_bytes += chunk.size
            await part.chunks.put(chunk)
        part.read = part.sent = found.end

    async def _move(self, part: Part) -> None:
        """Go on at the start of the source, which has deleted what was to be read."""
        starts = await self._source.ends({part.partition: part.leader}, start=True)
        start = starts.get(part.partition, part.read)
        if start <= part.read:
            await self.look()  # raises for another log
            await asyncio.sleep(_LEADERLESS_SECONDS)
            return
        part.start = part.read = start

    # --- writing ----------------------------------------------------------------------------------

    async def _write(self, part: Part) -> None:
        """Write what was read of a partition, in order."""
        while True:
            chunk = await part.chunks.get()
            try:
                ends = await self._target.append(part.partition, chunk)
            except exits.Refused as refused:
                raise exits.Refused(
                    f"{part.name}: {refused.message}", code=refused.code, hint=refused.hint
                ) from None
            part.first, part.next = ends.first, ends.next
            part.size += chunk.size
            self._waiting_bytes -= chunk.size
            self._written.set()


def _chunks(batches: list[bytes], begin: int, end: int, start: int) -> list[Chunk]:
    """Return requests for batches, which together have all from `begin` to `end`."""
    chunks = [Chunk(begin, end, start, [])]
    size = 0
    for batch in batches:
        last = chunks[-1]
        if last.batches and (
            size + len(batch) > _CHUNK_BYTES or len(last.batches) == _CHUNK_BATCHES
        ):
            last.end = int.from_bytes(batch[:8])
            chunks.append(Chunk(last.end, end, start, []))
            size = 0
        chunks[-1].batches.append(batch)
        size += len(batch)
    return chunks


async def _forever() -> None:
    await asyncio.Event().wait()


def _other_log(part: Part) -> exits.Refused:
    return exits.Refused(
        f"{part.name} ends at offset {part.high} at the source and at {part.next} here: the source's "
        "topic was deleted and created again, or has lost records",
        hint=f"'polynya topic rm {part.partition[0]}' deletes the mirror, which then starts over.",
    )
