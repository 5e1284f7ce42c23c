"""Requests and responses of subscriptions, from users and between cores."""

from __future__ import annotations

from typing import Any

import msgspec

from polynya.stream.features.subscriptions.commands import SubscriptionConfig

OPERATE = 40  # message kinds between cores
LINKS = 41
UPDATES = 42
LIST = 43
LAGS = 44


class Operation(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A user's request about one subscription. `base_url` is that of the request; URLs in the
    response are built from it."""

    id: str
    base_url: str


class Put(Operation, tag=1, frozen=True, gc=False):
    config: SubscriptionConfig
    max_attempts: int = 0  # 0: no limit
    dead_letter: str = ""  # canonical


class Get(Operation, tag=2, frozen=True, gc=False):
    after: str = ""  # only links after this spelled name
    limit: int = 0  # 0: as many as allowed


class DeleteSubscription(Operation, tag=3, frozen=True, gc=False):
    """Delete a subscription; a missing one is no error."""


class Members(Operation, tag=4, frozen=True, gc=False):
    """Change the explicit links, by canonical name."""

    add: list[str]
    remove: list[str]


class ClaimWork(Operation, tag=5, frozen=True, gc=False):
    """Claim the work of a subscription. `claim_id` is the worker's id of this claim and makes it
    idempotent; "": not idempotent."""

    worker: str
    claim_id: str = ""


class Work(Operation, tag=6, frozen=True, gc=False):
    """A worker's callback, ack or release."""

    verb: str
    token: str
    generation: int | None
    wake_id: str | None
    acks: list[tuple[str, str]]  # (canonical name, or the text received if it is invalid; offset)
    done: bool = False


class RetryWork(Operation, tag=7, frozen=True, gc=False):
    """A worker's report that it could not handle the record at the cursor of `stream`, which ends
    at `offset`. The `acks` are applied before."""

    token: str
    generation: int | None
    wake_id: str | None
    acks: list[tuple[str, str]]
    stream: str
    offset: str
    after_ms: int | None  # None: grows with the attempts
    error: str
    record: bytes  # JSON for the dead letter; b"": none


class Reset(Operation, tag=8, frozen=True, gc=False):
    """Set the cursors of the links in `streams` (canonical; empty: of all) to their first records,
    to their tails, to the first record appended at `time_ms` or later, or to `offset` of the one
    stream. `is_forced`: end a wake that a worker holds. `is_dry`: only tell what would change."""

    streams: list[str]
    to: str  # "earliest", "latest", "time" or "offset"
    time_ms: int = 0
    offset: str = ""
    is_forced: bool = False
    is_dry: bool = False


class ShareLanes(Operation, tag=9, frozen=True, gc=False):
    """A worker's report that it is alive, or that it leaves. It is at work on its `busy` lanes."""

    worker: str
    lanes: int
    busy: list[int]
    leaves: bool = False


AnyOperation = (
    Put | Get | DeleteSubscription | Members | ClaimWork | Work | RetryWork | Reset | ShareLanes
)


class OperationResult(msgspec.Struct, array_like=True, gc=False):
    """The result of an operation. `value` becomes JSON; None: no body."""

    status: int
    value: dict[str, Any] | None = None


class LinksQuery(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A query for a subscription's links in some groups: by `names`, or those after `after` by
    name. With neither, pending links come first, the longest waiting first."""

    id: str
    uid: int
    limit: int
    after: str | None = None
    names: list[str] | None = None
    groups: tuple[int, ...] = ()


class TailUpdates(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Streams with new records, as (id, uid, stream name), for subscriptions that groups own on the
    receiving core. The response lists the deleted incarnations."""

    wakes: list[tuple[str, int, str]]


class ListRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A query for the subscriptions of some owner groups, by id: those after `after` that begin with
    `prefix`. The response holds their shapes. `by_name`: the names count, of which lanes of a group
    have one."""

    prefix: str
    after: str
    limit: int
    groups: tuple[int, ...] = ()
    by_name: bool = False


class LagsQuery(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A query for the lags of subscriptions in some groups, in the order of their ids."""

    ids: list[str]
    groups: tuple[int, ...] = ()


Over = list[tuple[str, int]]
Shapes = list[dict[str, Any]]


NO_SUBSCRIPTION = "there is no such subscription"
NO_PULL_WAKE = "the subscription is not of type pull-wake"


def refuse(status: int, code: str, message: str = "", **more: Any) -> OperationResult:
    """Return a subscription error."""
    error: dict[str, Any] = {"code": code, **({"message": message} if message else {}), **more}
    return OperationResult(status, {"error": error})
