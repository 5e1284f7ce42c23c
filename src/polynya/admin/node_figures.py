"""Figures of the whole node beside the samples of metrics: each core has its own, and the core that
answers gathers those of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from polynya.base.errors import PolynyaError
from polynya.observability.build import described
from polynya.observability.histograms import Exemplars
from polynya.observability.metrics import Registry
from polynya.transport import Reply, Transport

KIND_EXEMPLARS = 1016  # message kinds between cores
KIND_STATE = 1017
GATHER_SECONDS = 2.0  # a core that takes longer is left out


class NodeFigures:
    """The figures of one core and, on request, of the others."""

    def __init__(
        self, registry: Registry, transport: Transport | None, state: Callable[[], dict[str, Any]]
    ) -> None:
        """Create the figures. `state` returns that of this core for `/debug/state`."""
        self._registry = registry
        self._transport = transport
        self._state = state
        if transport is not None:
            transport.on(KIND_EXEMPLARS, _answering(registry.exemplars))
            transport.on(KIND_STATE, _answering(state))

    async def exemplars(self) -> Exemplars:
        """Return the exemplars of all cores, one for each bucket."""
        found: Exemplars = {}
        for body in (await self._ask(KIND_EXEMPLARS)).values():
            found |= msgspec.msgpack.decode(body, type=Exemplars)
        return found | self._registry.exemplars()

    async def state(self) -> dict[str, Any]:
        """Return the state of the node, core by core. `missing` lists the cores that did not
        answer."""
        answers = await self._ask(KIND_STATE)
        cores = [self._state(), *map(msgspec.msgpack.decode, answers.values())]
        others = () if self._transport is None else self._transport.others
        return {
            "version": described(),
            "cores": sorted(cores, key=lambda core: int(core["core"])),
            "missing": sorted(set(others) - set(answers)),
        }

    async def _ask(self, kind: int) -> dict[int, bytes]:
        """Return the answers of the other cores that answer."""
        transport = self._transport
        if transport is None:
            return {}
        others = tuple(transport.others)

        async def ask(core: int) -> bytes | None:
            try:
                async with asyncio.timeout(GATHER_SECONDS):
                    return await transport.call(core, kind, b"")
            except (PolynyaError, TimeoutError):
                return None

        answers = await asyncio.gather(*map(ask, others))
        return {core: body for core, body in zip(others, answers, strict=True) if body is not None}


def _answering(read: Callable[[], Any]) -> Callable[[bytes, Reply, int], None]:
    def answer(body: bytes, reply: Reply, core: int) -> None:
        reply(msgspec.msgpack.encode(read()))

    return answer
