"""Episodes of a simulated cluster: clients append and read while nodes die, disks fill and the
network fails; then it heals, and all that was answered must be true."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from random import Random
from string import ascii_lowercase
from typing import Any

import msgspec
from sim.cluster import GROUPS, Node, World
from sim.faults import FAULTS, weights
from sim.knobs import Knobs
from sim.leases import leases_checked
from sim.loop import run_simulated
from sim.tier import chance_of

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.stream.command import level_of
from polynya.stream.features.profiles.commands import SetProfile
from polynya.stream.parts import Producer
from polynya.stream.replies import Code

WIDTH = 8  # bytes of each payload
STREAMS = ("test/a", "test/b", "test/c")
FULL = (Code.DISK_FULL, Code.MEMORY_PRESSURE)


class Read(msgspec.Struct):
    began: float
    ended: float
    content: bytes


class History:
    """Clients' operations on one stream, and their responses."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged: dict[
            bytes, tuple[int, float]
        ] = {}  # payload -> record after it, when it was answered
        self.refused: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.produced: list[bytes] = []  # of idempotent producers, acknowledged in this order
        self.reads: list[Read] = []

    def read(self, read: Read) -> None:
        """Check that a read is linearizable: it has all that was acknowledged before it began, and
        all that reads saw which ended before."""
        content = read.content
        for payload, (record, at) in self.acknowledged.items():
            if at < read.began:
                assert content[(record - 1) * WIDTH : record * WIDTH] == payload, (
                    f"{self.name}: {payload!r} was acknowledged and is not read"
                )
        for other in self.reads:
            shorter, longer = sorted((content, other.content), key=len)
            assert longer.startswith(shorter), f"{self.name}: two reads differ"
            if other.ended < read.began:
                assert len(content) >= len(other.content), (
                    f"{self.name}: a read sees less than one that ended before it began"
                )
        self.reads.append(read)

    def finish(self, content: bytes) -> None:
        """Finish the episode on the quiet cluster."""
        payloads = [content[at : at + WIDTH] for at in range(0, len(content), WIDTH)]
        assert len(set(payloads)) == len(payloads), f"{self.name}: something is there twice"
        for payload, (record, _) in self.acknowledged.items():
            assert payloads[record - 1 : record] == [payload], (
                f"{self.name}: {payload!r} was acknowledged as record {record} and is lost"
            )
        produced = set(self.produced)
        assert produced <= set(payloads), f"{self.name}: something that was produced is lost"
        for producer in {each[:2] for each in self.produced}:
            mine = [each for each in payloads if each[:2] == producer]
            assert mine == sorted(mine), f"{self.name}: what was produced is out of order"
        assert not self.refused & set(payloads), f"{self.name}: something is there that was refused"
        assert set(payloads) <= self.unknown | set(self.acknowledged) | produced, (
            f"{self.name}: something is there that nobody sent"
        )


