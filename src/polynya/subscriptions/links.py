"""The links of subscriptions across all groups: register them, query them, acknowledge them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from msgspec import structs

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.levels import WORK_QUEUE_LEVEL
from polynya.base.limits import SUBSCRIPTION_LINKS_SHOWN
from polynya.base.names import spelled_name
from polynya.base.offsets import parse_token
from polynya.local.api import Page, ReadQuery, Refusal
from polynya.routing.rpc import CoreService
from polynya.stream.command import Command
from polynya.stream.features.subscriptions.commands import (
    AckLinks,
    LinkSubscription,
    ResetLinks,
    SubscriptionLinked,
    UnlinkSubscription,
)
from polynya.stream.features.subscriptions.links import (
    lag_of,
    named_links,
    oldest_links,
    page_of_links,
)
from polynya.stream.features.subscriptions.state import LinkInfo, Subscription
from polynya.stream.replies import Code, Done
from polynya.stream.state.record_gaps import JUMP
from polynya.subscriptions import messages
from polynya.subscriptions.messages import LagsQuery, LinksQuery


class BadAck(Exception):
    """An invalid acknowledgement."""


class GroupProposals(Protocol):
    """The proposals of a core."""

    @property
    def propose_to(self) -> Callable[[int, Command, Done], None]:
        """Propose a command to a group, without waiting."""
        ...


class StreamService(CoreService, Protocol):
    """The parts of a core's service that subscriptions need."""

    @property
    def proposals(self) -> GroupProposals: ...

    def group_of(self, name: str) -> int: ...

    async def read(self, query: ReadQuery) -> Page | Refusal: ...


