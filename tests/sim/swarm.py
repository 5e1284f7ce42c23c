"""Episodes whose world is drawn per seed: the number of nodes, the quality of network, disks and
object store, and the frequency of mishaps.

The events are a schedule, drawn before the start. Each step has a random stream of its own, so
that it can be left out (`sim/shrink.py`)."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random

import msgspec
from sim import faults
from sim.backups import Operators
from sim.chaos import FULL, STREAMS, WIDTH, Episode, History
from sim.clock import WALL_MS
from sim.cluster import Node, World
from sim.expiry import Ends
from sim.forks import Forkers
from sim.knobs import Knobs
from sim.leftovers import LeftoverCheck
from sim.loop import SimLoop
from sim.loss import Loss
from sim.members import Subscribers
from sim.restored import Restored
from sim.retention import RetentionClients
from sim.store import GOOD, SimStore, Weather
from sim.stream_clients import Lives
from sim.workers import Shop

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import LiveEvent, StreamInfo
from polynya.stream.parts import Producer
from polynya.stream.replies import Code

WIDE = 1 << 40  # a disk's capacity
NEW_DISKS = 0.3  # share of the worlds in which one node gets one in the end
RARE = ("test/x", "test/y", "test/z")  # streams that are written to now and then, and idle between


class Step(msgspec.Struct, frozen=True, array_like=True):
    """`after`: seconds since the step before."""

    after: float
    mishap: str
    seed: int

    def __repr__(self) -> str:
        return f"Step({self.after}, {self.mishap!r}, {self.seed})"


class Swarm(msgspec.Struct, frozen=True, kw_only=True):
    """The world of a seed. Shares, and seconds (least and most)."""

    nodes: int
    loss: float
    copies: float
    delay: tuple[float, float]
    disk_delay: tuple[float, float]
    misdirected: float
    weather: Weather | None  # None: no object store
    weights: dict[str, float]

    @classmethod
    def draw(cls, random: Random) -> Swarm:
        store = Weather(
            away=random.choice((0.0, 0.02, 0.2)),
            untold=random.choice((0.0, 0.02, 0.1)),
            conflict=random.choice((0.0, 0.02)),
            stale=random.choice((0.0, 0.5)),
            delay=random.choice(((0.001, 0.01), (0.02, 0.3))),
        )
        return cls(
            nodes=5 if random.random() < 0.15 else 3,
            loss=random.choice((0.0, 0.0, 0.01, 0.1, 0.3)),
            copies=random.choice((0.0, 0.05, 0.5)),
            delay=random.choice(((0.0005, 0.002), (0.001, 0.03), (0.03, 0.1))),
            disk_delay=random.choice(((0.0005, 0.002), (0.001, 0.03), (0.01, 0.1))),
            misdirected=random.choice((0.0, 0.0, 0.1)),
            weather=store if random.random() < 0.75 else None,
            weights={name: random.choice((0.0, 1.0, 1.0, 3.0)) for name in MISHAPS} | HELP,
        )

    def steps(self, random: Random, count: int, knobs: Knobs) -> list[Step]:
        names = [name for name, weight in self.weights.items() if weight]
        weights = [self.weights[name] for name in names]
        steps = [
            Step(
                round(random.expovariate(1 / 0.7), 3),
                random.choices(names, weights)[0],
                random.getrandbits(31),
            )
            for _ in range(count)
        ]
        return list(_edged(steps, knobs)) if "faults" in knobs.world else steps


def _edged(steps: list[Step], knobs: Knobs) -> Iterator[Step]:
    """Replace some of the steps by steps of another kind (sim/faults.py); most that help stay."""
    random, weights = Random(f"edges {knobs.seed}"), faults.weights(knobs.seed)
    for step in steps:
        share = knobs.world["faults"] * (0.5 if step.mishap in HELP else 1.0)
        if random.random() < share:
            yield msgspec.structs.replace(
                step, mishap=random.choices(list(weights), list(weights.values()))[0]
            )
        else:
            yield step


class LiveReader:
    """The data that one live reader receives."""

    def __init__(self) -> None:
        self.events: list[LiveEvent] = []

    def live(self, event: LiveEvent) -> None:
        self.events.append(event)


class SwarmEpisode(Episode):
    """One run. `schedule` in place of what the seed draws: some of it, when a failure is made
    small."""

    def __init__(
        self,
        seed: int,
        mishaps: int = 25,
        schedule: Sequence[Step] | None = None,
        knobs: Knobs | None = None,
    ) -> None:
        super().__init__(seed, mishaps, knobs)
        random = Random(f"swarm {seed}")
        self.swarm = self._draw(random)
        drawn = self.swarm.steps(random, mishaps, self.knobs)
        self.schedule = list(drawn if schedule is None else schedule)
        self.counts: Counter[str] = Counter()
        self.tails: dict[str, bytearray] = {}
        self.scheduled = 0
        store = SimStore(seed, self._wall_ms) if self.swarm.weather is not None else None
        self.world = World(seed, self.swarm.nodes, store=store)
        self.world.disks_fail = True
        self.world.follow = 6, 0.4  # leads move all the time
        self.idle = Random(f"idle {seed}")
        if store is not None:
            self.world.evict_after_ms = self.idle.choice((0, 300, 300, 1500))
            self.histories |= {name: History(name) for name in RARE}
            self.world.delta_seconds = Random(f"deltas {seed}").choice((0.5, 1.5, 4.0))
        self.wiped: Node | None = None
        self.lives, self.shop, self.loss = Lives(self), Shop(self), Loss(self)
        self.ends, self.keeps, self.guests = (
            Ends(self, self.shop),
            RetentionClients(self, self.shop),
            Subscribers(self, self.shop),
        )
        self.operators, self.forkers = Operators(self), Forkers(self)
        self.tidy = LeftoverCheck(self)
        self.whole: dict[str, bytes] = {}  # all streams that are never deleted, in the end

    def _draw(self, random: Random) -> Swarm:
        """Draw the world."""
        return Swarm.draw(random)

    async def run(self) -> str:
        trace = await super().run()
        for taken in await self.operators.chosen():
            await Restored(self, taken, self.operators.calm()).check()
        return trace

    def _wall_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + WALL_MS - 1_000_000

    async def _mishaps(self) -> None:
        tails = [asyncio.ensure_future(self._tail(number)) for number in range(2)]
        tails.append(asyncio.ensure_future(self._refuse(Random(f"refused {self.seed}"))))
        tails.append(asyncio.ensure_future(self.loss.watch()))
        self._worsen()
        for step in self.schedule:
            await asyncio.sleep(step.after)
            self.draw = Random(step.seed)
            self.counts[step.mishap] += 1
            ALL[step.mishap](self)
            self.world.check()
        self.over = True
        self.loss.strike()
        self.tasks += tails

    def _worsen(self) -> None:
        world, swarm = self.world, self.swarm
        world.loss, world.copies, world.delay, world.disk_delay = (
            swarm.loss,
            swarm.copies,
            swarm.delay,
            swarm.disk_delay,
        )
        for node in world.nodes.values():
            node.disk.misdirected = swarm.misdirected
        if world.store is not None and swarm.weather is not None:
            world.store.weather = swarm.weather

    async def _heal(self) -> None:
        """Heal everything from now on, and check that the cluster recovers."""
        world = self.world
        if world.store is not None:
            world.store.weather = GOOD
            world.store.refused.clear()
        for node in world.nodes.values():
            node.disk.fail_at, node.disk.bad_reads = 0, 0.0
            node.disk.capacity = WIDE
            if not node.alive:
                self._start(node)
        await super()._heal()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.scheduled = loop.scheduled
        for name, content in self.tails.items():
            whole = await world.nodes[1].read(name)
            assert whole.startswith(bytes(content)), (
                f"{name}: what a tail got is not how the stream begins"
            )
        await self.operators.finish()
        await self.lives.finish()
        await self.shop.finish()
        await self.ends.finish()
        await self.keeps.finish()
        await self.guests.finish()
        await self.forkers.finish()
        self.whole = {name: await world.nodes[1].read(name) for name in self.histories}
        await self.loss.finish()
        await self._new_disk()
        await self.tidy.finish()

    async def _new_disk(self) -> None:
        """Give a node an empty disk in some worlds; it must recover everything."""
        random = Random(f"new disk {self.seed}")
        if random.random() > NEW_DISKS:
            return
        world, node = self.world, random.choice(list(self.world.nodes.values()))
        node.kill(power=0.0)
        self.note(f"node {node.number} gets an empty disk")
        node.lose_disk()
        self._start(node)
        await world.wait_moving(lambda: node.remembers)
        await world.wait_equal()
        for name, content in self.whole.items():
            # an append of unknown outcome may come late
            assert (await node.read(name, local=True)).startswith(content), (
                f"{name}: node {node.number} has not all of it on its new disk"
            )

    def _start(self, node: Node) -> None:
        """Start a node as an operator does: retry after a read error of the disk; wipe a node that
        refuses its damaged data."""
        why = node.start_or_say()
        if why == "OSError" and node.disk.bad_reads:
            self.counts["unread at start"] += 1
            node.disk.bad_reads = 0.0
            why = node.start_or_say()
        node.disk.bad_reads = 0.0
        if why == "Died":
            return
        if why == "CorruptData":
            self.note(f"node {node.number} refuses its data")
            assert self.wiped is node, f"node {node.number} finds damage that nobody made"
            node.lose_disk()
            why = node.start_or_say()
        assert not why, f"node {node.number} does not start: {why}"
        node.disk.misdirected = self.swarm.misdirected

    async def _refuse(self, draw: Random) -> None:
        """Let the object store refuse one node for a while in some worlds."""
        store, loop = self.world.store, asyncio.get_running_loop()
        if store is None or draw.random() > 0.3:
            return
        begin = loop.time() + draw.uniform(0.0, 8.0)
        end, node = begin + draw.uniform(5.0, 20.0), draw.choice(list(self.world.nodes))
        while not self.over and loop.time() < end:
            if loop.time() >= begin and node not in store.refused:
                self.note(f"the store refuses node {node}")
                store.refused.add(node)
            await asyncio.sleep(0.2)
        store.refused.discard(node)

    # --- idle streams

    def clients(self) -> list[asyncio.Future[None]]:
        rare = [asyncio.ensure_future(self._rare(name)) for name in self.histories if name in RARE]
        return [
            *super().clients(),
            *rare,
            *self.lives.clients(),
            *self.shop.clients(),
            *self.ends.clients(),
            *self.keeps.clients(),
            *self.guests.clients(),
            *self.operators.clients(),
            *self.forkers.clients(),
        ]

    async def _rare(self, name: str) -> None:
        """Use rarely touched streams. A write rehydrates one unchanged, a read leaves it evicted,
        and a PUT of an existing one changes nothing."""
        random, sequence = Random(f"{name} {self.seed}"), 0
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / 2.5))
            alive, act = self.world.alive(), random.random()
            if not alive:
                continue
            if act < 0.3:
                await self._read_once(random.choice(alive), name)
            elif act < 0.4:
                await self._put_again(random.choice(alive), name)
            elif act < 0.7:
                await self._append_once(name)
            else:
                payload = b"r%s%05d;" % (name[-1:].encode(), sequence)
                self.histories[name].unknown.add(payload)
                for _ in range(3):  # one after the other, or the same again
                    if await self._produce_once(name, payload, Producer("rare", 0, sequence)):
                        self.histories[name].unknown.discard(payload)
                        self.histories[name].produced.append(payload)
                        sequence += 1
                        break

    async def _put_again(self, node: Node, name: str) -> None:
        try:
            reply = await node.create(name)
        except (Unavailable, OutcomeUnknown):
            return
        if self.world.switches and reply.code == Code.EXISTS_DIFFERENT:
            assert [field for field, _ in reply.detail] == ["profile"], reply
            return
        assert reply.code in (Code.EXISTS, *FULL), reply

    # --- tails

    async def _tail(self, number: int) -> None:
        """Follow a stream over the incarnations of nodes: every byte once, in order."""
        name = STREAMS[number]
        content = self.tails[name] = bytearray()
        random = Random(f"tail {self.seed} {number}")
        while not self.over:
            await asyncio.sleep(random.uniform(0.05, 0.3))
            alive = self.world.alive()
            if alive:
                try:
                    async with asyncio.timeout(random.uniform(0.5, 6.0)):
                        await self._follow(random.choice(alive), name, content)
                except (Unavailable, TimeoutError):
                    continue

    async def _follow(self, node: Node, name: str, content: bytearray) -> None:
        """Follow a stream until the node dies or the time is over."""
        ear, life, service = LiveReader(), node.life, node.engine.service
        info = await node.process.drive(service.open(name).attach(ear))
        assert isinstance(info, StreamInfo), f"{name} is not there on node {node.number}"
        try:
            page = await node.read(name)
            if node.life != life or not node.alive:
                return
            assert page.startswith(bytes(content)), (
                f"{name}: a tail got what node {node.number} does not have"
            )
            assert len(page) >= info.byte, (
                f"{name}: node {node.number} reads less than it told a tail"
            )
            content += page[len(content) :]
            while node.life == life and node.alive and not self.over:
                for event in ear.events:
                    if event.cut:
                        return  # told to come back
                    if event.byte > len(content) and not event.payload:  # it has to be read
                        page = await node.read(name)
                        assert len(page) >= event.byte, f"{name}: node {node.number} reads less"
                        content += page[len(content) : event.byte]
                    if event.byte > len(content):
                        assert event.begin_byte == len(content), (
                            f"{name}: a gap in what node {node.number} sends"
                        )
                        content += event.payload
                ear.events.clear()
                await asyncio.sleep(0.05)
        finally:
            service.detach(info.uid, ear)

    # --- more mishaps

    def start_all(self) -> None:
        for node in self.world.nodes.values():
            if not node.alive:
                self.note(f"node {node.number} starts")
                node.disk.capacity = WIDE
                self._start(node)

    def wipe(self) -> None:
        if self._may_lose_a_disk():
            node = self.wiped = self.draw.choice(self.world.alive() or [self.world.nodes[1]])
            if node.alive:
                node.kill(power=0.0)
            self.note(f"node {node.number} loses its disk")
            node.lose_disk()
            self._start(node)

    def rot(self) -> None:
        """Change a synced byte on a node that is down: found at the start, or never needed."""
        if self._may_lose_a_disk():
            node = self.draw.choice(list(self.world.nodes.values()))
            if node.alive:
                node.kill(power=None)
            self.wiped = node
            self.note(f"node {node.number} has a damaged journal: {node.disk.rot(self.draw)}")

    def _may_lose_a_disk(self) -> bool:
        """Report whether another disk may be lost: only after the previous loss is restored."""
        return (self.wiped is None or self.wiped.remembers) and all(
            node.remembers for node in self.world.alive()
        )

    def bad_reads(self) -> None:
        alive = self.world.alive()
        if alive:
            node = self.draw.choice(alive)
            node.disk.bad_reads = self.draw.choice((0.0, 0.1, 0.5))
            self.note(f"{node.disk.bad_reads:.0%} of the reads of node {node.number}'s disk fail")

    def bad_write(self) -> None:
        alive = self.world.alive()
        if alive:
            node = self.draw.choice(alive)
            node.disk.error = errno.EIO
            node.disk.fail_at = node.disk.calls + self.draw.randint(1, 30)
            self.note(f"a call of node {node.number}'s disk will fail")

    def clog(self) -> None:
        sender, to = self.draw.sample(self.world.voters, 2)
        self.world.clogged[sender, to] = asyncio.get_running_loop().time() + self.draw.uniform(
            0.1, 5.0
        )
        self.note(f"what goes from {sender} to {to} is held up")

    def wall(self) -> None:
        node = self.draw.choice(list(self.world.nodes.values()))
        node.clock.wall_ms = self.draw.choice((-3_600_000, -500, 0, 700, 60_000))
        self.note(f"the wall's clock of node {node.number} is {node.clock.wall_ms} ms off")

    def weather(self) -> None:
        if self.world.store is not None:
            bad = Weather(away=0.9, untold=0.05, conflict=0.05, stale=0.5)
            self.world.store.weather = self.draw.choice((GOOD, bad, self.swarm.weather or GOOD))
            self.note(f"the store: {self.world.store.weather}")

    def calm(self) -> None:
        self.note("the network heals")
        self.world.heal()

    def summary(self) -> str:
        idled = self.world.idled
        return (
            f"{super().summary()}, {sum(map(len, self.tails.values())) // WIDTH} records by tails, "
            f"{idled['Evict']} streams evicted, "
            f"{idled['Return']} returned"
        )


MISHAPS: dict[str, Callable[[SwarmEpisode], None]] = {
    "kill": Episode.kill,
    "power cut": Episode.power_cut,
    "wipe": SwarmEpisode.wipe,
    "rot": SwarmEpisode.rot,
    "start": SwarmEpisode.start_all,
    "isolate": Episode.isolate,
    "half cut": Episode.half_cut,
    "clog": SwarmEpisode.clog,
    "heal": SwarmEpisode.calm,
    "disturb": Episode.disturb,
    "full disk": Episode.fill,
    "bad reads": SwarmEpisode.bad_reads,
    "bad write": SwarmEpisode.bad_write,
    "wall clock": SwarmEpisode.wall,
    "store": SwarmEpisode.weather,
    "snapshots": Episode.snapshot,
    "hand over": Episode.hand_over,
}
HELP = {"start": 6.0, "heal": 3.0}
ALL: dict[str, Callable[..., None]] = MISHAPS | faults.FAULTS


def run_swarm(
    seed: int, mishaps: int = 25, schedule: Sequence[Step] | None = None, knobs: Knobs | None = None
) -> SwarmEpisode:
    """Play an episode. The same seed gives the same `trace`. Raises AssertionError with the
    violated invariant."""
    episode = SwarmEpisode(seed, mishaps, schedule, knobs)
    episode.play()
    return episode


__all__ = ["History", "Step", "SwarmEpisode", "run_swarm"]
