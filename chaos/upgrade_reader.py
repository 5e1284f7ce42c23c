"""The read replica of a rolling upgrade: it is upgraded before the others, downgraded, and upgraded
after them, so that each release follows the log of the other."""

from __future__ import annotations

from chaos.mixed_cluster import WELL_SECONDS, MixedCluster
from chaos.releases import Release

READS = 60  # until they are taken to be looked at


class UpgradeReader:
    """The read replica of a cluster. `number`: that of its node; 0: there is none."""

    def __init__(self, nodes: MixedCluster) -> None:
        self.number = 0
        self._nodes = nodes

    async def come(self) -> None:
        """Add a read replica where the old release supports them."""
        if (
            "--reader" in (await self._nodes.old.run("cluster", "add", "--help")).text
            and self._nodes.old.level > 1
        ):
            await self._add(self._nodes.old)
            await self._nodes.change(self.number, self._nodes.new)
            await self._answers()
        else:
            self._nodes.say("  the old release cannot")

    async def _add(self, release: Release) -> None:
        node = await self._nodes.cluster.join(reader=True)
        self.number, node.source, number = node.number, release.source, str(node.number)
        addresses = (
            "--peer",
            self._nodes.cluster.peer_of(node.number),
            "--http",
            self._nodes.cluster.http_of(node.number),
        )
        await self._nodes.retry(
            release, 1, "cluster", "add", "--reader", "--id", number, *addresses
        )
        node.start()
        await self._nodes.well(f"node {number}, a read replica of the {release.name} release")
        await self._answers()

    async def _answers(self) -> None:
        """Check the read replica: the clients use it as any node, which the checker judges. It has
        no vote, and its data equals the others'."""
        history, reader = self._nodes.clients.history, self.number
        before = len(history.reads)
        await self._nodes.until(
            lambda: sum(read.node == reader for read in history.reads[before:]) >= READS,
            f"{READS} reads by node {reader}",
            WELL_SECONDS,
        )
        view = await self._nodes.cluster.view(1)
        if view is None or any(
            reader in group["voters"] or reader not in map(int, group["behind"])
            for group in view["groups"]
        ):
            self._nodes.note(f"node {reader} is not a read replica of all groups: {view}")
        for stream in self._nodes.clients.streams:
            local = await self._nodes.clients.read_all(reader, stream, local=True)
            whole = await self._nodes.whole(1, stream)
            again = await self._nodes.whole(reader, stream)
            if whole[: len(local)] != local or again[: len(whole)] != whole:
                self._nodes.note(
                    f"{stream}: node {reader} has {len(local)} records by itself, node 1 "
                    f"{len(whole)}, and node {reader} then {len(again)}"
                )

    async def go_back(self) -> None:
        if self.number:
            await self._nodes.go_back(self.number)
            await self._answers()

    async def change_last(self) -> None:
        """Change the reader last, when all voters are new: what follows the log needs to know its
        level as well."""
        if not self.number:
            return
        await self._answers()
        await self._nodes.change(self.number, self._nodes.new)
        await self._answers()

    async def vote(self) -> None:
        """Add the first read replica at the new level, then promote it to a voter that leads a
        group."""
        release = (
            self._nodes.old
            if self._nodes.cluster.nodes[1].source == self._nodes.old.source
            else self._nodes.new
        )
        if not self.number and release is self._nodes.new:
            await self._add(self._nodes.new)
        if not self.number:
            return
        number = str(self.number)
        await self._nodes.retry(release, 1, "cluster", "promote", number)
        await self._nodes.retry(
            release, 1, "cluster", "move", "2", "--from", "1", "--to", number, "--wait"
        )
        await self._nodes.retry(release, 1, "cluster", "transfer", "2", "--to", number, "--wait")
        await self._nodes.retry(release, 1, "cluster", "rebalance", "--wait")
        self._nodes.cluster.readers.discard(self.number)
        await self._nodes.well(f"node {number} with a vote")
