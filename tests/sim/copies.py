"""Episodes in which an older image of a node's disk is put back, as of a virtual machine: the
others keep it out, and it begins without its data."""

from __future__ import annotations

import asyncio

from sim.chaos import MISHAPS, Episode
from sim.handshakes import Image
from sim.knobs import Knobs
from sim.parts import held_by

# of an image, at least: what others remember in a new life of theirs may be older than what they
# heard
AGE_SECONDS = 8.0
KNOWN_SECONDS = 60.0
BEHIND_MAX = 3  # entries that may be on their way


class Copies(Episode):
    """An episode that restores disk images one at a time, after the previous node has recovered
    everything."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        kept = tuple(each for each in MISHAPS if each is not Episode.wipe)
        self.choices = self._edged((*kept, *3 * (Copies.take_image,), *3 * (Copies.put_back,)))
        self.images: dict[int, tuple[float, Image]] = {}
        self.put = self.due = 0

    def summary(self) -> str:
        return (
            f"{super().summary()}, {self.put} older images put back, {self.world.noticed} noticed"
        )

    async def _mishaps(self) -> None:
        for _ in range(self.mishaps):
            await asyncio.sleep(self.random.expovariate(1 / 0.7))
            self.draw.choice(self.choices)(self)
            if self.due:
                await self._put_back(self.due)
            self.world.check()
        self.over = True

    async def settle(self) -> None:
        await self.world.wait(lambda: all(node.remembers for node in self.world.alive()), 60)

    def take_image(self) -> None:
        """Take an image of a node's disk; an older one of that node is kept."""
        number = self.draw.choice(self.world.voters)
        if number not in self.images:
            self.note(f"an image of the disk of node {number} is taken")
            self.images[number] = (
                asyncio.get_running_loop().time(),
                Image(self.world.nodes[number].disk),
            )

    def put_back(self) -> None:
        now = asyncio.get_running_loop().time()
        able = [number for number, (taken, _) in self.images.items() if now - taken > AGE_SECONDS]
        self.due = self.draw.choice(able) if able else 0

    async def _put_back(self, number: int) -> None:
        """Restore an image once all nodes are up and no entry is on one disk alone. Of two
        simultaneous losses the contents could not be recovered."""
        world, node = self.world, self.world.nodes[number]
        world.heal()
        for each in world.nodes.values():
            each.disk.capacity = 1 << 40
            if not each.alive:
                each.start()
        self.due = 0
        for _ in range(int(10 * KNOWN_SECONDS)):
            if all(each.remembers for each in world.nodes.values()) and not self._behind():
                break
            await asyncio.sleep(0.1)
        else:
            return  # where ways hold little somebody may be behind for long: not now, then
        self.note(f"an older image is put back to node {number}")
        node.kill(power=0.0)
        world.put_back(node, self.images.pop(number)[1])
        self.put += 1
        node.start()
        others = [other for other in world.nodes.values() if other is not node]

        def known() -> bool:
            """Report whether the others have found out, or it had lost nothing that they know
            of."""
            return number not in world.older or all(
                (number, node.life) in other.greeter.met for other in others
            )

        await world.wait(known, KNOWN_SECONDS)

    def _behind(self) -> bool:
        """Report whether some committed entry may be on a single node only."""
        rafts = [
            member.raft for node in self.world.alive() for member in node.core.members.values()
        ]
        newest = {
            raft.group: max(each.commit for each in rafts if each.group == raft.group)
            for raft in rafts
        }
        return any(held_by(raft) + BEHIND_MAX < newest[raft.group] for raft in rafts)


def run_copies(seed: int, mishaps: int = 40, knobs: Knobs | None = None) -> str:
    """Play an episode; the same seed gives the same checksum. Raises AssertionError with the
    violated invariant."""
    return Copies(seed, mishaps, knobs).play()
