"""Delivery of callback outcomes to futures."""

from __future__ import annotations

from typing import Protocol, TypeVar

Outcome = TypeVar("Outcome", contravariant=True)  # noqa: PLC0105  # one word


class Awaited(Protocol[Outcome]):
    """A future of asyncio, or one like it: pure packages import this module too."""

    def done(self) -> bool: ...
    def set_result(self, result: Outcome, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


def settle(future: Awaited[Outcome], outcome: Outcome | BaseException) -> None:
    """Set the future's result or exception; do nothing if it is done or cancelled."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
