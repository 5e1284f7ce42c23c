"""Episodes in which the product's planner moves the groups to their goals, under all other faults.
Operators send requests; nodes are added, removed and lost. A node that learns of its removal
never returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random

from sim.chaos import MISHAPS, Episode
from sim.cluster import GROUPS, Node, World
from sim.knobs import Knobs
from sim.moves import NODES_MAX, Moves
from sim.process import NOBODY

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.cluster.status import ByCore, CoreStatus, observed, replica_of
from polynya.replica import refusals, zones
from polynya.replica.placement_steps import (
    ChangeVoters,
    ClusterObservation,
    ConfirmVoters,
    MarkBalanced,
    RemoveNode,
    SetVoters,
    Step,
    TransferLeadership,
)
from polynya.replica.planner import may_rest, plan
from polynya.stream.command import Command
from polynya.stream.features.placement.cluster_map import META_GROUP, ClusterMap, born
from polynya.stream.features.placement.commands import (
    GroupPlaced,
    NodeAdd,
    NodeAnnounce,
    NodePromote,
    NodeRecord,
    NodeSet,
    NodeState,
    PlaceGroup,
    ReaderAdd,
    SetBalancing,
)
from polynya.stream.machine import Machine
from polynya.stream.replies import Code

ROUNDS_MAX = 3000  # until all that was asked for is there
ZONED = 0.4  # share of the worlds whose nodes have zones, and operators who ask for more


def record(number: int, replaces: int = 0, zone: str = "") -> NodeRecord:
    return NodeRecord(number, f"n{number}:1", f"http://n{number}", zone, replaces=replaces)


class KnownMap:
    """The product's map, as the other parts of the simulation ask for it (`SimMap`)."""

    def __init__(self, now: ClusterMap) -> None:
        self.now = now
        self.epoch, self.members, self.nodes, self.readers = (
            now.epoch,
            now.members,
            now.nodes,
            tuple(now.readers),
        )
        self.voters = {group: each.voters for group, each in now.groups.items()}
        self.goals = {group: each.goal for group, each in now.groups.items()}
        self.placed_on, self.replicas_of, self.readers_of = (
            now.placed_on,
            now.replicas_of,
            now.readers_of,
        )
        self.learners_of, self.first_of = now.learners_of, now.first_of


class PlannedWorld(World):
    """A world whose map follows the rules of the meta group's machine."""

    def __init__(self, seed: int, count: int, replicas: int) -> None:
        super().__init__(seed, count=count, replicas=replicas)
        self.meta = Machine(META_GROUP, GROUPS)
        draw = Random(f"zones {seed}")
        self.zones = draw.choice((("a", "b"), ("a", "b", "c"))) if draw.random() < ZONED else ("",)
        command = born(
            [record(number, zone=self.zone_of(number)) for number in self.born], GROUPS, replicas
        )
        self.placed = {group: each.voters for group, each in enumerate(command.placements)}
        self.write(command)

    @property
    def now(self) -> ClusterMap:
        assert self.meta.meta.map is not None
        return self.meta.meta.map

    def zone_of(self, number: int) -> str:
        """Return the zone of a new node."""
        return self.zones[number % len(self.zones)]

    def write(self, command: Command) -> int:
        """Write a command into the map and return the code of the reply."""
        code = self.meta.apply(command).code
        self.map = KnownMap(self.now)  # type: ignore[assignment]
        for node in self.alive() if hasattr(self, "nodes") else ():
            self.tell(node)
        return code

    def tell(self, node: Node) -> None:
        newest, life = self.now, node.life

        def hear() -> None:
            if not node.alive or node.life != life:
                return
            own = newest.nodes.get(node.number)
            if own is not None and own.state == NodeState.REMOVED:
                node.kill(power=0.0)
                node.gone = True
            else:
                node.process.hand(lambda: node.reconciler.adopt(newest))

        asyncio.get_running_loop().call_later(self.random.expovariate(10), hear, context=NOBODY)

    def come(self, *, replaces: int = 0, balance: bool = False, reader: bool = False) -> Node:
        number = max(self.nodes) + 1
        node = self.nodes[number] = Node(self, number)
        node.start()
        new = record(number, replaces, self.zone_of(number))
        assert self.write(ReaderAdd(new) if reader else NodeAdd(new, balance)) == Code.CREATED
        return node


