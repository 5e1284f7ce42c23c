"""A mirror from its start to its end: topics, copy and positions beside each other, and reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from polynya.cli.mirror.connection import BrokerLost
from polynya.cli.mirror.copying import Copy
from polynya.cli.mirror.cut_over import CutOver
from polynya.cli.mirror.positions import Positions
from polynya.cli.mirror.source import Source, TopicPartition
from polynya.cli.mirror.target import Target, owned, patiently
from polynya.cli.mirror.topics import MirrorTopics
from polynya.cli.terminal import exits, output

_TOPICS_SECONDS = 30.0  # between two looks at the source's topics
_POSITIONS_SECONDS = 10.0
_REPORT_SECONDS = 10.0
_LOOK_SECONDS = 1.0  # between two looks at whether the end is reached
_ONCE_SECONDS = 0.1
_UNKNOWN = 1 << 63  # the end of a partition without a leader


class Mirror:
    """One run of the command."""

    def __init__(
        self,
        source: Source,
        target: Target,
        globs: Sequence[str],
        origin: str,
        retry_seconds: float,
    ) -> None:
        self._source, self._target, self._globs = source, target, globs
        self._retry_seconds = retry_seconds
        self._topics = MirrorTopics(source, target, globs, origin)
        self._copy = Copy(source, target, retry_seconds)
        self._positions = Positions(source, target)
        self._began = self._reported = time.monotonic()
        self._size = 0  # bytes at the last report

    async def run(self, *, once: bool, cut_over: bool, force: bool) -> None:
        """Mirror: until what the source has now is here (`once`), until the cut-over, or until it
        is interrupted. Raises `exits.Ended`."""
        try:
            await self._start(is_end=cut_over)
            async with owned() as group:
                copying = group.create_task(self._copy.run())
                await self._beside(once=once, cut_over=cut_over, force=force)
                copying.cancel()
        except BrokerLost as lost:
            raise exits.Unreachable(
                f"the source does not answer: {lost}",
                hint="Check --from, and whether the brokers want --from-tls or --from-sasl.",
            ) from None
        finally:
            self._source.close()
            await self._target.close()

    async def _start(self, *, is_end: bool) -> None:
        """Find the topics, and make those here."""
        await self._source.greet()
        await self._topics.refresh(is_end=is_end)
        if not self._topics.known and not self._topics.left_alone:
            raise exits.Refused(
                f"the source has no topic that matches {', '.join(self._globs)}",
                hint="--topics takes names with * and ?, as in --topics 'orders*'.",
            )
        await self._copy.follow(self._topics.known)

    async def _beside(self, *, once: bool, cut_over: bool, force: bool) -> None:
        parts = self._copy.parts
        output.notice(
            f"mirroring {output.counted(len(self._topics.known), 'topic')} with "
            f"{output.counted(len(parts), 'partition')}"
        )
        goals: dict[TopicPartition, int] = {}
        ending = CutOver(
            self._copy, self._topics, self._positions, (self._source, self._target), force=force
        )
        now = time.monotonic()
        due = {"topics": now + _TOPICS_SECONDS, "positions": now, "report": now + _REPORT_SECONDS}
        pause = _ONCE_SECONDS if once else _LOOK_SECONDS
        while True:
            await self._tend(due)
            if cut_over and await self._asked(ending.step):
                break
            for partition, part in parts.items():
                if part.stable >= 0:  # else it has no leader
                    goals.setdefault(partition, part.stable)
            if once and all(
                part.is_gone or part.next >= goals.get(partition, _UNKNOWN)
                for partition, part in parts.items()
            ):
                await self._asked(self._copy_positions)
                break
            await asyncio.sleep(pause)
        self._report()

    async def _tend(self, due: dict[str, float]) -> None:
        """Do what is due beside the copy."""
        now = time.monotonic()
        if now >= due["topics"] or self._copy.stale.is_set():
            self._copy.stale.clear()
            due["topics"] = now + _TOPICS_SECONDS
            await self._asked(self._refresh)
        if now >= due["positions"]:
            due["positions"] = now + _POSITIONS_SECONDS
            await self._asked(self._copy_positions)
        if now >= due["report"]:
            due["report"] = now + _REPORT_SECONDS
            await self._asked(self._copy.look)
            self._report()

    async def _asked(self, ask: Callable[[], Awaitable[bool | None]]) -> bool | None:
        return await patiently(ask, BrokerLost, self._retry_seconds, "the source")

    async def _refresh(self) -> None:
        await self._topics.refresh()
        await self._copy.follow(self._topics.known)
        if self._topics.deleted and not self._topics.known:
            raise exits.Refused(
                f"the source has deleted all topics that match {', '.join(self._globs)}",
                hint="Their mirrors here stay as they are.",
            )

    async def _copy_positions(self) -> None:
        await self._positions.copy(self._copy.parts)

    def _report(self) -> None:
        """Tell what was mirrored, how fast, and what is missing."""
        now, alive = time.monotonic(), self._copy.alive
        size = sum(part.size for part in self._copy.parts.values())
        rate = (size - self._size) / max(now - self._reported, 0.001)
        lag = sum(part.lag for part in alive)
        self._size, self._reported = size, now
        worst = max(alive, key=lambda part: part.lag, default=None)
        text = f"{output.size(size)} mirrored, {output.size(round(rate))}/s, {lag:,} offsets behind"
        if worst is not None and worst.lag:
            text += f", {worst.lag:,} of them in {worst.name}"
        if lost := [part.name for part in alive if part.leader < 0]:
            text += f"; {output.counted(len(lost), 'partition')} without a leader, as {lost[0]}"
        output.notice(text)
