"""The driver of `Operation` generators: it carries out their effects in order, with asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from polynya.client import messages
from polynya.client.clock import effect_result

if TYPE_CHECKING:
    from polynya.client.aio.wire import AsyncOpened, AsyncWire

Result = TypeVar("Result")


class AsyncDriver:
    """Carries out the effects of one operation. At most one response is open."""

    def __init__(self, wire: AsyncWire) -> None:
        self._wire = wire
        self._opened: AsyncOpened | None = None

    async def do(self, effect: messages.Effect) -> messages.EffectResult:
        if isinstance(effect, messages.Pause):
            await self.close()
            await asyncio.sleep(effect.seconds)
            return effect_result()
        if isinstance(effect, messages.ReadMore):
            assert self._opened is not None
            return effect_result(await self._opened.more())
        await self.close()
        if isinstance(effect, messages.Open):
            answer, self._opened = await self._wire.open(effect.request)
            return effect_result(answer)
        assert isinstance(effect, messages.Send)
        return effect_result(await self._wire.send(effect.request))

    async def close(self) -> None:
        if self._opened is not None:
            opened, self._opened = self._opened, None
            await opened.close()

    async def run(self, operation: messages.Operation[Result]) -> Result:
        """Run an operation that yields no values, and return its result."""
        try:
            effect = next(operation)
            while True:
                effect = operation.send(await self.do(effect))
        except StopIteration as stop:
            result: Result = stop.value
            return result
        finally:
            operation.close()
            await self.close()
