"""Reset the cursors of a subscription, on the core of its owner group."""

from __future__ import annotations

from typing import Any

from polynya.base.errors import Unavailable
from polynya.base.limits import SUBSCRIPTION_LINKS_SHOWN, SUBSCRIPTION_RESETS_MAX
from polynya.base.names import spelled_name
from polynya.base.offsets import format_token, parse_token
from polynya.local.api import Page, Position, ReadQuery, Refusal
from polynya.stream.features.subscriptions.commands import ForgetFailure
from polynya.stream.features.subscriptions.rules import PULL_WAKE, Event
from polynya.stream.features.subscriptions.state import LinkInfo, State, Subscription, worker_of
from polynya.stream.replies import Code
from polynya.subscriptions.messages import OperationResult, Reset, refuse
from polynya.subscriptions.wakes import Wakes

_TRIES = 4  # while workers claim what was pending before
_PAGE_BYTES = 1  # one record is enough to know where it begins

Cursor = tuple[str, int, int, int]  # name, uid of the stream, record, byte


class Resets:
    """The resets of one core."""

    def __init__(self, wakes: Wakes) -> None:
        self._wakes = wakes
        self._links = wakes.links
        self._service = wakes.service

    async def run(self, subscription: Subscription, asked: Reset) -> OperationResult:
        """Set the cursors, and answer with those of before and after."""
        if not asked.is_dry and not asked.is_forced and _is_at_work(subscription):
            return _at_work(subscription)
        links = await self._found(subscription, asked.streams)
        if isinstance(links, OperationResult):
            return links
        cursors: list[Cursor] = []
        for link in links:
            position = await self._position(link, asked)
            if isinstance(position, OperationResult):
                return position
            cursors.append((link.name, link.stream_uid, *position))
        if not asked.is_dry and not await self._set(subscription, asked, cursors):
            return _at_work(subscription)
        moved = [
            _moved(link, cursor)
            for link, cursor in zip(links, cursors, strict=True)
            if cursor[2:] != (link.record, link.byte)
        ]
        return OperationResult(
            200, {"dry_run": asked.is_dry, "streams": moved, "unchanged": len(links) - len(moved)}
        )

    async def _found(
        self, subscription: Subscription, names: list[str]
    ) -> list[LinkInfo] | OperationResult:
        """Return the links to existing streams that are to be reset, or a refusal."""
        if names:
            links = await self._links.named(subscription, names)
            missing = set(names) - {link.name for link in links if link.stream_uid}
            if missing:
                return refuse(
                    404,
                    "STREAM_NOT_LINKED",
                    f"'{spelled_name(min(missing))}' is no stream of this subscription, or does "
                    "not exist; nothing was reset",
                )
            return sorted(links, key=lambda link: spelled_name(link.name))
        found: list[LinkInfo] = []
        after = ""
        while page := await self._links.page(subscription, after, SUBSCRIPTION_LINKS_SHOWN):
            found += [link for link in page if link.stream_uid]
            after = spelled_name(page[-1].name)
            if len(found) > SUBSCRIPTION_RESETS_MAX:
                return refuse(
                    400,
                    "INVALID_REQUEST",
                    f"one reset takes at most {SUBSCRIPTION_RESETS_MAX} streams; name them in "
                    "streams, for several resets",
                )
        return found

    async def _position(self, link: LinkInfo, asked: Reset) -> tuple[int, int] | OperationResult:
        """Return the new position of a cursor, or a refusal."""
        if asked.to == "latest":
            return link.tail_record, link.tail_byte
        if asked.to == "offset":
            token = parse_token(asked.offset)
            assert token is not None, "the route has parsed it"
            if token[0] > link.tail_record:
                return refuse(
                    409,
                    "INVALID_OFFSET",
                    f"offset {asked.offset} lies beyond the tail of '{spelled_name(link.name)}', "
                    f"{format_token(link.tail_record, link.tail_byte)}",
                )
            if token[0] == link.tail_record:
                return link.tail_record, link.tail_byte
            query = ReadQuery(link.name, *token, bytes_max=_PAGE_BYTES, touch=False)
        else:
            at = Position.START if asked.to == "earliest" else Position.AT_TIME
            query = ReadQuery(link.name, at, asked.time_ms, _PAGE_BYTES, touch=False)
        page = await self._service.read(query)
        if isinstance(page, Page):
            return min((page.begin_record, page.begin_byte), (link.tail_record, link.tail_byte))
        if isinstance(page, Refusal) and page.code == Code.TRIMMED:
            return page.record, page.byte
        raise Unavailable(f"'{spelled_name(link.name)}' cannot be read now; retry")

    async def _set(self, subscription: Subscription, asked: Reset, cursors: list[Cursor]) -> bool:
        """Set the cursors while no worker has the subscription. Return False if workers claim it
        again and again."""
        for _ in range(_TRIES):
            await self._end_wake(subscription, cursors)
            generation = subscription.generation
            await self._links.reset(subscription, cursors)
            if subscription.generation == generation or not _is_at_work(subscription):
                await self._wakes.look(subscription)
                return True
            if not asked.is_forced:
                return False
        return False

    async def _end_wake(self, subscription: Subscription, cursors: list[Cursor]) -> None:
        """Forget a failed record whose cursor moves, with its pause, and fence the holder of the
        present wake."""
        fence = (subscription.generation, subscription.wake_id)
        await self._forget_failure(subscription, cursors)
        if subscription.state == State.IDLE:
            return
        is_waiting = subscription.state == State.WAKING and subscription.config.kind == PULL_WAKE
        await self._wakes.event(subscription, Event.NOTHING if is_waiting else Event.DONE, fence)
        await self._forget_failure(subscription, cursors)  # one that its holder reported meanwhile

    async def _forget_failure(self, subscription: Subscription, cursors: list[Cursor]) -> None:
        failures = subscription.failures
        if failures.attempts and any(name == failures.stream for name, _, _, _ in cursors):
            await self._service.call(
                self._wakes.owner_group_of(subscription.id),
                ForgetFailure(subscription.id, subscription.uid, failures.stream),
            )


def _is_at_work(subscription: Subscription) -> bool:
    """Report whether a worker or a webhook may acknowledge what it has read before."""
    if subscription.config.kind == PULL_WAKE:
        return subscription.state == State.LEASED
    return subscription.state != State.IDLE


def _at_work(subscription: Subscription) -> OperationResult:
    who = worker_of(subscription.holder)
    return refuse(
        409,
        "ALREADY_CLAIMED",
        f"{f'the worker {who}' if who else 'a worker or webhook'} has the work of this subscription, "
        "and would acknowledge what it has read: stop it first, or pass force to take the work away",
        current_holder=who or None,
        generation=subscription.generation,
    )


def _moved(link: LinkInfo, cursor: Cursor) -> dict[str, Any]:
    _, _, record, byte = cursor
    return {
        "path": spelled_name(link.name),
        "from_offset": format_token(link.record, link.byte),
        "to_offset": format_token(record, byte),
        "from_lag": link.lag,
        "to_lag": link.tail_record - record,
    }
