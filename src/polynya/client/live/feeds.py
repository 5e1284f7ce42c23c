"""Iterators over the values that an `Operation` yields, blocking or with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from polynya.client.aio.driver import AsyncDriver
from polynya.client.blocking.generated.driver import Driver
from polynya.client.clock import effect_result
from polynya.client.errors import ClientError
from polynya.client.messages import Deliver, EffectResult, Operation

if TYPE_CHECKING:
    from polynya.client.aio.wire import AsyncWire
    from polynya.client.blocking.generated.wire import Wire


class Feed(Iterator[Any]):
    """Iterate over the values that an operation yields. After an error every later call raises the
    error again instead of ending the iteration."""

    def __init__(self, wire: Wire, operation: Operation[None]) -> None:
        self._line = Driver(wire)
        self._operation = operation
        self._began = False
        self._broken: ClientError | None = None

    def __next__(self) -> Any:
        if self._broken is not None:
            raise self._broken
        try:
            effect = self._operation.send(effect_result()) if self._began else next(self._operation)
            self._began = True
            while not isinstance(effect, Deliver):
                effect = self._operation.send(self._line.do(effect))
            return effect.value
        except BaseException as error:
            self._broken = _break(error)
            self.close()
            raise

    def close(self) -> None:
        self._operation.close()
        self._line.close()


class AsyncFeed(AsyncIterator[Any]):
    """Iterate over the values that an operation yields.

    Cancelling a caller loses nothing: the pending effect continues, and the next call awaits it.
    After an error every later call raises the error again instead of ending the iteration."""

    def __init__(self, wire: AsyncWire, operation: Operation[None]) -> None:
        self._line = AsyncDriver(wire)
        self._operation = operation
        self._began = False
        self._doing: asyncio.Task[EffectResult] | None = None  # the pending effect
        self._called = False
        self._broken: ClientError | None = None

    async def __anext__(self) -> Any:
        if self._called:
            raise RuntimeError("another task is already waiting for the next item")
        if self._broken is not None:
            raise self._broken
        self._called = True
        try:
            while (given := self._on()) is None:
                assert self._doing is not None
                await _ended(self._doing)
            return given.value
        except asyncio.CancelledError:
            raise
        except StopIteration:
            await self.close()
            raise StopAsyncIteration from None
        except BaseException as error:
            self._broken = _break(error)
            await self.close()
            raise
        finally:
            self._called = False

    def _on(self) -> Deliver | None:
        """Advance the operation to its next value; return None while an effect is pending."""
        if self._doing is None:
            effect = self._operation.send(effect_result()) if self._began else next(self._operation)
            self._began = True
        elif self._doing.done():
            done, self._doing = self._doing, None
            effect = self._operation.send(done.result())
        else:
            return None
        if isinstance(effect, Deliver):
            return effect
        self._doing = asyncio.get_running_loop().create_task(self._line.do(effect))
        self._doing.add_done_callback(_look)
        return None

    async def close(self) -> None:
        self._operation.close()
        doing, self._doing = self._doing, None
        try:
            if doing is not None:
                doing.cancel()
                await _ended(doing)
        finally:
            await self._line.close()


async def _ended(doing: asyncio.Task[EffectResult]) -> None:
    """Wait until the task ends, without raising its error; the waiter may be cancelled.
    (`asyncio.wait` costs three times as much.)"""
    ended = asyncio.get_running_loop().create_future()

    def end(_: asyncio.Task[EffectResult]) -> None:
        if not ended.done():
            ended.set_result(None)

    doing.add_done_callback(end)
    try:
        await ended
    finally:
        doing.remove_done_callback(end)


def _look(done: asyncio.Task[EffectResult]) -> None:
    """Mark the error as retrieved: the next call raises it, if there is one."""
    if not done.cancelled():
        done.exception()


def _break(error: BaseException) -> ClientError | None:
    """Return the error that later calls raise; None after the normal end."""
    if isinstance(error, StopIteration):
        return None
    if isinstance(error, ClientError):
        return error
    return ClientError(
        f"interrupted by {type(error).__name__}: create a new one; a reader resumes at its `offset`"
    )
