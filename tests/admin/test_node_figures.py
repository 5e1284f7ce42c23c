"""The exemplars of a node of two cores in one loop, and of one whose other core is down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from polynya.admin.node_figures import NodeFigures
from polynya.base.histogram import Histogram
from polynya.observability.metrics import Registry
from polynya.transport import Transport

NAME = "polynya_http_append_seconds"


def registry_with(seconds: float, trace: str) -> Registry:
    registry, histogram = Registry(), Histogram()
    registry.add_histogram(NAME, histogram)
    histogram.remember(seconds, "trace_id", trace)
    return registry


@asynccontextmanager
async def two_cores(directory: Path) -> AsyncIterator[tuple[list[NodeFigures], list[Transport]]]:
    transports = [Transport(core, 2, str(directory), start_id="s") for core in (0, 1)]
    registries = registry_with(0.2, "zero"), registry_with(3.0, "one")
    cores = [
        NodeFigures(registry, transport, lambda core=core: {"core": core})
        for core, (registry, transport) in enumerate(zip(registries, transports, strict=True))
    ]
    for transport in transports:
        await transport.start()
    for transport in transports:
        await transport.wait_connected()
    try:
        yield cores, transports
    finally:
        for transport in transports:
            await transport.close()


def test_any_core_tells_the_exemplars_of_all(tmp_path: Path) -> None:
    async def story() -> None:
        async with two_cores(tmp_path) as (cores, transports):
            for core in cores:
                assert await core.exemplars() == {
                    f'{NAME}_bucket{{le="0.25"}}': ("trace_id", "zero", 0.2),
                    f'{NAME}_bucket{{le="5.0"}}': ("trace_id", "one", 3.0),
                }
                state = await core.state()
                assert state["cores"] == [{"core": 0}, {"core": 1}] and not state["missing"]
            await transports[1].close()
            state = await cores[0].state()
            assert (state["cores"], state["missing"]) == ([{"core": 0}], [1])
            assert {each[1] for each in (await cores[0].exemplars()).values()} == {"zero"}

    asyncio.run(story())


def test_a_core_alone_has_its_own() -> None:
    async def story() -> None:
        alone = NodeFigures(registry_with(0.2, "zero"), None, dict)
        assert {each[1] for each in (await alone.exemplars()).values()} == {"zero"}

    asyncio.run(story())
