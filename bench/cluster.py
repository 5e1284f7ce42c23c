"""What a replicated append costs below HTTP: three cores in one process, messages as bytes, real
journals. `python -m bench.cluster [--appends N]`."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from pathlib import Path

import uvloop

from bench.core import GROUPS, NAMES, append_of, closed_loop
from polynya.base.levels import LEVEL
from polynya.engine.log_clock import LogClock, once_per_pass
from polynya.engine.membership import ClusterSettings, Membership
from polynya.engine.storage import open_storage
from polynya.service.assembly import CoreRuntime, Shape
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.settings.commands import SetLevel
from polynya.stream.parts import Encoding
from polynya.stream.replies import Done

VOTERS = (1, 2, 3)


class Wire:
    """From one node to the others, in the next pass of the loop."""

    def __init__(self, engines: dict[int, CoreRuntime]) -> None:
        self._engines = engines
        self._loop = asyncio.get_running_loop()

    def send(self, node: int, messages: list[bytes]) -> None:
        self._loop.call_soon(self._arrive, node, messages)

    send_bulk = send

    def _arrive(self, node: int, messages: list[bytes]) -> None:
        core = self._engines[node].replicated
        assert core is not None
        core.received(messages)


async def start(folder: Path) -> dict[int, CoreRuntime]:
    """Three nodes of one core, elected."""
    engines: dict[int, CoreRuntime] = {}
    for node in VOTERS:
        membership = Membership(node, VOTERS)
        storage = open_storage(
            folder / f"node-{node}", core=0, cores=1, groups=GROUPS, membership=membership
        )
        shape = Shape(core=0, cores=1, groups=GROUPS, history=1, hot_bytes_max=1 << 40)
        now_ms = once_per_pass(LogClock(storage.log_ms).now_ms, asyncio.get_running_loop())
        cluster = ClusterSettings(membership, Wire(engines), GROUPS)
        engines[node] = CoreRuntime(
            storage, shape, now_ms=now_ms, transport=None, fatal=print, cluster=cluster
        )
        engines[node].local.memory.bytes_max = 1 << 40
    while any(
        leader_of(engines, group) is not engines[membership.first_of(group)]
        for group in range(GROUPS + 1)
    ):
        await asyncio.sleep(0.05)  # until each is where it will stay
    for group in range(GROUPS + 1):  # as nodes do that know each other
        leader = leader_of(engines, group)
        assert leader is not None
        await leader.core.call(group, SetLevel(LEVEL))
    return engines


def leader_of(engines: dict[int, CoreRuntime], group: int) -> CoreRuntime | None:
    return next(
        (
            engine
            for engine in engines.values()
            if engine.replicated is not None and engine.replicated.replicas.is_leader(group)
        ),
        None,
    )


async def whole(folder: Path, count: int, in_flight: int) -> None:
    """A closed loop of `in_flight` writers, each append given to its group's leader."""
    engines = await start(folder / str(in_flight))
    leaders = {}
    for name in NAMES:
        leader = leader_of(engines, engines[1].service.group_of(name))
        assert leader is not None
        leaders[name] = leader.service
        await leader.core.call(
            leader.service.group_of(name),
            Create(name, 1, "application/octet-stream", Encoding.BYTES),
        )

    def propose(number: int, done: Done) -> None:
        command = append_of(number, 0)
        leaders[command.name].propose(command.name, command, done)

    turns = sum(engine.core.counters.turns for engine in engines.values())
    elapsed, cpu = await closed_loop(count, in_flight, propose)
    turns = sum(engine.core.counters.turns for engine in engines.values()) - turns
    print(
        f"  {in_flight:4d} in flight        {cpu / count * 1e6:6.2f} us of CPU on three nodes, "
        f"{count / elapsed:8.0f} appends/s, "
        f"{3 * count / turns:6.1f} applied a turn"
    )
    for engine in engines.values():
        await engine.core.drain()
        await engine.stop()
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, help="where the journals go; a temporary folder by default"
    )
    parser.add_argument("--appends", type=int, default=50_000)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        for in_flight in (500, 64, 1):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(
                    whole(
                        folder,
                        options.appends if in_flight > 1 else options.appends // 50,
                        in_flight,
                    )
                )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
