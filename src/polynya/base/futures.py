"""Answers that come by a callback, for those who await them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from asyncio import Future

Outcome = TypeVar("Outcome")


def settle(future: Future[Outcome], outcome: Outcome | BaseException) -> None:
    """The future's result, or its exception; nothing when nobody waits any more."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
