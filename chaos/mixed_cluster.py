"""A cluster of nodes of two releases, and what a rolling upgrade does with any of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from chaos.clients import Clients, Later
from chaos.disks import Folder
from chaos.network import Loopback
from chaos.nodes import FIRST, Cluster, Node
from chaos.proxy import Address, Network, Pair, Wires
from chaos.releases import Release, Said

WELL_SECONDS = 90.0
REFUSED_SECONDS = 30.0
SHOWN = 40


class Options(msgspec.Struct, frozen=True):
    """Settings of an upgrade run. `kill`: nodes end by SIGKILL, else by SIGTERM. `hold`: seconds
    with nodes of the old release alone; other waits in proportion. `s3`: a real S3 server is
    the object store, else a folder. `parts`: additional steps, of PARTS."""

    kill: bool
    hold: float
    seed: int
    s3: bool
    parts: frozenset[str]
    revision: str = ""


class Direct(Wires):
    """No proxies: nodes reach each other where they are."""

    async def listen(self, node: int, at: Address, to: Address, network: Network) -> None:
        self.doors[node] = to

    def carried(self) -> set[Pair]:
        return {(one, other) for one in self.doors for other in self.doors}


class Stuck(Exception):
    """Raised when an expected state is not reached."""


class MixedCluster:
    """Nodes of an old and a new release under clients. `wrong`: the violations."""

    def __init__(  # noqa: PLR0913
        self, old: Release, new: Release, folder: Path, name: str, options: Options, *, kafka: bool
    ) -> None:
        self.old, self.new, self.folder, self.options = old, new, folder, options
        self.wrong: list[str] = []
        self.began = time.monotonic()
        self.cluster = Cluster(
            folder, Loopback(FIRST, name), Direct(options.seed), Folder, kafka=kafka
        )
        self.clients: Clients

    async def change(self, number: int, release: Release) -> None:
        """Change the release of a node as docs/cluster-howto.md#upgrade says, or by SIGKILL."""
        node = self.cluster.nodes[number]
        await self.end(node)
        node.source = release.source
        node.start()
        await self.well(f"node {number} with the {release.name} release")
        await self.level(self.expected())

    async def go_back(self, number: int) -> None:
        """Downgrade a node with its data if the old release can read them. Otherwise it must
        report that and change nothing; then it starts on an empty folder."""
        node = self.cluster.nodes[number]
        try:
            await self.change(number, self.old)
            return
        except Stuck:
            if node.is_alive or "unknown to this release" not in node.said():
                raise
        self.say(
            "  it cannot read the data: "
            + " | ".join(line for line in node.said().splitlines() if line.startswith("polynya:"))[
                :600
            ]
        )
        node.source = self.new.source
        node.start()
        await self.well(f"node {number} with the new release, as it was")
        await self.end(node)
        node.wipe()
        node.source = self.old.source
        node.start()
        await self.well(f"node {number} with the old release on an empty folder")

    async def end(self, node: Node) -> None:
        if self.options.kill:
            await node.kill()
        elif code := await node.stop():
            self.note(f"node {node.number} ends with {code} after SIGTERM:\n{node.said()[-2000:]}")

    def pairs(self) -> list[tuple[Release, int]]:
        """Pair commands of one release with a node of the other."""
        by = {number: self.cluster.nodes[number].source for number in FIRST}
        old, new = (
            next((number for number in FIRST if by[number] == each.source), 0)
            for each in (self.old, self.new)
        )
        return [
            (release, number) for release, number in ((self.old, new), (self.new, old)) if number
        ]

    def expected(self) -> int:
        """Return the level that the groups have to be at now: it never goes down."""
        sources = {node.source for node in self.cluster.nodes.values()}
        return self.new.level if self.old.source not in sources else self.old.level

    async def level(self, level: int) -> None:
        seen: list[object] = []

        async def look() -> bool:
            views = [await self.cluster.view(number) for number in self.cluster.numbers]
            seen[:] = [None if view is None else view.get("level", 1) for view in views]
            return all(each == level for each in seen)

        await self.until_async(
            look, lambda: f"level {level} at all nodes; they say {seen}", REFUSED_SECONDS
        )

    async def retry(self, release: Release, number: int, *words: str) -> None:
        """Repeat a command for a while: codes 1 and 3 are answers while something is under way."""
        deadline = time.monotonic() + WELL_SECONDS
        while True:
            said = await release.run(*words, server=self.cluster.http_of(number))
            if not said.code or ("[NO_ROUTE]" in said.text and not await self.both(*words[:2])):
                return
            if "Traceback" in said.text or time.monotonic() > deadline:
                self.must(said, f"{release.name} '{' '.join(words)}' at node {number}")
                return
            await asyncio.sleep(0.5)

    async def both(self, *words: str) -> bool:
        """Report whether both releases know a command. Else a node of one refuses what the other's
        command asks for."""
        return await self.old.knows(*words) and await self.new.knows(*words)

    def must(self, said: Said, what: str) -> None:
        if said.code or "Traceback" in said.text:
            self.note(f"{what} ends with {said.code}: {said.text[-1500:]}")

    async def well(self, what: str) -> None:
        """Wait until every node says so. Raises Stuck."""
        unwell = [""]

        async def look() -> bool:
            for node in self.cluster.nodes.values():
                if not node.is_alive:
                    assert node.process is not None
                    raise Stuck(
                        f"{what}: node {node.number} ended with {node.process.returncode}:\n"
                        f"{node.said()[-3000:]}"
                    )
            unwell[0] = await self.cluster.unwell()
            return not unwell[0]

        began = time.monotonic()
        await self.until_async(look, lambda: f"{what} to be well: {unwell[0]}", WELL_SECONDS)
        self.say(f"  {what}: well after {time.monotonic() - began:.1f} s")

    async def until(self, look: Callable[[], bool], what: str, seconds: float) -> None:
        async def looked() -> bool:
            return look()

        await self.until_async(looked, lambda: what, seconds)

    async def until_async(
        self, look: Callable[[], Awaitable[bool]], what: Callable[[], str], seconds: float
    ) -> None:
        deadline = time.monotonic() + seconds
        while not await look():
            if time.monotonic() > deadline:
                raise Stuck(f"waited {seconds:.0f} s in vain for {what()}")
            await asyncio.sleep(0.1)

    async def whole(self, number: int, stream: str) -> list[str]:
        """Read by a node, which may say for a while that it cannot: this machine's disk stands
        still for seconds at times. Raises Lost, Unsent, Wrong."""
        deadline = time.monotonic() + WELL_SECONDS
        while True:
            try:
                return await self.clients.read_all(number, stream)
            except Later:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.5)

    def note(self, wrong: str) -> None:
        self.wrong.append(wrong)
        if len(self.wrong) <= SHOWN:
            self.say(f"WRONG: {wrong}")

    def say(self, text: str) -> None:
        print(f"  {time.monotonic() - self.began:6.1f} s  {text}", flush=True)
