"""Episodes of a simulated cluster of more nodes than replicas, whose groups move, and whose nodes
come and go, while all else goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random

from sim.chaos import MISHAPS, Episode
from sim.cluster import GROUPS, Node, World
from sim.knobs import Knobs

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import LiveEvent, StreamInfo

NODES_MAX = 8


class LiveReader:
    """A live reader: its data has no gap from its start on."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.end = -1
        self.over = False

    def live(self, event: LiveEvent) -> None:
        if event.cut or event.gone:
            self.over = True
            return
        assert not self.over, "after its end a live reader hears nothing"
        self.pieces.append((event.begin_byte, bytes(event.payload)))
        if event.byte <= self.end:
            return  # what was attached to was older
        assert self.end < 0 or event.begin_byte == self.end, "a live reader has missed something"
        self.end = event.byte


class Moves(Episode):
    """Five nodes at first, and three replicas of each group."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        self.world = World(seed, count=5, replicas=3)
        self.choices: tuple[Callable[[Episode], None], ...] = self._edged(
            (*(each for each in MISHAPS if each is not Episode.wipe), *MOVES)
        )
        self.pieces: dict[str, list[tuple[int, bytes]]] = {name: [] for name in self.streams}
        self.moved = 0

    def summary(self) -> str:
        return f"{super().summary()}, {self.moved} moves begun, {len(self.world.nodes)} nodes"

    def clients(self) -> list[asyncio.Future[None]]:
        more = [self._control(number) for number in range(2)] + [
            self._follow(number) for number in range(2)
        ]
        return [*super().clients(), *map(asyncio.ensure_future, more)]

    async def settle(self) -> None:
        """Wait until all that was to move has moved."""
        self._bury()
        await self.world.wait_placed()

    def finish(self, name: str, content: bytes) -> None:
        super().finish(name, content)
        for begin, payload in self.pieces[name]:
            assert content[begin : begin + len(payload)] == payload, (
                f"{name}: a live reader heard what is not there"
            )

    # --- the leader of the meta group, also a deposed one

    async def _control(self, number: int) -> None:
        random = Random(f"controller {self.seed} {number}")
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / 0.15))
            alive = self.world.alive()
            if alive:
                node, life = random.choice(alive), 0
                life = node.life
                with suppress(Unavailable, OutcomeUnknown, TimeoutError):
                    async with asyncio.timeout(5):
                        await self.world.steer(
                            random.randrange(GROUPS + 1),
                            node,
                            lambda node=node, life=life: node.life == life and node.alive,
                        )
                self._bury()

    def _bury(self) -> None:
        """Remove each node that is lost for good, and has nothing left."""
        world = self.world
        for number in world.map.members:
            if world.nodes[number].gone and not any(
                number in world.map.placed_on(group) for group in range(GROUPS + 1)
            ):
                world.redraw(members=tuple(each for each in world.map.members if each != number))

    async def _follow(self, number: int) -> None:
        random = Random(f"follower {self.seed} {number}")
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / 0.2))
            alive = self.world.alive()
            if not alive:
                continue
            node, name = random.choice(alive), random.choice(self.streams)
            await self._listen(node, name, random.expovariate(1 / 2))

    async def _listen(self, node: Node, name: str, seconds: float) -> None:
        ear, life = LiveReader(), node.life
        try:
            async with asyncio.timeout(6):
                info = await node.process.drive(node.engine.service.open(name).attach(ear))
        except (Unavailable, TimeoutError):
            return
        if node.life != life or not node.alive:
            return
        assert isinstance(info, StreamInfo), f"{name} is not there on node {node.number}"
        deadline = asyncio.get_running_loop().time() + seconds
        while (
            not ear.over
            and node.life == life
            and node.alive
            and not self.over
            and asyncio.get_running_loop().time() < deadline
        ):
            await asyncio.sleep(0.05)
        self.pieces[name] += ear.pieces
        if node.life == life and node.alive:
            node.engine.service.detach(info.uid, ear)

    def able(self) -> list[int]:
        """List the nodes that may have a vote."""
        return [number for number in self.world.map.members if not self.world.nodes[number].gone]

    # --- mishaps

    def aim(self) -> None:
        """Give a group other voters: one more, one less, another, or all others."""
        world = self.world
        group = self.random.randrange(GROUPS + 1)
        able = self.able()
        goal = self.random.sample(able, min(len(able), self.random.choice((1, 2, 3, 3, 3, 5))))
        self.note(f"group {group} goes from {world.map.goals[group]} to {sorted(goal)}")
        self.moved += 1
        world.aim(group, goal)

    def come(self) -> None:
        if len(self.world.nodes) < NODES_MAX:
            self.note(f"node {self.world.add_node().number} is new")

    def lose(self) -> None:
        """Lose a disk, and let another node take the place of its own."""
        world = self.world
        map_ = world.map
        whole = all(
            map_.goals[group] == map_.voters[group] and len(map_.goals[group]) > 2
            for group in range(GROUPS + 1)
        )
        if (
            not whole
            or any(world.nodes[number].gone for number in map_.members)
            or len(world.nodes) >= NODES_MAX
        ):
            return
        node = self.random.choice([world.nodes[number] for number in self.able()])
        if node.alive:
            node.kill(power=0.0)
        node.gone = True
        successor = world.add_node()
        self.note(f"node {node.number} is lost for good, node {successor.number} is its heir")
        for group in range(GROUPS + 1):
            if node.number in world.map.goals[group]:
                world.move(group, node, successor)


MOVES = (Moves.aim, Moves.aim, Moves.aim, Moves.aim, Moves.aim, Moves.come, Moves.lose)


def run_moves(seed: int, mishaps: int = 30, knobs: Knobs | None = None) -> str:
    """Play an episode; the same seed gives the same checksum. Raises AssertionError with the
    violated invariant."""
    return Moves(seed, mishaps, knobs).play()