class SubscriptionLinks:
    """The link operations of one core. `owner_group` is the group of the subscription's id."""

    def __init__(self, service: StreamService) -> None:
        self._service = service
        service.rpc.serve(messages.LINKS, LinksQuery, list[LinkInfo], self._answer)
        service.rpc.serve(messages.LAGS, LagsQuery, list[int], self._answer_lags)

    async def register(self, owner_group: int, subscription: Subscription) -> bool:
        """Register the subscription's present streams in every group, then confirm that to its
        owner group. Return False if that incarnation was deleted."""
        service, revision = self._service, subscription.revision
        names: dict[int, list[str]] = {group: [] for group in range(1, service.groups + 1)}
        for name in subscription.streams:
            names[service.group_of(name)].append(name)
        key, uid, config = subscription.id, subscription.uid, subscription.config
        commands = {
            group: LinkSubscription(key, uid, revision, config.pattern, config.wake_stream, streams)
            for group, streams in names.items()
        }
        replies = await asyncio.gather(
            *(service.call(group, command) for group, command in commands.items())
        )
        if any(reply.code == Code.DISK_FULL for reply in replies):
            raise Unavailable("the subscription cannot be registered: the journal's disk is full")
        if any(reply.code != Code.OK for reply in replies):
            return False
        return (
            await service.call(owner_group, SubscriptionLinked(key, uid, revision))
        ).code == Code.OK

    async def untell(self, owner_group: int, key: str, uid: int) -> None:
        """Remove a deleted incarnation from every group, then from its owner group."""
        service = self._service
        replies = await asyncio.gather(
            *(
                service.call(group, UnlinkSubscription(key, uid))
                for group in range(1, service.groups + 1)
            )
        )
        if all(reply.code == Code.OK for reply in replies):
            await service.call(owner_group, SubscriptionLinked(key, uid, 0))

    async def oldest(
        self,
        subscription: Subscription,
        limit: int = SUBSCRIPTION_LINKS_SHOWN,
        *,
        whole: bool = True,
    ) -> list[LinkInfo]:
        """Return at most `limit` links: pending ones first, the longest waiting first in each
        group, then others.

        Groups without a leader are skipped while other groups have pending links; they report
        theirs after the election. Without any pending link, `whole` requires those groups too and
        raises Unavailable; otherwise they stay skipped."""
        question, groups = LinksQuery(subscription.id, subscription.uid, limit), self._groups
        leaderless = self._service.directory.leaderless(groups)
        missing: list[int] = []
        found = await self._ask(
            question, [group for group in groups if group not in leaderless], missing
        )
        if whole and not any(info.pending for info in found):
            if missing:
                raise Unavailable(f"no replica of group {missing[0]} responded; retry")
            found += await self._ask(question, leaderless)
        found.sort(key=lambda info: not info.pending)
        return found[:limit]

    async def page(
        self, subscription: Subscription, after: str, limit: int, *, whole: bool = True
    ) -> list[LinkInfo]:
        """Return links sorted by spelled name, those after `after`. With `whole` False, groups
        without a leader are skipped."""
        question, groups = (
            LinksQuery(subscription.id, subscription.uid, limit, after=after),
            self._groups,
        )
        leaderless = [] if whole else self._service.directory.leaderless(groups)
        found = await self._ask(
            question, [group for group in groups if group not in leaderless], None if whole else []
        )
        found.sort(key=lambda info: spelled_name(info.name))
        return found[:limit]

    async def named(self, subscription: Subscription, names: list[str]) -> list[LinkInfo]:
        """Return the links among these streams. Raises Unavailable."""
        question = LinksQuery(subscription.id, subscription.uid, len(names), names=names)
        return await self._ask(question, sorted(set(map(self._service.group_of, names))))

    async def acknowledge(self, subscription: Subscription, acks: list[tuple[str, str]]) -> None:
        """Validate all acknowledgements, then apply them. Raises `BadAck` before any is applied."""
        if not acks:
            return
        names = list({name for name, _ in acks})
        links = {info.name: info for info in await self.named(subscription, names)}
        await self.advance(
            subscription, [_judged(links.get(name), name, offset) for name, offset in acks]
        )

    async def failing(
        self, subscription: Subscription, stream: str, offset: str
    ) -> tuple[LinkInfo, tuple[str, int, int, int]]:
        """Return the cursor of a stream, and the acknowledgement of the record there, which ends at
        `offset`. Raises `BadAck`."""
        found = await self.named(subscription, [stream])
        link = found[0] if found else None
        ack = _judged(link, stream, offset)
        if link is None or ack[2:] <= (link.record, link.byte):
            raise BadAck(
                f"offset {offset} is not after a record: '{spelled_name(stream)}' is acknowledged "
                "up to there. Send the offset after the record that failed"
            )
        return link, ack

    async def advance(
        self, subscription: Subscription, acks: list[tuple[str, int, int, int]]
    ) -> None:
        """Advance the cursors by `acks`: (name, uid of the stream, record, byte). Deleted links are
        skipped. Raises Unavailable if no cursor has moved, OutcomeUnknown if some may have."""
        await self._move(subscription, AckLinks, acks)

    async def reset(
        self, subscription: Subscription, cursors: list[tuple[str, int, int, int]]
    ) -> None:
        """Set the cursors: (name, uid of the stream, record, byte). Raises as `advance`."""
        await self._move(subscription, ResetLinks, cursors)

    async def _move(
        self,
        subscription: Subscription,
        kind: type[AckLinks | ResetLinks],
        cursors: list[tuple[str, int, int, int]],
    ) -> None:
        service = self._service
        groups: dict[int, list[tuple[str, int, int, int]]] = {}
        for cursor in cursors:
            if cursor[1]:
                groups.setdefault(service.group_of(cursor[0]), []).append(cursor)
        outcomes = await asyncio.gather(
            *(
                service.call(group, kind(subscription.id, subscription.uid, part))
                for group, part in groups.items()
            ),
            return_exceptions=True,
        )
        faults = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if faults and len(faults) < len(outcomes):
            raise OutcomeUnknown(
                f"some cursors have moved, others have not ({faults[0]}); repeat the request"
            )
        if faults:
            raise faults[0]

    async def lags(self, ids: list[str]) -> dict[str, int]:
        """Return how many records these subscriptions have not acknowledged, by id: empty until all
        nodes can say. Groups without a leader are left out."""
        if not ids or self._service.local.level < WORK_QUEUE_LEVEL:
            return {}

        def question(groups: list[int]) -> LagsQuery:
            return LagsQuery(ids, tuple(groups))

        parts = await self._service.rpc.of_groups(
            self._groups, messages.LAGS, question, self._answer_lags, missing=[]
        )
        return {key: sum(lags) for key, *lags in zip(ids, *parts, strict=True)}

    async def _answer_lags(self, question: LagsQuery) -> list[int]:
        machines = [self._service.local.here(group) for group in question.groups]
        return [sum(lag_of(machine, key) for machine in machines) for key in question.ids]

    @property
    def _groups(self) -> range:
        return range(1, self._service.groups + 1)

    async def _ask(
        self, question: LinksQuery, groups: Iterable[int], missing: list[int] | None = None
    ) -> list[LinkInfo]:
        """Query some groups. `missing`: see `of_groups`."""

        def of(groups: list[int]) -> LinksQuery:
            return structs.replace(question, groups=tuple(groups))

        parts = await self._service.rpc.of_groups(
            groups, messages.LINKS, of, self._answer, missing=missing
        )
        return [info for part in parts for info in part]

    async def _answer(self, question: LinksQuery) -> list[LinkInfo]:
        local = self._service.local
        await local.linearize_all(question.groups)
        found: list[LinkInfo] = []
        key, uid, limit = question.id, question.uid, question.limit
        for machine in map(local.here, question.groups):
            if question.names is not None:
                here = [
                    name for name in question.names if self._service.group_of(name) == machine.group
                ]
                found += named_links(machine, key, uid, here)
            elif question.after is not None:
                found += page_of_links(machine, key, uid, question.after, limit)
            else:
                found += oldest_links(machine, key, uid, limit)
        return found


def _judged(link: LinkInfo | None, name: str, offset: str) -> tuple[str, int, int, int]:
    """Validate an acknowledgement and return it as the command needs it. The tail's record number
    with a larger byte means the tail. So does a position that only skipped record numbers separate
    from the tail."""
    if link is None:
        raise BadAck(f"'{name}' is not a stream of this subscription")
    token = parse_token(offset)
    if token is None:
        raise BadAck(
            f"'{offset}' is not an offset returned by a stream"
            if offset != "-1"
            else "an acknowledged offset cannot be -1"
        )
    if token[0] > link.tail_record:
        raise BadAck(f"offset {offset} lies beyond the tail of '{spelled_name(name)}'")
    if token < (link.record, link.byte):
        raise BadAck(
            f"offset {offset} of '{spelled_name(name)}' lies before the acknowledged offset"
        )
    if token[1] == link.tail_byte and link.tail_record - token[0] >= JUMP:
        token = (link.tail_record, link.tail_byte)
    return (name, link.stream_uid, *token)
