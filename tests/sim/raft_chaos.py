"""A group under faults drawn from a seed: loss, duplication, reordering, delay, one-way partitions,
crashes that lose what was not synced, torn writes, drifting clocks, changes of membership,
snapshots, full disks. `python tests/sim/raft_chaos.py FIRST_SEED COUNT [STEPS]` runs it by hand."""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections.abc import Callable

import msgspec
from worlds.raft import SETTINGS, Member, World, commands

from polynya.raft import Configuration, Message, Role


class Swarm(msgspec.Struct, frozen=True):
    """The severity of this seed's faults. Probabilities are per message, or per step."""

    loss: float
    copy: float
    delay_ms: float
    slow_sync_ms: float
    crash: float
    cut: float
    change: float
    snapshot: float
    transfer: float
    full: float
    propose: float
    read: float

    @classmethod
    def draw(cls, draw: random.Random) -> Swarm:
        def some(most: float) -> float:
            return draw.choice((0.0, most / 4, most))

        return cls(
            loss=some(0.2),
            copy=some(0.2),
            delay_ms=draw.choice((2.0, 20.0, 100.0)),
            slow_sync_ms=draw.choice((1.0, 10.0, 150.0)),
            crash=some(0.02),
            cut=some(0.03),
            change=some(0.03),
            snapshot=draw.choice((0.005, 0.05)),
            transfer=some(0.02),
            full=some(0.02),
            propose=draw.choice((0.05, 0.3)),
            read=draw.choice((0.05, 0.2)),
        )


