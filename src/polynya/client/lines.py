"""Who carries out talks: their effects done in order, blocking and asynchronously."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from polynya.client.hearing import heard
from polynya.client.messages import Effect, Give, Heard, More, Open, Pause, Send, Talk

if TYPE_CHECKING:
    from polynya.client.wires import AsyncOpened, AsyncWire, Opened, Wire

Result = TypeVar("Result")


class Line:
    """Carries out one talk: at most one answer is open."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._opened: Opened | None = None

    def do(self, effect: Effect) -> Heard:
        if isinstance(effect, Pause):
            self.close()
            time.sleep(effect.seconds)
            return heard()
        if isinstance(effect, More):
            assert self._opened is not None
            return heard(self._opened.more())
        self.close()
        if isinstance(effect, Open):
            answer, self._opened = self._wire.open(effect.request)
            return heard(answer)
        assert isinstance(effect, Send)
        return heard(self._wire.send(effect.request))

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def run(self, talk: Talk[Result]) -> Result:
        """A talk that gives nothing but its result."""
        try:
            effect = next(talk)
            while True:
                effect = talk.send(self.do(effect))
        except StopIteration as stop:
            result: Result = stop.value
            return result
        finally:
            talk.close()
            self.close()


class Feed(Iterator[Any]):
    """What a talk gives, one by one."""

    def __init__(self, wire: Wire, talk: Talk[None]) -> None:
        self._line = Line(wire)
        self._talk = talk
        self._began = False

    def __next__(self) -> Any:
        try:
            effect = self._talk.send(heard()) if self._began else next(self._talk)
            self._began = True
            while not isinstance(effect, Give):
                effect = self._talk.send(self._line.do(effect))
            return effect.value
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._talk.close()
        self._line.close()


class AsyncLine:
    """Carries out one talk: at most one answer is open."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire
        self._opened: AsyncOpened | None = None

    async def do(self, effect: Effect) -> Heard:
        if isinstance(effect, Pause):
            await self.close()
            await asyncio.sleep(effect.seconds)
            return heard()
        if isinstance(effect, More):
            assert self._opened is not None
            return heard(await self._opened.more())
        await self.close()
        if isinstance(effect, Open):
            answer, self._opened = await self._wire.open(effect.request)
            return heard(answer)
        assert isinstance(effect, Send)
        return heard(await self._wire.send(effect.request))

    async def close(self) -> None:
        if self._opened is not None:
            opened, self._opened = self._opened, None
            await opened.close()

    async def run(self, talk: Talk[Result]) -> Result:
        """A talk that gives nothing but its result."""
        try:
            effect = next(talk)
            while True:
                effect = talk.send(await self.do(effect))
        except StopIteration as stop:
            result: Result = stop.value
            return result
        finally:
            talk.close()
            await self.close()


class AsyncFeed(AsyncIterator[Any]):
    """What a talk gives, one by one."""

    def __init__(self, wire: AsyncWire, talk: Talk[None]) -> None:
        self._line = AsyncLine(wire)
        self._talk = talk
        self._began = False

    async def __anext__(self) -> Any:
        try:
            effect = self._talk.send(heard()) if self._began else next(self._talk)
            self._began = True
            while not isinstance(effect, Give):
                effect = self._talk.send(await self._line.do(effect))
            return effect.value
        except StopIteration:
            await self.close()
            raise StopAsyncIteration from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._talk.close()
        await self._line.close()