class Planned(Moves):
    """Three to six nodes at first, and one to five replicas of each group."""

    world: PlannedWorld

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        draw = Random(f"planned {seed}")
        count = draw.choice((3, 4, 5, 6))
        self.world = PlannedWorld(
            seed, count, draw.choice([each for each in (1, 1, 3, 3, 5) if each <= count])
        )
        reads = [Planned.read_along] * 3 if seed % 3 == 2 else []  # in a part of the worlds
        more = MORE_ACTS if len(self.world.zones) > 1 else ()
        self.choices = self._edged(
            (*(each for each in MISHAPS if each is not Episode.wipe), *ACTS, *more, *reads)
        )
        self.removed = 0
        # the epoch at which nothing was left to do: who leads the meta group looks again when the
        # map has changed
        self.rested = 0

    def summary(self) -> str:
        return f"{super().summary()}, {self.removed} removed"

    def look(self, random: Random | None = None) -> ClusterObservation:
        """Return a controller's observation; with `random` possibly a partial one."""
        by_core: ByCore = {}
        for node in self.world.alive():
            if random is None or random.random() > 0.05:
                statuses = node.core.replicas.statuses().items()
                by_core[node.number, 0] = CoreStatus(
                    "", [replica_of(group, status, node.number) for group, status in statuses]
                )
        return observed(by_core)

    async def settle(self) -> None:
        random = Random(f"end {self.seed}")
        for _ in range(ROUNDS_MAX):
            steps = await self._round(random, calm=True)
            if not steps and self._rests() and not self._remaining():
                crowded = zones.crowded(self.world.now)
                assert not crowded, (
                    f"groups {crowded} have too much in one zone, and nothing moves: "
                    f"{self.world.now}"
                )
                return
            await asyncio.sleep(0.1)
        raise AssertionError(
            f"it does not end: {plan(self.world.now, self.look())} {self.world.now}"
        )

    def _rests(self) -> bool:
        seen = self.look().groups
        return all(
            group in seen
            and seen[group].settled
            and seen[group].configuration.voters == each.voters == each.goal
            for group, each in self.world.now.groups.items()
        )

    def _remaining(self) -> list[int]:
        """List the nodes that were removed, and have yet to hear it: they answer nothing then."""
        return [
            node.number
            for node in self.world.alive()
            if self.world.now.nodes[node.number].state == NodeState.REMOVED
        ]

    async def _control(self, number: int) -> None:
        random = Random(f"controller {self.seed} {number}")
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / (0.1, 2.0)[number]))
            if random.random() < 0.03:
                self.rested = 0  # another leads it now
            await self._round(random)

    async def _round(self, random: Random, *, calm: bool = False) -> list[Step]:
        now = self.world.now
        if self.rested == now.epoch:
            return []
        seen = self.look(None if calm else random)
        if not calm:
            await asyncio.sleep(random.expovariate(1 / 0.02))
        steps = plan(now, seen)
        self.rested = now.epoch if not steps and may_rest(now, seen) else 0
        for step in steps:
            if not calm and random.random() < 0.1:
                break  # another leads the meta group now
            with suppress(Unavailable, OutcomeUnknown, TimeoutError):
                async with asyncio.timeout(5):
                    await self._take(step, random)
        return steps

    async def _take(self, step: Step, random: Random) -> None:
        world = self.world
        match step:
            case SetVoters(group, goal, first, epoch):
                world.write(PlaceGroup(group, goal, first, epoch))
            case ConfirmVoters(group, voters, epoch):
                world.write(GroupPlaced(group, voters, epoch))
            case ChangeVoters() | TransferLeadership() if not world.alive():
                pass
            case ChangeVoters(group, _, configuration):
                node = random.choice(world.alive())
                await node.process.drive(node.reconfiguration.change(group, configuration))
            case TransferLeadership(group, _, to):
                node = random.choice(world.alive())
                await node.process.drive(node.reconfiguration.transfer(group, to))
            case RemoveNode(number) if world.now.nodes[number].state == NodeState.LEAVING:
                self.note(f"node {number} is removed")
                self.removed += 1
                assert world.write(NodeSet(number, NodeState.REMOVED)) == Code.OK
            case MarkBalanced():
                world.write(SetBalancing(False))

    def _bury(self) -> None:
        """Leave this to the planner."""

    # --- what operators ask for

    def able(self) -> list[int]:
        return [number for number in self.world.now.members if not self.world.nodes[number].gone]

    def aim(self) -> None:
        world, now = self.world, self.world.now
        group = self.draw.randrange(GROUPS + 1)
        source, target = self.draw.choice(now.groups[group].voters), self.draw.choice(self.able())
        if not refusals.moving(now, self.look(), group, source, target):
            goal = tuple(sorted({*now.groups[group].voters, target} - {source}))
            self.note(f"group {group} goes to {goal}")
            self.moved += 1
            world.write(PlaceGroup(group, goal, goal[0], now.groups[group].epoch))

    def come(self) -> None:
        if len(self.world.nodes) < NODES_MAX + 2:
            self.note(f"node {self.world.come(balance=self.draw.random() < 0.5).number} is new")

    def read_along(self) -> None:
        """Add a read replica, or promote one."""
        readers = sorted(self.world.now.readers)
        if readers:
            self.note(f"node {readers[0]} is to vote")
            self.world.write(NodePromote(readers[0], self.draw.random() < 0.5))
        elif len(self.world.nodes) < NODES_MAX + 2:
            self.note(f"node {self.world.come(reader=True).number} reads along")

    def go(self) -> None:
        """Ask one or two nodes to leave or to become empty."""
        now, seen, able = self.world.now, self.look(), self.able()
        for number in self.draw.sample(able, min(len(able), self.draw.choice((1, 1, 2)))):
            state = self.draw.choice((NodeState.LEAVING, NodeState.LEAVING, NodeState.EMPTYING))
            if (
                not refusals.emptying(now, seen, number)
                and self.world.write(NodeSet(number, state)) == Code.OK
            ):
                self.note(f"node {number} is to be {NodeState.NAMES[state]}")

    def stay(self) -> None:
        number = self.draw.choice(self.able())
        if (
            self.world.now.nodes[number].state != NodeState.ACTIVE
            and self.world.write(NodeSet(number, NodeState.ACTIVE)) == Code.OK
        ):
            self.note(f"node {number} stays")

    def rest(self) -> None:
        """Set a node to draining or cordoned: it leads nothing any more, or gets nothing new."""
        now, number = self.world.now, self.draw.choice(self.able())
        drains = self.draw.random() < 0.6
        refused = (
            refusals.draining(now, self.look(), number)
            if drains
            else refusals.cordoning(now, number)
        )
        state = NodeState.DRAINING if drains else NodeState.CORDONED
        if not refused and self.world.write(NodeSet(number, state)) == Code.OK:
            self.note(f"node {number} is to be {NodeState.NAMES[state]}")

    def pass_on(self) -> None:
        """Transfer the lead of a group to another node."""
        now = self.world.now
        group, number = self.draw.randrange(GROUPS + 1), self.draw.choice(self.able())
        if not refusals.transferring(now, self.look(), group, number):
            self.note(f"node {number} is to lead group {group}")
            placement = now.groups[group]
            self.world.write(PlaceGroup(group, placement.goal, number, placement.epoch))

    def announce(self) -> None:
        """Give a node another zone, or another number of cores, as when it starts again."""
        number = self.draw.choice(self.able())
        node = self.world.now.nodes[number]
        zone, cores = self.draw.choice((node.zone, *self.world.zones)), self.draw.choice((1, 2, 4))
        self.note(f"node {number} is in zone {zone}, and has {cores} cores")
        assert self.world.write(NodeAnnounce(number, node.peer, node.http, zone, cores)) == Code.OK

    def balance(self) -> None:
        replicas = self.draw.choice((0, 0, 1, 3, 5))
        if not refusals.balancing(self.world.now, replicas):
            self.note(f"balance, {replicas} replicas")
            self.world.write(SetBalancing(True, replicas))

    def lose(self) -> None:
        """Lose a disk, and let another node take the place of its own."""
        world, now, seen = self.world, self.world.now, self.look()
        whole = self._rests() and all(len(each.voters) > 2 for each in now.groups.values())
        if (
            not whole
            or any(world.nodes[number].gone for number in now.members)
            or len(world.nodes) >= NODES_MAX + 2
        ):
            return
        node = world.nodes[self.draw.choice(self.able())]
        if refusals.replacing(now, seen, node.number, 0, "elsewhere:1"):
            return
        if node.alive:
            node.kill(power=0.0)
        node.gone = True
        self.note(
            f"node {node.number} is lost for good, node {world.come(replaces=node.number).number} "
            "is its heir"
        )


ACTS: tuple[Callable[[Planned], None], ...] = (
    Planned.aim, Planned.aim, Planned.aim, Planned.come, Planned.come, Planned.go, Planned.go, Planned.go, Planned.stay, Planned.balance,
    Planned.balance, Planned.lose,
)  # fmt: skip
MORE_ACTS: tuple[Callable[[Planned], None], ...] = (
    Planned.rest,
    Planned.rest,
    Planned.pass_on,
    Planned.announce,
)


def run_planned(seed: int, mishaps: int = 30, knobs: Knobs | None = None) -> str:
    """Play an episode; the same seed gives the same checksum. Raises AssertionError with the
    violated invariant."""
    return Planned(seed, mishaps, knobs).play()