class Episode:
    """One run. `mishaps` is how many happen before all heals; `knobs` in place of what the seed
    draws."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        self.seed, self.mishaps = seed, mishaps
        self.knobs = Knobs.draw(seed) if knobs is None else knobs
        self.streams = tuple(
            f"test/{letter}" for letter in ascii_lowercase[: self.knobs.world.get("streams", 3)]
        )
        self.random = self.draw = Random(f"episode {seed}")  # of clients, and of mishaps
        self.world = World(seed)
        self.choices = self._edged(MISHAPS)
        self.histories = {name: History(name) for name in self.streams}
        self.count = 0
        self.events: list[str] = []
        self.over = False
        self.wiped: Node | None = None
        self.seconds = 0.0
        self.trace = ""
        self.tasks: list[asyncio.Future[None]] = []

    def _edged(
        self, choices: tuple[Callable[[Any], None], ...]
    ) -> tuple[Callable[[Any], None], ...]:
        """Add the other faults of this world (sim/faults.py)."""
        drawn = weights(self.seed) if "faults" in self.knobs.world else {}
        more = [FAULTS[name] for name, weight in drawn.items() for _ in range(int(weight))]
        return (*choices, *more)

    def note(self, event: str) -> None:
        self.events.append(f"{asyncio.get_running_loop().time():.6f} {event}")

    def acknowledged_count(self) -> int:
        """Count the requests acknowledged to clients: appends, in some worlds other requests
        too."""
        return sum(
            len(history.acknowledged) + len(history.produced) for history in self.histories.values()
        )

    def summary(self) -> str:
        """Summarize the run in one line."""
        histories = self.histories.values()
        acknowledged = sum(
            len(history.acknowledged) + len(history.produced) for history in histories
        )
        return (
            f"{self.seconds:.0f} s, {acknowledged} appends acknowledged, "
            f"{sum(len(history.unknown) for history in histories)} with an unknown "
            f"outcome, {sum(len(history.reads) for history in histories)} reads, "
            f"{len(self.world.leaders)} leaders"
        )

    def play(self) -> str:
        """Play the episode from start to end; the same seed and knobs give the same trace. Raises
        AssertionError with the violated invariant."""
        with chance_of(self.seed), self.knobs.in_force(), leases_checked(self.world):
            self.trace = run_simulated(self.run())
        return self.trace

    async def run(self) -> str:
        """Run the episode, and return the trace's checksum."""
        world = self.world
        world.turn(self.knobs)
        world.keeps_house = True
        for node in world.nodes.values():
            node.clock.set_rate(self._rate(self.random))
        await world.start()
        for name in self.histories:
            await self._create(name)
        self.tasks = self.clients()
        await self._mishaps()
        await asyncio.gather(*self.tasks)
        await self._heal()
        for name in self.histories:
            self.finish(name, await self.random.choice(world.alive()).read(name))
        await world.stop()
        self.seconds = asyncio.get_running_loop().time() - 1000
        return hashlib.sha256("\n".join(self.events).encode()).hexdigest()

    def _rate(self, random: Random) -> float:
        """Draw the rate of a maximally wrong clock."""
        drift = self.world.drift * 0.9
        return 1 + random.uniform(-drift, drift)

    async def _mishaps(self) -> None:
        for _ in range(self.mishaps):
            await asyncio.sleep(self.random.expovariate(1 / 0.7))
            self.draw.choice(self.choices)(self)
            self.world.check()
        self.over = True

    def clients(self) -> list[asyncio.Future[None]]:
        """Start all that works meanwhile, until `over`."""
        clients = [asyncio.ensure_future(self._append(number)) for number in range(3)]
        clients += [asyncio.ensure_future(self._produce(number)) for number in range(3)]
        if self.world.switches and self.world.has_profiles:
            clients.append(asyncio.ensure_future(self._switch()))
        return clients + [asyncio.ensure_future(self._read()) for _ in range(2)]

    async def settle(self) -> None:
        """Let the healthy cluster settle."""

    def finish(self, name: str, content: bytes) -> None:
        """Record the final content of each stream."""
        self.histories[name].finish(content)

    async def _create(self, name: str) -> None:
        """Create a stream. Ways that hold little may lose even these: then it is asked again."""
        while True:
            leader = self.world.leader(self.world.group_of(name))
            if leader is None:
                await self.world.wait_leaders()
                continue
            group = self.world.group_of(name)
            if self.world.profile_of(name):
                machine = leader.engine.local.machines[group]
                await self.world.wait_moving(
                    lambda machine=machine: machine.counters.level >= level_of(SetProfile)
                )
            with contextlib.suppress(OutcomeUnknown):
                assert (await leader.create(name)).code in (Code.CREATED, Code.EXISTS)
                return

    async def _heal(self) -> None:
        world = self.world
        world.heal()
        for node in world.nodes.values():
            node.disk.capacity = 1 << 40
            if not node.alive and not node.gone:
                node.start()
        self.note("all is well")
        await world.wait_leaders()
        for name in self.histories:
            for _ in range(50):
                if await self._append_once(name):
                    break
                await asyncio.sleep(0.1)
            else:
                raise AssertionError(f"nothing can be appended to {name} though all is well")
        await self.settle()
        await world.wait_equal()

    # --- clients

    async def _append_once(self, name: str) -> bool:
        """Append once on any node, which finds the leader."""
        alive, history = self.world.alive(), self.histories[name]
        if not alive:
            return False
        node = self.random.choice(alive)
        self.count += 1
        payload = b"%07d;" % self.count
        life = node.life
        history.unknown.add(payload)
        try:
            reply = await node.append(name, payload)
        except Unavailable:
            if node.life == life and node.alive:
                history.unknown.discard(payload)
                history.refused.add(payload)
            return False
        except OutcomeUnknown:
            return False
        if node.life != life or not node.alive:
            return False  # the answer did not reach the client
        history.unknown.discard(payload)
        if reply.code != Code.OK:
            assert reply.code in FULL, reply
            history.refused.add(payload)
            return False
        history.acknowledged[payload] = (reply.record, asyncio.get_running_loop().time())
        self.note(f"{name} {payload!r} is record {reply.record} by {node.number}")
        return True

    async def _switch(self) -> None:
        """Change the profiles of the streams, whatever they are."""
        random = Random(f"switch {self.seed}")
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / self.world.switches))
            name, profile = random.choice(list(self.histories)), random.randrange(2)
            alive = self.world.alive()
            if alive:
                with contextlib.suppress(Unavailable, OutcomeUnknown):
                    reply = await random.choice(alive).switch(name, profile)
                    self.note(f"{name} has profile {reply.detail}: {Code(reply.code).name}")

    async def _produce(self, number: int) -> None:
        """Append idempotently: retry on any node until it is acknowledged."""
        random = Random(f"producer {self.seed} {number}")
        name = STREAMS[number % len(STREAMS)]
        history, sequence = self.histories[name], 0
        while not self.over:
            payload = b"p%d%05d;" % (number, sequence)
            history.unknown.add(payload)
            if await self._produce_once(name, payload, Producer(f"p{number}", 0, sequence)):
                history.unknown.discard(payload)
                history.produced.append(payload)
                sequence += 1
            await asyncio.sleep(random.expovariate(1 / 0.05))

    async def _produce_once(self, name: str, payload: bytes, producer: Producer) -> bool:
        alive = self.world.alive()
        if not alive:
            return False
        node = self.random.choice(alive)
        life = node.life
        try:
            reply = await node.append(name, payload, producer)
        except (Unavailable, OutcomeUnknown):
            return False
        assert reply.code in (Code.OK, Code.DUPLICATE, *FULL), reply
        self.note(f"{name} {payload!r} is {reply.code!r} by {node.number}")
        return reply.code not in FULL and node.life == life and node.alive

    async def _append(self, number: int) -> None:
        random = Random(f"client {self.seed} {number}")
        while not self.over:
            await self._append_once(random.choice(self.streams))
            await asyncio.sleep(random.expovariate(1 / 0.03))

    async def _read(self) -> None:
        while not self.over:
            await asyncio.sleep(self.random.expovariate(1 / 0.1))
            alive = self.world.alive()
            if not alive:
                continue
            await self._read_once(self.random.choice(alive), self.random.choice(self.streams))

    async def _read_once(self, node: Node, name: str) -> None:
        loop, life = asyncio.get_running_loop(), node.life
        began = loop.time()
        try:
            async with asyncio.timeout(3):
                content = await node.read(name)
        except (Unavailable, TimeoutError):
            return
        if node.life == life and node.alive:
            self.note(f"{name} has {len(content)} bytes on {node.number}")
            self.histories[name].read(Read(began, loop.time(), content))

    # --- mishaps

    def kill(self) -> None:
        alive = self.world.alive()
        if len(alive) > 1 or (alive and self.draw.random() < 0.3):
            node = self.draw.choice(alive)
            power = self.draw.choice((None, 0.0, 0.5, 1.0))
            self.note(f"node {node.number} dies, power {power}")
            node.kill(power=power)

    def wipe(self) -> None:
        """Lose one disk, after all data of the previous loss is restored."""
        world = self.world
        if (all(node.remembers for node in world.alive()) and self.wiped is None) or (
            self.wiped is not None and self.wiped.remembers
        ):
            self.wiped = self.draw.choice(world.alive() or [world.nodes[1]])
            if self.wiped.alive:
                self.wiped.kill(power=0.0)
            self.note(f"node {self.wiped.number} loses its disk")
            self.wiped.lose_disk()
            self.wiped.start()

    def power_cut(self) -> None:
        if self.draw.random() < 0.3:
            self.note("all lose power")
            for node in self.world.alive():
                node.kill(power=self.draw.choice((0.0, 0.3, 0.9)))

    def start(self) -> None:
        for node in self.world.nodes.values():
            if not node.alive and not node.gone:
                self.note(f"node {node.number} starts")
                node.disk.capacity = 1 << 40
                node.start()

    def isolate(self) -> None:
        number = self.draw.choice(self.world.voters)
        self.note(f"node {number} is cut off")
        self.world.isolate(number)

    def half_cut(self) -> None:
        sender, to = self.draw.sample(self.world.voters, 2)
        self.note(f"nothing passes from {sender} to {to}")
        self.world.cut.add((sender, to))

    def heal(self) -> None:
        self.note("the network heals")
        self.world.heal()

    def disturb(self) -> None:
        self.world.loss = self.draw.choice((0.0, 0.05, 0.3))
        self.world.delay = self.draw.choice(((0.0005, 0.002), (0.001, 0.05), (0.01, 0.3)))
        self.world.disk_delay = self.draw.choice(((0.0005, 0.002), (0.001, 0.03), (0.05, 0.4)))
        self.note(f"loss {self.world.loss}, delay {self.world.delay}, disk {self.world.disk_delay}")

    def fill(self) -> None:
        alive = self.world.alive()
        if alive:
            node = self.draw.choice(alive)
            node.disk.capacity = (
                node.disk.used() + self.draw.randrange(500)
                if node.disk.capacity == 1 << 40
                else 1 << 40
            )
            self.note(f"the disk of node {node.number} has {node.disk.capacity} bytes")

    def snapshot(self) -> None:
        for node in self.world.alive():
            if self.draw.random() < 0.7:
                self.note(f"node {node.number} takes snapshots")
                node.snapshot_soon()

    def hand_over(self) -> None:
        alive = self.world.alive()
        if alive:
            node = self.draw.choice(alive)
            self.note(f"node {node.number} hands over")
            node.process.hand(node.core.leadership.hand_over_all)


MISHAPS: tuple[Callable[[Episode], None], ...] = (
    Episode.kill,
    Episode.kill,
    Episode.wipe,
    Episode.power_cut,
    Episode.start,
    Episode.start,
    Episode.isolate,
    Episode.half_cut,
    Episode.heal,
    Episode.heal,
    Episode.disturb,
    Episode.fill,
    Episode.snapshot,
    Episode.snapshot,
    Episode.snapshot,
    Episode.hand_over,
)


def run_episode(seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> str:
    """Play an episode; the same seed gives the same checksum. Raises AssertionError with the
    violated invariant."""
    return Episode(seed, mishaps, knobs).play()


__all__ = ["GROUPS", "Episode", "run_episode"]
