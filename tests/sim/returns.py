"""Episodes in which groups move, and nodes that lose their disks come back under their numbers:
each group has left some that it began with, which is all that such a node knows of it."""

from __future__ import annotations

from sim.cluster import GROUPS, Node
from sim.knobs import Knobs
from sim.moves import Moves


class Returns(Moves):
    """Disk losses, one at a time, of a node that all groups began with: another one learns its
    loss from the map and waits for a replacement."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        kept = (
            Returns.aim if each is Moves.aim else each
            for each in self.choices
            if each is not Moves.lose
        )
        self.choices = (*kept, *3 * (Returns.lose_disk,))  # type: ignore[assignment]
        self.lost: list[int] = []

    def summary(self) -> str:
        return f"{super().summary()}, {len(self.lost)} disks lost"

    async def settle(self) -> None:
        await super().settle()
        await self.world.wait(lambda: all(node.remembers for node in self.world.alive()), 60)

    def _may_lose(self, node: Node) -> bool:
        placed = [
            group for group in range(GROUPS + 1) if node.number in self.world.map.placed_on(group)
        ]
        return all(node.number in self.world.placed[group] for group in placed)

    def lose_disk(self) -> None:
        """Lose a disk, if the last node that lost one has all again, and no group counts on fewer
        than three."""
        world = self.world
        last = world.nodes[self.lost[-1]] if self.lost else None
        few = any(
            min(len(world.map.goals[group]), len(world.map.voters[group])) < 3
            for group in range(GROUPS + 1)
        )
        able = [node for node in world.nodes.values() if self._may_lose(node)]
        if (
            few
            or not able
            or not all(node.remembers for node in world.alive())
            or (last is not None and not last.remembers)
        ):
            return
        node = self.draw.choice(able)
        if node.alive:
            node.kill(power=0.0)
        self.note(f"node {node.number} loses its disk")
        self.lost.append(node.number)
        node.lose_disk()
        node.start()

    def aim(self) -> None:
        """Shrink to three voters at least: of two no majority is left without the lost disk."""
        able = self.able()
        group = self.random.randrange(GROUPS + 1)
        goal = self.random.sample(able, min(len(able), self.random.choice((3, 3, 3, 5))))
        self.note(f"group {group} goes from {self.world.map.goals[group]} to {sorted(goal)}")
        self.moved += 1
        self.world.aim(group, goal)


def run_returns(seed: int, mishaps: int = 30, knobs: Knobs | None = None) -> str:
    """Play an episode; the same seed gives the same checksum. Raises AssertionError with the
    violated invariant."""
    return Returns(seed, mishaps, knobs).play()
