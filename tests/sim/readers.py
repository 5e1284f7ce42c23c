"""Episodes of a simulated cluster with read replicas: far away, slow, lost with their disks,
promoted, while groups move and all else goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from sim.chaos import Episode
from sim.cluster import Node, NotThere
from sim.knobs import Knobs
from sim.moves import Moves

from polynya.base.errors import Unavailable

READERS_MAX = 2
FAR_SECONDS = 0.2  # one way, at most
# between two losses of a disk: a handshake on its way may not come from two journals before
LOSS_SECONDS = 1.0


class Readers(Moves):
    """Five nodes and a read replica at first, and three replicas of each group."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        self.choices = (*self.choices, *READING)
        self.silent: set[int] = set()  # nodes that have only ever read
        self.had: dict[str, list[bytes]] = {name: [] for name in self.streams}
        self.lost: dict[int, float] = {}  # when each read replica last lost its disk

    def summary(self) -> str:
        return f"{super().summary()}, {sum(map(len, self.had.values()))} local reads"

    def clients(self) -> list[asyncio.Future[None]]:
        self._come()
        return [
            *super().clients(),
            *(asyncio.ensure_future(self._read_here(number)) for number in range(2)),
        ]

    def able(self) -> list[int]:
        return [number for number in super().able() if number not in self.world.map.readers]

    async def settle(self) -> None:
        await super().settle()
        for (group, term), leader in self.world.leaders.items():
            assert leader not in self.silent, (
                f"the read replica {leader} led group {group} in term {term}"
            )

    def finish(self, name: str, content: bytes) -> None:
        super().finish(name, content)
        for found in self.had[name]:
            assert content.startswith(found), f"{name}: a local read saw what is not there"

    def _come(self) -> None:
        node = self.world.add_node(reader=True)
        self.silent.add(node.number)
        self.world.far[node.number] = self.draw.choice((0.0, 0.05, FAR_SECONDS))
        self.note(f"node {node.number} is a new read replica, {self.world.far[node.number]} s away")

    async def _read_here(self, number: int) -> None:
        """Read from read replicas: each page is a prefix of the stream, and later reads never
        return less."""
        random = Random(f"local {self.seed} {number}")
        longest: dict[tuple[int, int, str], int] = {}
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / 0.1))
            readers = [
                node
                for node in self.world.alive()
                if node.number in self.world.map.readers and self._has_all(node)
            ]
            if not readers:
                continue
            node, name = random.choice(readers), random.choice(self.streams)
            life = node.life
            try:
                async with asyncio.timeout(3):
                    content = await node.read(name, local=True)
            except (Unavailable, TimeoutError):
                continue
            except NotThere:
                content = b""  # a life that has heard no leader yet has only what its snapshot has
            if node.life == life and node.alive:
                key = (node.number, life, name)
                if self._has_all(node):
                    assert len(content) >= longest.get(key, 0), (
                        f"{name}: node {node.number} has less than it had"
                    )
                    longest[key] = len(content)
                self.had[name].append(content)

    @staticmethod
    def _has_all(node: Node) -> bool:
        """Report whether the replica serves all groups locally, as far as it knows the map."""
        return all(
            node.core.reads.fit(group)
            and node.number in node.forwarding.directory.locations.map.replicas_of(group)
            for group in (1, 2)
        )

    # --- mishaps

    def read_more(self) -> None:
        if len(self.world.map.readers) < READERS_MAX and len(self.world.nodes) < 9:
            self._come()

    def forget(self) -> None:
        """Lose a read replica's disk and restart it under the same number: no quorum counts on
        it."""
        readers = [self.world.nodes[number] for number in self.world.map.readers]
        now = asyncio.get_running_loop().time()
        if readers:
            node = self.draw.choice(readers)
            if now - self.lost.get(node.number, 0.0) < LOSS_SECONDS:
                return
            self.lost[node.number] = now
            if node.alive:
                node.kill(power=0.0)
            self.note(f"read replica {node.number} loses its disk")
            node.lose_disk()
            node.start()

    def promote(self) -> None:
        """Promote a read replica to a voter; it drops the groups in which it gets no vote."""
        readers = self.world.map.readers
        if readers and self.draw.random() < 0.3:
            number = self.draw.choice(readers)
            self.note(f"read replica {number} is promoted")
            self.silent.discard(number)
            self.world.redraw(readers=tuple(each for each in readers if each != number))


READING: tuple[Callable[[Episode], None], ...] = (
    Readers.read_more,
    Readers.forget,
    Readers.forget,
    Readers.promote,
)  # type: ignore[assignment]


def run_readers(seed: int, mishaps: int = 30, knobs: Knobs | None = None) -> str:
    """Play an episode; the same seed gives the same checksum. Raises AssertionError with the
    violated invariant."""
    return Readers(seed, mishaps, knobs).play()
