"""The answers of one core to questions of any core about the groups that it hosts, and the questions
of a core about forks and the meta group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import structs

from polynya.base.errors import Unavailable
from polynya.local.api import Page, ReadLimits, Refusal, Span, StreamInfo
from polynya.local.local import LocalGroups
from polynya.local.reads.leader_epochs import epoch_end
from polynya.local.reads.local_reads import LocalReads
from polynya.local.reads.pieces import PlannedPage, PlannedSpans
from polynya.routing import messages
from polynya.routing.directory import Leaders
from polynya.routing.rpc import Rpc
from polynya.stream.command import Command
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.features.tables.lifetimes import live_tables
from polynya.stream.features.tables.rules import Lag, lag_of
from polynya.stream.features.tables.state import Table
from polynya.stream.features.topics.state import TopicNews
from polynya.stream.parts import Retention
from polynya.stream.replies import Reply


class LocalAnswers:
    """Waits until this core may answer, and answers. All methods raise Unavailable."""

    def __init__(self, local: LocalGroups, directory: Leaders) -> None:
        self._local = local
        self._directory = directory

    def serve(self, rpc: Rpc) -> None:
        """Answer the questions of other cores."""
        served: tuple[tuple[int, Any, Callable[[Any], Awaitable[Any]]], ...] = (
            (messages.INFO, messages.Attach, self.info),
            (messages.READ, messages.Query, self.read_for),
            (messages.READ_UID, messages.ReadUid, self.read_uid_for),
            (messages.POSITION_OF_TIME, messages.TimeOfUid, self.position_of_time),
            (messages.BUCKETS, messages.Flush, self.buckets),
            (messages.TOPICS, messages.TopicQuery, self.topics),
            (messages.EPOCH_END, messages.EpochQuery, self.epoch_end),
            (messages.META, messages.Flush, self.meta),
            (messages.LIST, messages.ListQuery, self.list_streams),
            (messages.TABLES, messages.Flush, self.tables),
            (messages.LAG, messages.LagQuery, self.lags),
        )
        for kind, shape, handle in served:
            rpc.register(kind, shape, handle)

    async def read(self, question: messages.Query) -> Page | Refusal | PlannedPage:
        """Return a page, all of it read here."""
        return await self._page(question, far=False)

    async def read_for(self, question: messages.Query) -> Page | Refusal | PlannedPage:
        """Read for another core, which may itself read the pieces of diskless streams."""
        return await self._page(question, far=question.far)

    async def _page(self, question: messages.Query, *, far: bool) -> Page | Refusal | PlannedPage:
        group, query = question.group, question.query
        try:
            await self._local.prepare(group, local=query.local)
        except Unavailable as fault:
            return await self._local.reads.read_sealed(group, query, fault)
        return await self._local.reads.read_for(group, query, far=far)

    async def read_uid(self, question: messages.ReadUid) -> PlannedSpans:
        """Return records of a fork's source, all of them read here."""
        await self._local.prepare(question.uid >> 48, local=question.local)
        limits = _limits_of(question)
        return PlannedSpans(
            *await self._local.reads.read_uid(
                question.uid, question.at, question.until, limits, local=question.local
            )
        )

    async def read_uid_for(self, question: messages.ReadUid) -> object:
        """Read for another core. An older one expects spans and their end alone."""
        await self._local.prepare(question.uid >> 48, local=question.local)
        limits = _limits_of(question)
        asked = (question.uid, question.at, question.until, limits)
        planned = self._local.reads.plan_uid(*asked) if question.far else None
        return planned or await self._local.reads.read_uid(*asked, local=question.local)

    async def position_of_time(self, question: messages.TimeOfUid) -> tuple[int, int]:
        """Return the position of a time in a fork's source."""
        await self._local.linearize(question.uid >> 48)
        return await self._local.reads.times.position_in_source(
            question.uid, question.time_ms, question.until, question.record_from
        )

    async def tables(self, question: messages.Flush) -> list[Table]:
        """Return the tables, on the core of the meta group."""
        await self._local.linearize(0)
        return live_tables(self._local.here(0))

    async def buckets(self, question: messages.Flush) -> dict[str, Retention]:
        """Return the retention of each bucket."""
        await self._local.linearize(0)
        return dict(self._local.here(0).meta.buckets)

    async def topics(self, question: messages.TopicQuery) -> TopicNews:
        """Return the topics that changed since a number."""
        await self._local.prepare(0, local=question.local)
        machine = self._local.here(0)
        news = machine.meta.topic_changes.since(question.since, machine.meta.topics)
        news.topics = [structs.replace(topic) for topic in news.topics]
        return news

    async def meta(self, question: messages.Flush) -> dict[str, bytes]:
        """Return the entries of a scope."""
        await self._local.linearize(0)
        scope = question.prefix
        return {
            name: value
            for name, value in self._local.here(0).meta.settings.items()
            if name == scope or name.startswith(f"{scope}/")
        }

    async def lags(self, question: messages.LagQuery) -> list[Lag]:
        """Return a table's lag in each of the groups. It visits all streams and yields to the loop
        in between."""
        await self._local.linearize_all(question.groups)
        found: dict[int, Lag] = {}
        for group in question.groups:
            for lag in lag_of(
                self._local.here(group),
                question.table,
                question.prefix,
                question.without,
                question.committed,
            ):
                found[group] = lag
                await asyncio.sleep(0)
        return list(found.values())

    async def epoch_end(self, question: messages.EpochQuery) -> int | Refusal:
        """Return the end of the records of a leader epoch; -1: the epoch has not begun."""
        group, epoch = question.group, question.epoch
        await self._local.linearize(group)
        if epoch > self._directory.newest_epoch(group):
            return -1
        return await epoch_end(self._local, group, question.name, epoch)

    async def info(self, question: messages.Attach) -> StreamInfo | Refusal:
        """Return the facts of a stream."""
        await self._local.prepare(question.group, local=question.local)
        return self._local.streams.info(question.group, question.name, local=question.local)

    async def list_streams(self, question: messages.ListQuery) -> list[StreamInfo]:
        """Return streams of the groups by name."""
        await asyncio.gather(
            *(self._local.prepare(group, local=question.local) for group in question.groups)
        )
        for group in question.groups:
            self._local.here(group)
        groups = frozenset(question.groups)
        return await self._local.streams.list_streams(
            question.prefix,
            question.after,
            question.limit,
            groups,
            attributes=question.attributes,
        )


