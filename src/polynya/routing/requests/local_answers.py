"""The answers of one core to questions of any core about the groups that it hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import structs

from polynya.base.errors import Unavailable
from polynya.local.api import Page, ReadLimits, Refusal, StreamInfo
from polynya.local.local import LocalGroups
from polynya.local.reads.leader_epochs import epoch_end
from polynya.local.reads.pieces import PlannedPage, PlannedSpans
from polynya.routing import messages
from polynya.routing.leaders import Leaders
from polynya.routing.requests.core_requests import CoreRequests
from polynya.stream.features.tables.lifetimes import live_tables
from polynya.stream.features.tables.rules import Lag, lag_of
from polynya.stream.features.tables.state import Table
from polynya.stream.features.topics.state import TopicNews
from polynya.stream.parts import Retention


class LocalAnswers:
    """Waits until this core may answer, and answers. All methods raise Unavailable."""

    def __init__(self, local: LocalGroups, leaders: Leaders) -> None:
        self._local = local
        self._leaders = leaders

    def serve(self, requests: CoreRequests) -> None:
        """Answer the questions of other cores."""
        served: tuple[tuple[int, Any, Callable[[Any], Awaitable[Any]]], ...] = (
            (messages.INFO, messages.Attach, self.info),
            (messages.READ, messages.Query, self.read_for),
            (messages.READ_UID, messages.ReadUid, self.read_uid_for),
            (messages.PLACE_OF_TIME, messages.TimeOfUid, self.place_of_time),
            (messages.BUCKETS, messages.Flush, self.buckets),
            (messages.TOPICS, messages.TopicQuery, self.topics),
            (messages.EPOCH_END, messages.EpochQuery, self.epoch_end),
            (messages.META, messages.Flush, self.meta),
            (messages.LIST, messages.ListQuery, self.list_streams),
            (messages.TABLES, messages.Flush, self.tables),
            (messages.LAG, messages.LagQuery, self.lags),
        )
        for kind, shape, handle in served:
            requests.register(kind, shape, handle)

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
        place = (question.uid, question.at, question.until, limits)
        planned = self._local.reads.plan_uid(*place) if question.far else None
        return planned or await self._local.reads.read_uid(*place, local=question.local)

    async def place_of_time(self, question: messages.TimeOfUid) -> tuple[int, int]:
        """Return the position of a time in a fork's source."""
        await self._local.linearize(question.uid >> 48)
        return await self._local.reads.times.place_in_source(
            question.uid, question.time_ms, question.until, question.record_from
        )

    async def tables(self, question: messages.Flush) -> list[Table]:
        """Return the tables, on the core of the meta group."""
        await self._local.linearize(0)
        return live_tables(self._local.here(0))

    async def buckets(self, question: messages.Flush) -> dict[str, Retention]:
        """Return the retention of each bucket."""
        await self._local.linearize(0)
        return dict(self._local.here(0).buckets)

    async def topics(self, question: messages.TopicQuery) -> TopicNews:
        """Return the topics that changed since a number."""
        await self._local.prepare(0, local=question.local)
        machine = self._local.here(0)
        news = machine.topic_changes.since(question.since, machine.topics)
        news.topics = [structs.replace(topic) for topic in news.topics]
        return news

    async def meta(self, question: messages.Flush) -> dict[str, bytes]:
        """Return the entries of a scope."""
        await self._local.linearize(0)
        scope = question.prefix
        return {
            name: value
            for name, value in self._local.here(0).meta.items()
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
        if epoch > self._leaders.newest_epoch(group):
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
            question.prefix, question.after, question.limit, groups
        )


def _limits_of(question: messages.ReadUid) -> ReadLimits:
    return ReadLimits(*question.limits, question.append_times, question.batch_times)
