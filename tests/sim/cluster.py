"""A cluster of whole cores in one thread: real engines and journals above fake disks, a fake
network and virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from google_crc32c import value as crc32c
from sim.assembly import BackgroundWork, Receiver
from sim.backups import AdminEndpoint
from sim.clock import Clock
from sim.disk import Crash, Died
from sim.handshakes import Copied, Greeter, Greeting
from sim.knobs import Knobs
from sim.loop import SimLoop, in_order
from sim.network import CALM, Network
from sim.parts import (
    GROUPS,
    PULSE_SECONDS,
    SILENCE_SECONDS,
    Links,
    NotThere,
    SimMap,
    SimRpc,
    SimWriter,
    Stream,
    held_by,
    placeless,
    reached,
    settings_of,
)
from sim.process import NOBODY, Process
from sim.promises import check_promises
from sim.reconfiguration import Steered
from sim.store import SimStore
from sim.tier import SimTier
from worlds.in_process import fold_here
from worlds.service import raw_batch

from polynya.base import levels
from polynya.base.errors import CorruptData, OutcomeUnknown, Unavailable
from polynya.base.futures import settle
from polynya.cluster.feature_level import FeatureLevels
from polynya.cluster.placement import PlacementReconciler
from polynya.cluster.reconfiguration import Reconfiguration
from polynya.cold.compaction.planner import CompactionPolicy
from polynya.engine.append_origins import MANY, MOST
from polynya.engine.log_clock import LogClock
from polynya.engine.membership import ClusterSettings, Membership
from polynya.engine.repair import others_of
from polynya.engine.replicated import ReplicatedEngine
from polynya.engine.snapshots.merge_process import Job
from polynya.engine.storage import open_storage
from polynya.local.api import Page, ReadQuery
from polynya.raft import Role
from polynya.replica.log import encode_command
from polynya.routing.group_locations import BirthMap, GroupLocations
from polynya.service.assembly import CoreRuntime, Shape
from polynya.stream.command import Command, level_of
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.pages.commands import Evict, Return
from polynya.stream.features.profiles.commands import SetProfile
from polynya.stream.features.segments.rules import segments_of
from polynya.stream.parts import Encoding, Producer, SegmentLimits
from polynya.stream.replies import Code, Reply
from polynya.wal import DiskFull, JournalFailed, SnapshotStore


class Node:
    """One node of one core, over all its incarnations."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.disk = world.new_disk(self._crash)
        # seconds of each write, if other than elsewhere
        self.slow: tuple[float, float] | None = None
        self.clock = Clock(5000 * number)
        self.process = Process()
        self.dying: Crash | None = None
        self.folder = Path("/core-0")
        self.life = 0
        self.alive = self.gone = False
        self.begun = 0  # the last life that came so far as to have an engine
        self.heard: dict[int, float] = {}
        self.lives: dict[int, int] = {}  # of the peers
        self.lost: set[int] = set()
        self.faults: list[BaseException] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.stamps: dict[int, int] = {}
        self.parts: dict[
            int, tuple[int, int]
        ] = {}  # group -> (last applied index, number of the command in that entry)
        self.durable: dict[
            int, tuple[int, int]
        ] = {}  # when it died: group -> the last entry that was, and its term
        self.kept: dict[
            int, int
        ] = {}  # … group -> up to which entry it has them, in its snapshot or behind it
        self.tier: SimTier | None = None
        self.engine: CoreRuntime

    @property
    def core(self) -> ReplicatedEngine:
        core = self.engine.core
        assert isinstance(core, ReplicatedEngine)
        return core

    def start_or_say(self) -> str:
        """Start; or why that is refused, and it stays dead."""
        try:
            self.start()
        except (OSError, CorruptData) as fault:
            self.alive = False
            self.disk.kill()
            return type(fault).__name__
        return ""

    def start(self) -> None:
        if self.dying is not None:
            self._crashed()
        self.life += 1
        self.alive = True
        self.process = Process()
        self.process.slow_seconds = self.slow[1] if self.slow else 0.0
        try:
            self.process.run(self._start)
        except Died:
            self._crashed()

    def _start(self) -> None:
        world = self.world
        born = self.number in world.born
        membership = Membership(
            self.number, world.born if born else (), world.placed if born else {}
        )
        storage = open_storage(
            self.folder,
            core=0,
            cores=1,
            groups=GROUPS,
            files=self.disk,
            segment_bytes=world.segment_bytes,
            membership=membership,
        )
        self.begun = self.life
        self.greeter = Greeter(self, storage.journal)
        self.way = SimRpc(self, self.life)
        clock = LogClock(storage.log_ms, boot=self.clock.now_ms, wall=self.clock.log_wall_ms)
        links, seed = Links(self, self.life), partial(world.random.getrandbits, 64)
        cluster = ClusterSettings(
            membership, links, GROUPS, self.clock.now_ms, seed, world.settings, clock.reach
        )
        shape = Shape(
            core=0,
            cores=1,
            groups=GROUPS,
            history=world.history,
            hot_bytes_max=world.hot_bytes_max,
            snapshot_bytes=world.snapshot_bytes,
        )
        self.engine = CoreRuntime(
            storage,
            shape,
            now_ms=clock.now_ms,
            transport=self.way,
            fatal=partial(self._fatal, self.life),
            cluster=cluster,
            locations=GroupLocations(
                self.number, BirthMap(world.born, world.placed), lambda node: node not in self.lost
            ),
            writer=SimWriter(self, storage.journal),
        )
        self.engine.snapshotter._keep_bytes = world.keep_bytes
        self.engine.snapshotter.fold = self._fold
        self.engine.snapshotter._small_streams = world.small_streams
        assert self.engine.service.forwarding is not None
        self.forwarding = self.engine.service.forwarding
        self.forwarding.start()
        assert self.engine.replica_lifecycle is not None
        self.core.replicas.on_dropped += [self.forwarding.gone, self._forget]
        self.reconfiguration = Reconfiguration(self.engine.service.rpc, self.core)
        self.reconciler = PlacementReconciler(
            self.core,
            self.engine.replica_lifecycle,
            self.reconfiguration,
            self.forwarding.directory.locations,
            range(GROUPS + 1),
        )
        self.spawn(self.reconciler.run())
        world.tell(self)
        self.core.on_leadership += [self._led, self.forwarding.led]
        self.forwarding.demand.many, self.forwarding.demand.most = world.follow
        self.core.leadership.follow(
            self.forwarding.demand,
            self.forwarding.directory.locations.may_lead,
            self.forwarding.targets.core_at,
        )
        self.core.leadership.listen(self.way)
        self.engine.repairer.join(self.way, others_of(self.core, self.forwarding.targets.core_at))
        self.core.on_applied, self.core.watched = self._applied, (0,)
        loop = asyncio.get_running_loop()
        self.heard = dict.fromkeys(world.nodes, loop.time())
        self.lost, self.lives, self.stamps, self.parts = set(), {}, {}, {}
        self._keeps_its_word()
        self.levels = FeatureLevels(
            self.core, lambda: world.voters, lambda node: world.release, lambda level: None
        )
        if world.runs_groups:
            self.spawn(self.engine.group_coordinator.run())
        self.background = BackgroundWork(self)
        tier = None if world.store is None else SimTier(self.engine, world.store, self.way)
        self.tier = tier
        self.tasks.update(() if tier is None else tier.tasks())
        self.admin_endpoint = AdminEndpoint(self, None if tier is None else tier.store)
        self._keepalive(self.life)

    def _fatal(self, life: int, error: BaseException) -> None:
        """Let the node die of an error, and note it as a defect unless a disk may fail so."""
        if life != self.life or not self.alive:
            return
        if not isinstance(error, OSError | JournalFailed) or not self.world.disks_fail:
            self.faults.append(error)
        asyncio.get_running_loop().call_soon(self._die_of_it, life, context=NOBODY)

    def _die_of_it(self, life: int) -> None:
        if self.alive and self.life == life:
            self.kill()

    def _keeps_its_word(self) -> None:
        """Check that data durable in the previous incarnation is still there."""
        for number, (index, term) in self.durable.items():
            if self.core.replicas.has(number):
                raft = self.core.members[number].raft
                known = index <= raft.snapshot.index or (
                    index <= raft.log.last and raft.log.term(index) == term
                )
                assert known, (
                    f"node {self.number} has forgotten entry {index} of group {number}, which was "
                    "durable"
                )

    def kill(self, *, power: float | None = None) -> None:
        """Kill the process; with `power` the machine, where that share of unsynced data survives."""
        self.dying = None
        rafts = {number: member.raft for number, member in self.core.members.items()}
        self.durable = {
            number: (raft.durable, raft.log.term(raft.durable) or 0)
            for number, raft in rafts.items()
            if raft.durable >= raft.log.first
        }
        self.kept = {number: held_by(raft) for number, raft in rafts.items()}
        self.alive = False
        self.background.end()
        self.forwarding.close()
        self.core.close()
        assert self.engine.exchange is not None
        self.engine.exchange._packed.clear()  # its timers find nothing of this life's disk to close
        self.engine.exchange.arriving._arrivals.clear()
        tasks = (
            *self.engine.exchange._tasks,
            *self.engine.local.rehydration._tasks,
            *self.tasks,
            *([] if self.tier is None else self.tier.ended()),
        )
        for task in in_order(tasks):
            task.cancel()
        self.tasks.clear()
        self.process.go_on()  # what is left of it ends
        self._switch_off(power)

    def _switch_off(self, power: float | None) -> None:
        self.process.over = True
        if power is None:
            self.disk.kill()
        else:
            self.disk.power_cut(power)

    def _crash(self, crash: Crash) -> None:
        """Crash the node in the middle of its work: it sends and does nothing more."""
        self.alive = False
        self.dying = crash
        self.process.stop()
        asyncio.get_running_loop().call_soon(self._crashed, crash, context=NOBODY)

    def _crashed(self, crash: Crash | None = None) -> None:
        if self.dying is None or crash not in (None, self.dying):
            return
        crash, self.dying = self.dying, None
        self.world.crashes[f"{crash.at} {crash.calls[0] if len(crash.calls) == 1 else 'any'}"] += 1
        if self.begun == self.life:
            self.kill(power=crash.power)
        else:  # before it was anything
            self.process.go_on()
            self._switch_off(crash.power)

    def pause(self, seconds: float, *, timers_first: bool = False) -> None:
        """Pause the node for `seconds`, or until it crashes."""
        process, loop = self.process, asyncio.get_running_loop()
        process.stop()
        loop.call_later(seconds, lambda: process.go_on(timers_first=timers_first), context=NOBODY)

    def lose_disk(self) -> None:
        """Replace the machine by a new one, under the old name. Dead before, and until `start`."""
        assert not self.alive
        self.disk = self.world.new_disk(self._crash)
        self.durable, self.kept = {}, {}
        self.world.older.discard(self.number)

    @property
    def remembers(self) -> bool:
        """Report whether none of its groups is amnesiac."""
        return self.alive and not any(member.raft.amnesiac for member in self.core.members.values())

    def _applied(self, group: int, command: Command, reply: Reply) -> None:
        stamp = getattr(command, "now_ms", 0)
        assert not stamp or stamp >= self.stamps.get(group, 0), "log time goes back"
        self.stamps[group] = max(stamp, self.stamps.get(group, 0))
        index = self.core.members[group].group.applied_index
        before, number = self.parts.get(group, (0, 0))
        self.parts[group] = (index, number + 1 if before == index else 0)
        if isinstance(command, Append):
            self._is_by_its_writer(group, command, reply)
        check_promises(self.core.core_replicas.groups[group].machine, command, reply)
        self.world.applied(group, (index, self.parts[group][1]), command, reply)
        self.engine.local.applied(group, command, reply)

    def _is_by_its_writer(self, group: int, command: Append, reply: Reply) -> None:
        """Assert that a segment of a leased stream has the appends of the node that it names, and
        no others."""
        state = self.core.core_replicas.groups[group]
        stream = state.machine.directory.leased.get(reply.uid)
        segments = None if stream is None else segments_of(stream)
        if segments is not None and reply.code == Code.OK:
            leader = self.world.leaders.get((group, state.term), segments.writer)
            assert leader == segments.writer, (
                f"node {leader} appended to segment {segments.epoch} of {command.name}, whose "
                f"writer is node {segments.writer}"
            )

    async def _fold(self, store: SnapshotStore, jobs: Sequence[Job]) -> None:
        if self.world.fold_seconds:
            await asyncio.sleep(self.world.random.uniform(0.0, self.world.fold_seconds))
        await fold_here(store, jobs)

    def _forget(self, group: int) -> None:
        self.stamps.pop(group, None)
        self.parts.pop(group, None)

    def _led(self, group: int) -> None:
        status = self.core.members[group].raft
        if status.role is Role.LEADER:
            known = self.world.leaders.setdefault((group, status.term), self.number)
            assert known == self.number, (
                f"group {group} has two leaders in term {status.term}: {known} and {self.number}"
            )

    def _keepalive(self, life: int) -> None:
        if life != self.life or not self.alive:
            return
        loop, world = asyncio.get_running_loop(), self.world
        world.open = [stream for stream in world.open if stream.look()]
        for other in list(world.nodes.values()):
            if other is not self:
                world.deliver(
                    self, other.number, partial(other.hear, self.number, life, self.greeter.said())
                )
                if (
                    other.number not in self.lost
                    and loop.time() - self.heard.setdefault(other.number, loop.time())
                    > SILENCE_SECONDS
                ):
                    self.lost.add(other.number)
                    self.core.peers.lost(other.number, self.clock.ms_of(self.heard[other.number]))
        self.levels.look()
        loop.call_later(PULSE_SECONDS, self._keepalive, life)

    def hear(self, peer: int, life: int, said: Greeting) -> None:
        """Note a sign of life. A new life is a loss and a find."""
        if not self.greeter.lets_in(self.world.nodes[peer], said):
            return
        if self.lives.get(peer, life) != life:
            self.core.peers.unreachable(peer)
            self.core.peers.lost(peer)
            self.lost.add(peer)
        self.lives[peer] = life
        self.heard[peer] = asyncio.get_running_loop().time()
        if peer in self.lost:
            self.lost.discard(peer)
            self.core.leadership.found(peer)
            self.core.peers.found(peer)

    # --- what clients do

    async def propose(self, name: str, command: Command) -> Reply:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        service, stamped = self.engine.service, self.engine.local.stamped
        self.process.hand(lambda: service.propose(name, stamped(command), partial(settle, future)))
        try:
            async with asyncio.timeout(6):
                return await future
        except TimeoutError:
            raise OutcomeUnknown("no answer") from None

    async def create(self, name: str) -> Reply:
        return await self.propose(
            name,
            Create(
                name,
                self.engine.service.now_ms(),
                "text/plain",
                Encoding.BYTES,
                segments=self.world.segments,
                profile=self.world.profile_of(name),
            ),
        )

    async def append(self, name: str, payload: bytes, producer: Producer | None = None) -> Reply:
        now_ms = self.engine.service.now_ms()
        return await self.propose(
            name, Append(name, now_ms, "text/plain", raw_batch(payload), producer)
        )

    async def switch(self, name: str, profile: int) -> Reply:
        """Change the profile of a stream."""
        return await self.propose(name, SetProfile(name, profile, self.engine.service.now_ms()))

    async def delete(self, name: str) -> Reply:
        return await self.propose(name, Delete(name, self.engine.service.now_ms()))

    async def read(self, name: str, *, local: bool = False) -> bytes:
        """Read the whole stream, linearizable or local. Raises Unavailable, and NotThere."""
        page = await self._page(
            ReadQuery(name, bytes_max=1 << 22 if local else self.world.page_bytes, local=local)
        )
        spans = list(page.spans)
        while not page.up_to_date and not local:
            page = await self._page(
                ReadQuery(name, page.record, page.byte, bytes_max=self.world.page_bytes)
            )
            spans += page.spans
        return b"".join(bytes(span.payload) for span in spans)

    async def _page(self, query: ReadQuery) -> Page:
        page = await self.process.drive(self.engine.service.read(query))
        if not isinstance(page, Page):
            raise NotThere(f"{query.name} is not there on node {self.number}")
        return page

    async def snapshot(self) -> None:
        await self.engine.snapshotter.run(self.engine.service.now_ms(), self.world.round_pace)

    def snapshot_soon(self) -> None:
        """Start a snapshot beside everything else, if none is under way."""
        if not self.engine.snapshotter.lock.locked():
            self.process.hand(lambda: self.spawn(self._try_snapshot()))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task for this incarnation."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if (
            not task.cancelled()
            and task.exception() is not None
            and not isinstance(task.exception(), Died)
        ):
            self.faults.append(task.exception())  # type: ignore[arg-type]

    async def _try_snapshot(self) -> None:
        try:
            await self.snapshot()
        except (Unavailable, DiskFull):
            return
        except OSError as error:
            self.core.fail(error)

    def state(self) -> dict[int, bytes]:
        """Return the state of all groups without positions of the own journal."""
        return {
            number: placeless(machine) for number, machine in self.engine.local.machines.items()
        }