def _limits_of(question: messages.ReadUid) -> ReadLimits:
    return ReadLimits(*question.limits, question.append_times, question.batch_times, question.raw)


class ForkSources:
    """Implements `polynya.local.dependencies.ParentReader` for one core."""

    def __init__(self, reads: LocalReads, rpc: Rpc, answers: LocalAnswers) -> None:
        self._reads = reads
        self._rpc = rpc
        self._answers = answers

    async def read_uid(
        self,
        uid: int,
        at: tuple[int, int],
        until: tuple[int, int],
        limits: ReadLimits,
        *,
        local: bool = False,
    ) -> tuple[list[Span], tuple[int, int]]:
        """Return spans of the source from `at` to at most `until`, and where they end."""
        pair = (limits.bytes_max, limits.whole_records)
        far = self._reads.cold is not None
        times = (limits.append_times, limits.batch_times)
        question = messages.ReadUid(uid, at, until, pair, local, far, *times, limits.raw)
        answer: PlannedSpans = await self._rpc.at_replica(
            uid >> 48, messages.READ_UID, question, self._answers.read_uid, local=local
        )
        return await self._reads.pieces.planned_spans(answer, limits, local=local)

    async def position_of_time(
        self, uid: int, time_ms: int, until: tuple[int, int], record_from: int = -1
    ) -> tuple[int, int]:
        """Return the position of a time in a fork's source, at most the fork point `until`.
        `record_from`: of a record time, from this record on."""
        question = messages.TimeOfUid(uid, time_ms, until, record_from)
        found: tuple[int, int] = await self._rpc.at_replica(
            uid >> 48, messages.POSITION_OF_TIME, question, self._answers.position_of_time
        )
        return found


class MetaGroup:
    """The questions of one core to the meta group, and its commands to it, which `call` proposes.
    All methods raise Unavailable."""

    def __init__(
        self,
        rpc: Rpc,
        answers: LocalAnswers,
        call: Callable[[int, Command], Awaitable[Reply]],
    ) -> None:
        self._rpc = rpc
        self._answers = answers
        self._call = call

    async def call(self, command: Command) -> Reply:
        """Propose a command; see `Proposals.call`."""
        return await self._call(META_GROUP, command)

    def is_here(self) -> bool:
        """Report whether this core acts for the group; see `Rpc.is_home`."""
        return self._rpc.is_home(META_GROUP)

    async def entries(self, scope: str) -> dict[str, bytes]:
        """Return the entries under a scope (see `polynya.stream.features.settings.rules`)."""
        found: dict[str, bytes] = await self._rpc.at_replica(
            META_GROUP, messages.META, messages.Flush(scope), self._answers.meta
        )
        return found

    async def tables(self) -> list[Table]:
        """Return the tables."""
        tables: list[Table] = await self._rpc.at_replica(
            META_GROUP, messages.TABLES, messages.Flush(""), self._answers.tables
        )
        return tables

    async def buckets(self) -> dict[str, Retention]:
        """Return the retention of each bucket that has one."""
        found: dict[str, Retention] = await self._rpc.at_replica(
            META_GROUP, messages.BUCKETS, messages.Flush(""), self._answers.buckets
        )
        return found

    async def topics(self, since: int, *, local: bool = False) -> TopicNews:
        """Return the Kafka topics that changed since a number; -1: all. `local`: of this node's
        replica."""
        question = messages.TopicQuery(since, local)
        found: TopicNews = await self._rpc.at_replica(
            META_GROUP, messages.TOPICS, question, self._answers.topics, local=local
        )
        return found