class Chaos:
    """Steps of a seed. All that is drawn comes from it, so that a seed is a story."""

    NODES = (1, 2, 3, 4, 5)

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.swarm = Swarm.draw(self.draw)
        drift = SETTINGS.clock_drift
        born = self.draw.choice(((1, 2, 3), (1, 2, 3), (1,), (1, 2, 3, 4, 5)))
        readers = tuple(node for node in (5,) if node not in born and self.draw.random() < 0.5)
        self.world = World(Configuration(born, readers=readers), seed=seed)
        for node in self.NODES:
            settings = msgspec.structs.replace(
                SETTINGS,
                priority=self.draw.choice((1, 2, 2)),
                sleep_after_ms=self.draw.choice((0, 200, 1500)),
            )
            self.world.add(
                node, rate=self.draw.choice((1 - drift, 1.0, 1 + drift)), settings=settings
            )
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.counter = itertools.count()
        self.cut: set[tuple[int, int]] = set()
        self.down: set[int] = set()
        self.heard: dict[tuple[int, int], float] = {}
        self.number = 0
        self.calm = False
        self.world.installs_at_once = False

    # --- time -------------------------------------------------------------------------------------

    def at(self, delay_ms: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.world.now + delay_ms, next(self.counter), action))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.fault()
            self.forward(self.draw.expovariate(1 / 15))

    def forward(self, ms: float) -> None:
        """Perform everything that is due in this time, in order."""
        end = self.world.now + ms
        while True:
            self.gather()
            due = min(
                self.events[0][0] if self.events else end + 1,
                max(self.world.next_deadline(), self.world.now),
            )
            if due > end:
                break
            self.world.now = max(self.world.now, due) + 0.001
            while self.events and self.events[0][0] <= self.world.now:
                heapq.heappop(self.events)[2]()
            self.world.tick()
        self.world.now = max(end, self.world.now)

    def gather(self) -> None:
        """End a turn: messages and writes get the time when they arrive."""
        self.world.settle()
        messages, self.world.network = self.world.network, []
        for message in messages:
            life = self.world.members[message.to].life if message.to in self.world.members else 0
            copies = 1 if self.draw.random() >= self.loss(message) else 0
            copies += self.draw.random() < (0 if self.calm else self.swarm.copy)
            for _ in range(copies):
                self.at(
                    self.draw.uniform(0.1, 2 if self.calm else self.swarm.delay_ms),
                    lambda message=message, life=life: self.arrive(message, life),
                )  # type: ignore[misc]
        for member in self.world.members.values():
            if member.installing is not None and "install" not in self.scheduled(member):
                self.scheduled(member).add("install")
                self.at(
                    self.draw.uniform(1, 100),
                    lambda member=member, life=member.life: self.install(member, life),
                )  # type: ignore[misc]
            for ticket, _ in member.pending:
                if ticket not in self.scheduled(member):
                    self.scheduled(member).add(ticket)
                    delay = self.draw.uniform(0.1, 2 if self.calm else self.swarm.slow_sync_ms)
                    self.at(
                        delay,
                        lambda member=member, life=member.life, ticket=ticket: self.sync(
                            member, life, ticket
                        ),
                    )  # type: ignore[misc]

    def scheduled(self, member: Member) -> set[int | str]:
        key = f"scheduled-{member.life}"
        found: set[int | str] = member.__dict__.setdefault(key, set())
        return found

    def loss(self, message: Message) -> float:
        if (message.sender, message.to) in self.cut:
            return 1.0
        return 0.0 if self.calm else self.swarm.loss

    def arrive(self, message: Message, life: int) -> None:
        """Deliver a message to whichever life of the receiver there is. `life`: of the receiver,
        when it was sent."""
        if (message.sender, message.to) not in self.cut:
            self.heard[message.to, message.sender] = self.world.now
            self.world.deliver(message)

    def sync(self, member: Member, life: int, ticket: int) -> None:
        if member.raft is not None and member.life == life:
            member.sync(sum(pending <= ticket for pending, _ in member.pending))

    def install(self, member: Member, life: int) -> None:
        if member.raft is not None and member.life == life:
            self.scheduled(member).discard("install")
            if not self.calm and self.draw.random() < 0.2:
                member.fail_install()
            else:
                member.finish_install()

    # --- faults -----------------------------------------------------------------------------------

    def fault(self) -> None:
        swarm, draw = self.swarm, self.draw
        for chance, action in (
            (swarm.crash, self.crash),
            (0.05, self.restart),
            (swarm.cut, self.partition),
            (0.05, self.heal_some),
            (swarm.change, self.change),
            (swarm.snapshot, self.snapshot),
            (swarm.transfer, self.transfer),
            (swarm.full, self.full_disk),
            (swarm.propose, self.propose),
            (swarm.read, self.read),
            (0.02, self.hiccup),
            (0.2, self.liveness),
        ):
            if draw.random() < chance:
                action()

    def up(self) -> list[Member]:
        return [member for member in self.world.members.values() if member.raft is not None]

    def leaders(self) -> list[Member]:
        return [member for member in self.up() if member.live.role is Role.LEADER]

    def crash(self) -> None:
        member = self.draw.choice(self.up() or [None])  # type: ignore[list-item]
        if member is not None:
            if self.draw.random() < 0.5:
                member.keep_install()
            member.crash(self.draw.choice((0, 0, 1, 2, 100)))
            self.down.add(member.node)

    def restart(self) -> None:
        if self.down:
            node = self.draw.choice(sorted(self.down))
            self.begin(node)

    def begin(self, node: int) -> None:
        self.down.remove(node)
        self.world.members[node].start()
        for other in self.up():
            if other.node != node:
                other.live.peer_lost(node, other.now_ms, other.now_ms)
                other.live.peer_found(node, other.now_ms)

    def partition(self) -> None:
        side = set(self.draw.sample(self.NODES, self.draw.choice((1, 2))))
        one_way = self.draw.random() < 0.4
        for inner in side:
            for outer in set(self.NODES) - side:
                self.cut.add((inner, outer))
                if not one_way:
                    self.cut.add((outer, inner))

    def heal_some(self) -> None:
        self.cut = (
            set()
            if self.draw.random() < 0.5
            else {link for link in sorted(self.cut) if self.draw.random() < 0.5}
        )

    def change(self) -> None:
        for leader in self.leaders():
            old = leader.live.configuration
            caught = [
                node
                for node in old.learners
                if node in leader.live.peers and leader.live.peers[node].match
            ]
            pool = sorted({*old.voters, *caught})
            voters = tuple(self.draw.sample(pool, self.draw.randint(1, len(pool))))
            rest = [node for node in self.NODES if node not in voters]
            learners = tuple(self.draw.sample(rest, self.draw.randint(0, len(rest))))
            readers = tuple(
                node for node in rest if node not in learners and self.draw.random() < 0.2
            )
            leader.live.change(
                Configuration(voters, learners=learners, readers=readers), leader.now_ms
            )

    def snapshot(self) -> None:
        if self.up():
            self.draw.choice(self.up()).take_snapshot(keep=self.draw.choice((0, 5, 30)))

    def transfer(self) -> None:
        for leader in self.leaders():
            leader.live.transfer(self.draw.choice(self.NODES), leader.now_ms)

    def full_disk(self) -> None:
        """Fail the unsynced writes of a full disk and report that to the member."""
        member = self.draw.choice(self.up() or [None])  # type: ignore[list-item]
        if member is not None and member.pending:
            member.lose_writes()

    def propose(self) -> None:
        for leader in self.leaders():
            texts = []
            for _ in range(self.draw.choice((1, 1, 3, 12))):
                self.number += 1
                texts.append(f"c{self.number}" + "x" * self.draw.choice((1, 50, 700)))
            leader.live.propose(commands(*texts), leader.now_ms)

    def read(self) -> None:
        member = self.draw.choice(self.up() or [None])  # type: ignore[list-item]
        if member is not None:
            member.live.read(self.world.checks.token(), member.now_ms)

    def hiccup(self) -> None:
        """Let a member begin an election, or report to it a broken connection over which bytes
        still move."""
        member = self.draw.choice(self.up() or [None])  # type: ignore[list-item]
        if member is not None:
            if self.draw.random() < 0.3:
                member.live.campaign(member.now_ms)
            else:
                peer = self.draw.choice(self.NODES)
                member.live.unreachable(peer, member.now_ms)
                # and bytes that move are no proof of anything
                member.live.peer_takes(peer, member.now_ms)
                member.live.peer_sends(peer, member.now_ms)

    def liveness(self) -> None:
        """Report lost and found peers, as the one check per pair of cores does."""
        for member in self.up():
            for peer in self.NODES:
                silent_ms = self.world.now - self.heard.get((member.node, peer), 0.0)
                if (
                    peer in self.down or (peer, member.node) in self.cut
                ) and silent_ms > SETTINGS.election_ms:
                    member.live.peer_lost(peer, int(member.now_ms - silent_ms), member.now_ms)
                elif peer in member.live.peers and member.live.peers[peer].lost:
                    member.live.peer_found(peer, member.now_ms)

    # --- healing ----------------------------------------------------------------------------------

    def heal(self) -> None:
        """Heal all faults; the group must converge: one leader, new commits, equal members."""
        self.calm = True
        self.cut = set()
        while self.down:
            self.restart()
        self.forward(SETTINGS.election_ms * 12)
        leader = self.world.leader()
        assert leader is not None, f"no leader after healing\n{self.picture()}"
        goal = self.world.checks.committed_last
        for round_ in range(3):
            refusal = leader.live.propose(commands(f"after{round_}"), leader.now_ms)
            assert refusal is None, f"the leader declines: {refusal!r}\n{self.picture()}"
            self.forward(SETTINGS.election_ms)
        assert self.world.checks.committed_last >= goal + 3, (
            f"nothing is committed after healing\n{self.picture()}"
        )
        self.forward(SETTINGS.election_ms * 8)
        configuration = leader.live.configuration
        assert not configuration.joint, "a joint configuration is left without a change"
        for node in configuration.members:
            member = self.world.members[node]
            assert member.applied == self.world.checks.committed_last, (
                f"member {node} is not up to date\n{self.picture()}"
            )
            before = self.world.checks.reads
            member.live.read(self.world.checks.token(), member.now_ms)
            self.forward(SETTINGS.election_ms)
            assert self.world.checks.reads > before, f"member {node} is not read\n{self.picture()}"

    def picture(self) -> str:
        lines = [
            f"{member.node}: {member.raft.status() if member.raft else 'down'}"
            for member in self.world.members.values()
        ]
        return "\n".join(
            [
                str(self.swarm),
                *lines,
                str([m.raft.configuration for m in self.world.members.values() if m.raft]),
            ]
        )


def run(seed: int, steps: int) -> Chaos:
    chaos = Chaos(seed)
    try:
        chaos.run(steps)
        chaos.heal()
    except AssertionError as failure:
        raise AssertionError(f"seed {seed}, {steps} steps, {chaos.swarm}: {failure}") from failure
    return chaos


def main(first: int, count: int, steps: int = 300) -> None:
    committed = elections = reads = 0
    for seed in range(first, first + count):
        chaos = run(seed, steps)
        checks = chaos.world.checks
        committed, elections, reads = (
            committed + checks.committed_last,
            elections + len(checks.leaders),
            reads + checks.reads,
        )
    print(
        f"{count} seeds: {committed} entries committed, {elections} leaders, {reads} reads, "
        "nothing found"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
