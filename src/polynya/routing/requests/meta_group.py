"""The meta group, as any core sees it: settings, tables, buckets and topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from polynya.routing import messages
from polynya.routing.requests.group_requests import GroupRequests
from polynya.routing.requests.local_answers import LocalAnswers
from polynya.stream.command import Command
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.features.tables.state import Table
from polynya.stream.features.topics.state import TopicNews
from polynya.stream.parts import Retention
from polynya.stream.replies import Reply


class MetaGroup:
    """The questions of one core to the meta group, and its commands to it, which `call` proposes.
    All methods raise Unavailable."""

    def __init__(
        self,
        requests: GroupRequests,
        answers: LocalAnswers,
        call: Callable[[int, Command], Awaitable[Reply]],
    ) -> None:
        self._requests = requests
        self._answers = answers
        self._call = call

    async def call(self, command: Command) -> Reply:
        """Propose a command; see `Proposals.call`."""
        return await self._call(META_GROUP, command)

    async def entries(self, scope: str) -> dict[str, bytes]:
        """Return the entries under a scope (see `polynya.stream.features.settings.rules`)."""
        found: dict[str, bytes] = await self._requests.at_replica(
            META_GROUP, messages.META, messages.Flush(scope), self._answers.meta
        )
        return found

    async def tables(self) -> list[Table]:
        """Return the tables."""
        tables: list[Table] = await self._requests.at_replica(
            META_GROUP, messages.TABLES, messages.Flush(""), self._answers.tables
        )
        return tables

    async def buckets(self) -> dict[str, Retention]:
        """Return the retention of each bucket that has one."""
        found: dict[str, Retention] = await self._requests.at_replica(
            META_GROUP, messages.BUCKETS, messages.Flush(""), self._answers.buckets
        )
        return found

    async def topics(self, since: int, *, local: bool = False) -> TopicNews:
        """Return the Kafka topics that changed since a number; -1: all. `local`: of this node's
        replica."""
        question = messages.TopicQuery(since, local)
        found: TopicNews = await self._requests.at_replica(
            META_GROUP, messages.TOPICS, question, self._answers.topics, local=local
        )
        return found