class World(Network, Steered, Copied):
    """Nodes 1 to `count`, and the network between them. `replicas`: how many of the nodes have a
    group, if not all."""

    def __init__(
        self, seed: int = 0, count: int = 3, replicas: int = 0, store: SimStore | None = None
    ) -> None:
        super().__init__(Random(seed))
        self.store = store
        self.history = 1
        self.drift = 0.01  # by so much clocks may be wrong: see `Settings.clock_drift`
        self.crashes = Counter[str]()  # at a call: moment and call
        self.broken: list[str] = []  # that was promised
        self.older = set[int]()  # nodes that have an older image of theirs
        self.runs_groups = False  # coordinators of consumer groups
        self.decides = False  # slices of ended transactions
        self.compaction: dict[str, CompactionPolicy] | None = None  # by stream; None: no compactor
        self.runs_transactions = False  # their timeouts, and questions for orphans
        self.heard: Callable[[int, Command], None] | None = None  # what a group takes, once
        self.keeps_house, self.receivers = False, dict[str, Receiver]()  # of webhooks, by URL
        # never; and the streams that went, and came back
        self.delta_seconds = 1.0  # between two deltas of a copy
        self.evict_after_ms, self.idled = (
            0,
            Counter[str](),
        )
        self.disks_fail = False  # whether a node may die of that
        self.follow = MANY, MOST  # so many appends, that part of them by one node, and it leads
        self.born = tuple(range(1, count + 1))
        self.placed: dict[int, tuple[int, ...]] = {}
        if replicas:
            self.placed = {
                group: tuple(sorted(self.born[(group + n) % count] for n in range(replicas)))
                for group in range(GROUPS + 1)
            }
        voters = {group: self.placed.get(group, self.born) for group in range(GROUPS + 1)}
        # what all nodes announce; with 1 the rules of the first release stay in force
        self.release = levels.LEVEL if seed % 4 else 1
        self.map = SimMap(1 if replicas else 0, self.born, voters, voters)
        self.segments: SegmentLimits | None = None  # of the streams that nodes create
        self.diskless = 0  # so many thirds of the streams that nodes create are
        self.switches = 0.0  # seconds between two changes of a stream's profile; 0: none
        self.open: list[Stream] = []
        self.knobs = Knobs(seed)  # as usual
        self.segment_bytes = 1 << 14
        self.keep_bytes = 1 << 15
        self.snapshot_bytes = 1 << 13
        self.small_streams = -1
        self.hot_bytes_max = 1 << 20
        self.page_bytes = 1 << 22
        self.cache_bytes, self.states_bytes = 2048, 500
        self.round_pace = self.fold_seconds = 0.0
        self.settings = settings_of
        self.entry_checksums: dict[
            tuple[int, tuple[int, int]], int
        ] = {}  # (group, (index, number in it)) -> what was applied there, and answered
        self.disk_delay = (0.0005, 0.002)
        self.leaders: dict[tuple[int, int], int] = {}
        self.nodes = {number: Node(self, number) for number in self.born}

    def turn(self, knobs: Knobs) -> None:
        """Apply the knobs before the start."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.knobs = knobs
        for name, value in knobs.world.items():
            if hasattr(self, name):
                setattr(self, name, value)
        if self.store is None:
            self.hot_bytes_max = 1 << 20  # nothing would ever make room
        self.settings = lambda *about: msgspec.structs.replace(
            knobs.turn(settings_of(*about)), clock_drift=self.drift
        )
        loop.turn_seconds = knobs.world.get("turn_seconds", 0.0)
        loop.slow_threads(Random(f"threads {knobs.seed}"), knobs.world.get("thread_seconds", 0.0))

    async def start(self) -> World:
        for node in self.nodes.values():
            node.start()
        await self.wait_leaders()
        return self

    @property
    def voters(self) -> tuple[int, ...]:
        """Return all nodes that there are."""
        return tuple(self.nodes)

    async def compaction_policies(self) -> dict[str, CompactionPolicy]:
        """Return the policies of the streams whose keys are compacted now."""
        return dict(self.compaction or {})

    def tell(self, node: Node) -> None:
        """Tell a node of the map, sooner or later."""
        newest, life = self.map, node.life

        def hear() -> None:
            if node.alive and node.life == life:
                node.process.hand(lambda: node.reconciler.adopt(newest))

        if newest.epoch:
            asyncio.get_running_loop().call_later(self.random.expovariate(10), hear, context=NOBODY)

    def redraw(self, **fields: Any) -> None:
        """Replace the map by one with these fields, and tell the nodes."""
        self.map = msgspec.structs.replace(self.map, epoch=self.map.epoch + 1, **fields)
        for node in self.alive():
            self.tell(node)

    def aim(self, group: int, goal: Iterable[int]) -> None:
        """Make these voters the goal of the group."""
        self.redraw(goals={**self.map.goals, group: tuple(sorted(goal))})

    def move(self, group: int, source: Node, target: Node) -> None:
        """Move the group from one node to another."""
        self.aim(group, {*self.map.goals[group], target.number} - {source.number})

    def add_node(self, *, reader: bool = False) -> Node:
        """Start a new node, with a number of its own."""
        number = max(self.nodes) + 1
        node = self.nodes[number] = Node(self, number)
        node.start()
        self.redraw(
            members=(*self.map.members, number),
            readers=(*self.map.readers, *([number] if reader else [])),
        )
        return node

    def alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.alive]

    def disk_seconds(self, node: Node) -> float:
        return self.random.uniform(*(node.slow or self.disk_delay))

    def applied(self, group: int, index: tuple[int, int], command: Command, reply: Reply) -> None:
        """Check that an applied entry and its effects are the same on every node and never change."""
        what = crc32c(encode_command(command) + msgspec.msgpack.encode(reply))
        is_new = reply.code == Code.OK and (group, index) not in self.entry_checksums
        if self.heard is not None and is_new:
            self.heard(group, command)
        self.idled[type(command).__name__] += (
            isinstance(command, Evict | Return)
            and (group, index) not in self.entry_checksums
            and len(reply.detail)
        )
        assert self.entry_checksums.setdefault((group, index), what) == what, (
            f"entry {index} of group {group} is not what it was: {command}"
        )

    def heal(self) -> None:
        super().heal()
        self.disk_delay = CALM
        for node in self.nodes.values():
            node.disk.crash = None
            node.slow, node.process.slow_seconds = None, 0.0

    def profile_of(self, name: str) -> int:
        """Return the profile of a stream that is created: chosen by its name, unless all are
        leased."""
        return int(
            self.segments is None
            and self.has_profiles
            and crc32c(name.encode()) % 3 < self.diskless
        )

    @property
    def has_profiles(self) -> bool:
        """Report whether streams may be diskless."""
        return self.store is not None and self.release >= level_of(SetProfile)

    def leader(self, group: int) -> Node | None:
        return next((node for node in self.alive() if node.core.replicas.is_leader(group)), None)

    def group_of(self, name: str) -> int:
        return self.nodes[1].engine.service.group_of(name)

    async def wait(self, condition: Callable[[], Any], seconds: float = 20.0) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while not condition():
            assert loop.time() < deadline, "what should have come has not come"
            await asyncio.sleep(0.01)

    async def wait_moving(self, condition: Callable[[], Any]) -> None:
        """Wait for a condition while the cluster makes progress: small bounds and slow links take
        time."""
        for _ in range(30):
            before = reached(self.alive())
            try:
                return await self.wait(condition)
            except AssertionError:
                if reached(self.alive()) == before:
                    raise
        raise AssertionError("what should have come is still on its way after minutes")

    async def wait_leaders(self) -> None:
        await self.wait_moving(lambda: all(self.leader(group) for group in range(GROUPS + 1)))

    async def wait_equal(self) -> None:
        """Wait until all living nodes have applied the same entries."""

        def members(group: int) -> list[Node]:
            return [node for node in self.alive() if node.number in self.map.replicas_of(group)]

        def equal() -> bool:
            return all(
                len(
                    {
                        node.core.core_replicas.groups[group].applied_index
                        if node.core.replicas.has(group)
                        else -1
                        for node in members(group)
                    }
                )
                == 1
                for group in range(GROUPS + 1)
            )

        try:
            await self.wait_moving(equal)
        except AssertionError as fault:
            seen = "\n".join(self.seen_of(group) for group in range(GROUPS + 1))
            raise AssertionError(f"{fault}: the replicas do not become equal\n{seen}") from None
        for group in range(GROUPS + 1):
            assert len({node.state()[group] for node in members(group)}) <= 1, "the replicas differ"

    def check(self) -> None:
        """Check the invariants at any moment: equal applied positions of a group mean equal
        states."""
        assert not self.broken, self.broken[0]
        for node in self.nodes.values():
            assert not node.faults, node.faults
        for number in range(GROUPS + 1):
            states: dict[int, bytes] = {}
            self._is_held(number)
            for node in self.alive():
                if not node.core.replicas.has(number):
                    continue
                group = node.core.core_replicas.groups[number]
                state = placeless(group.machine)
                same = states.setdefault(group.applied_index, state) == state
                assert same, f"the replicas of group {number} differ at {group.applied_index}"

    def _is_held(self, number: int) -> None:
        """Check that committed entries are durable on a majority, apart from lost disks."""
        rafts = {
            node.number: node.core.members[number].raft
            for node in self.nodes.values()
            if node.alive and number in node.core.members
        }
        if not rafts:
            return
        newest = max(rafts.values(), key=lambda raft: raft.commit)
        voters = newest.configuration.voters
        if newest.configuration.joint or not voters:
            return

        def holds(voter: int) -> bool:
            raft = rafts.get(voter)
            if raft is None and self.nodes[voter].alive:
                # its replica has left: the group has gone on, with members that are all dead now
                return True
            if raft is None:
                return (
                    not self.nodes[voter].kept
                    or self.nodes[voter].kept.get(number, 0) >= newest.commit
                )
            return held_by(raft) >= newest.commit

        holders = [voter for voter in voters if holds(voter)]
        assert len(holders) > len(voters) // 2, (
            f"entry {newest.commit} of group {number} is committed, and only {holders} of "
            f"{voters} have it"
        )

    async def stop(self) -> None:
        self.check()
        for node in self.alive():
            for task in node.tasks:
                task.cancel()
            node.background.end()
            node.forwarding.close()
            await node.core.drain()
            await node.engine.stop()
            node.engine.close()
