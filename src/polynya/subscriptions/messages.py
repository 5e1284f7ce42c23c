"""What is asked of subscriptions, by users and between cores, and the answers."""

from __future__ import annotations

from typing import Any

import msgspec

from polynya.stream.commands import SubscriptionConfig
from polynya.stream.subscriptions.state import LinkInfo

OPERATE = 40  # kinds of messages between cores
LINKS = 41
NEWS = 42
LIST = 43


class Operation(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Asked by a user of one subscription. `base_url` is that of the request: URLs in answers are built from it."""

    id: str
    base_url: str


class Put(Operation, tag=1, frozen=True, gc=False):
    config: SubscriptionConfig


class Get(Operation, tag=2, frozen=True, gc=False):
    after: str = ""  # links by spelled name from here on
    limit: int = 0  # 0: as many as may be shown


class DeleteSubscription(Operation, tag=3, frozen=True, gc=False):
    """Also of one that is not there."""


class Members(Operation, tag=4, frozen=True, gc=False):
    """Change the explicit links; canonical names."""

    add: list[str]
    remove: list[str]


class ClaimWork(Operation, tag=5, frozen=True, gc=False):
    """`claim_id`: what the worker calls this claim, so that it can be repeated; "" if it cannot be."""

    worker: str
    claim_id: str = ""


class Work(Operation, tag=6, frozen=True, gc=False):
    """A worker's callback, ack or release."""

    verb: str
    token: str
    generation: int | None
    wake_id: str | None
    acks: list[tuple[str, str]]  # (canonical name, or what was sent if it is none; offset)
    done: bool = False


AnyOperation = Put | Get | DeleteSubscription | Members | ClaimWork | Work


class OperationResult(msgspec.Struct, array_like=True, gc=False):
    """`value` becomes JSON; None: no body."""

    status: int
    value: dict[str, Any] | None = None


class LinksQuery(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Links of a subscription in some groups: named ones; or, by name, those after `after`; or, without either, pending ones
    first, the longest waiting first."""

    id: str
    uid: int
    limit: int
    after: str | None = None
    names: list[str] | None = None
    groups: tuple[int, ...] = ()


class News(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """(id, uid, a stream with news) of subscriptions whose home is on the core that is told. The answer: those that are over."""

    wakes: list[tuple[str, int, str]]


class ListQuestion(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Subscriptions whose home is one of the groups, by id: those after `after` that begin with `prefix`. The answer: their shapes."""

    prefix: str
    after: str
    limit: int
    groups: tuple[int, ...] = ()


Over = list[tuple[str, int]]
Links = list[LinkInfo]
Shapes = list[dict[str, Any]]


def refuse(status: int, code: str, message: str = "", **more: Any) -> OperationResult:
    """The one shape of a subscription's errors."""
    error: dict[str, Any] = {"code": code, **({"message": message} if message else {}), **more}
    return OperationResult(status, {"error": error})
