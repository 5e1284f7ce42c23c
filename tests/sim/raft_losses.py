"""Groups that start under faults and lose disks. `python tests/sim/raft_losses.py FIRST_SEED
COUNT` runs all kinds by hand.

*Births*: all members start empty, at different times, on links that lose and delay. One disk is
lost at any moment, or right at the first election; nodes crash and restart. The group always
has a leader once all is healthy.

*Seconds*: a second disk is lost while the first member still relearns. By then a majority has
an entry of a leader that was elected without the first. Once all is healthy the group has a
leader and all data.

*Moves*: the group's members change all the while. A second disk is lost once all members know
everything again. Data of a removed member goes with it. Once all is healthy the group has a
leader and all data, whatever its initial members were.

*Losses*: disks are lost at any time, also those of a majority. Then the group may stay without
a leader. It never gets one that lacks committed entries, and no member votes twice. One member
keeps its disk: a group that lost all disks cannot be told from a new one."""

from __future__ import annotations

import random
import sys

from sim.raft_chaos import Chaos
from sim.raft_checks import Checks
from worlds.raft import SETTINGS, Disk, Member, World

from polynya.raft import Configuration, HardState, Message
from polynya.raft.membership import possible

DEAF_MS = 1500
FORGETFUL = HardState(amnesiac=True)
SIZES = ((1, 2, 3), (1, 2, 3), (1, 2), (1, 2, 3, 4, 5))


class LossChecks(Checks):
    """Committed entries were on the disks of a majority, but may be lost by the time of the check."""

    def _majority_has(self, member: Member, index: int, term: int) -> None:
        return


class Births(Chaos):
    """Groups under faults. `losses`: the times of disk losses, in ms from the start. Messages to
    one incarnation of a node reach no other, as with connections."""

    SIZES: tuple[tuple[int, ...], ...] = SIZES

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.voters = self.NODES = random.Random(f"size {seed}").choice(self.SIZES)
        self.world = World(Configuration(self.voters), seed=seed)
        self.world.checks = LossChecks(SETTINGS)
        self.world.installs_at_once = False
        self.losses: list[float] = []
        self.at_first_lead = self.draw.random() < 0.7
        self.draw_losses()
        late = self.draw.choice((1.0, 50.0, 600.0))
        # is heard, and hears no peer until there is a leader
        deaf = self.draw.choice(self.voters) if self.draw.random() < 0.7 else 0
        self.deaf = {(other, deaf) for other in self.voters if deaf and other != deaf}
        for node in self.voters:
            self.world.add(node)
            self.lose(node)
            self.at(self.draw.uniform(0, late), lambda node=node: self.comes(node))  # type: ignore[misc]

    def draw_losses(self) -> None:
        if not self.at_first_lead:
            self.losses = [self.draw.uniform(0, self.draw.choice((100, 500, 3000)))]

    def look(self) -> None:
        """Schedule disk losses by what has happened, at each step."""
        if self.at_first_lead and self.world.checks.leaders:
            self.at_first_lead = False
            self.losses = [self.world.now + self.draw.uniform(0, self.draw.choice((1, 30, 300)))]

    def able(self) -> list[int]:
        """List the members whose disk may be lost now."""
        return list(self.voters)

    def lose(self, node: int) -> None:
        """Lose all that the node's disk has; the node is down then."""
        member = self.world.members[node]
        if member.raft is not None:
            member.crash()
        member.disk = Disk()
        member.disk.frames.append(("hard", FORGETFUL))
        member.disk.sync(1)
        self.down.add(node)

    def comes(self, node: int) -> None:
        if node in self.down:
            self.begin(node)

    def arrive(self, message: Message, life: int) -> None:
        if (
            (message.sender, message.to) in self.deaf
            and self.world.now < DEAF_MS
            and not self.world.checks.leaders
        ):
            return
        if life == self.world.members[message.to].life:
            super().arrive(message, life)

    def fault(self) -> None:
        self.look()
        while self.losses and self.world.now >= self.losses[0]:
            del self.losses[0]
            able = self.able()
            if able:
                self.lose(self.draw.choice(able))
        self.disturb()

    def disturb(self) -> None:
        swarm, draw = self.swarm, self.draw
        for chance, action in (
            (swarm.crash, self.crash),
            (0.1, self.restart),
            (swarm.cut, self.partition),
            (0.1, self.heal_some),
            (swarm.snapshot, self.snapshot),
            (swarm.transfer, self.transfer),
            (swarm.propose, self.propose),
            (0.2, self.liveness),
        ):
            if draw.random() < chance:
                action()

    def partition(self) -> None:
        node = self.draw.choice(self.voters)
        others = [other for other in self.voters if other != node]
        self.cut |= {pair for other in others for pair in ((node, other), (other, node))}


class Seconds(Births):
    """Two losses without any crash after the first: a restarted member with a partial vote would
    have to hear all others again."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.first = self.second = 0

    def draw_losses(self) -> None:
        return

    def look(self) -> None:
        up = self.up()
        if self.first and not self.second and len(up) == len(self.voters) and self.may_go():
            self.second = self.draw.choice([node for node in self.voters if node != self.first])
            self.lose(self.second)
            self.begin(self.second)
        elif (
            not self.first
            and self.world.checks.committed_last > 4
            and not any(member.live.amnesiac for member in up)
        ):
            for member in up:
                member.take_snapshot()
            while self.down:
                self.restart()
            self.first = self.draw.choice(self.voters)
            self.lose(self.first)
            self.begin(self.first)

    def may_go(self) -> bool:
        """Report whether the first has heard all members, and a majority has an entry above its
        reported term."""
        first = self.world.members[self.first].live
        if first.amnesiac and (first.loss.awaiting_term or first.loss.election_holdoff_until_ms):
            return False
        have = [raft.log.term(raft.durable) or 0 for raft in (member.live for member in self.up())]
        return sum(term > first.loss.reported_term for term in have) > len(self.voters) // 2

    def crash(self) -> None:
        if not self.first:
            super().crash()


class Losses(Births):
    """Several losses at any time, from the first promise of the member that keeps its disk on."""

    def draw_losses(self) -> None:
        self.at_first_lead = False
        self.losses = sorted(self.draw.uniform(0, 6000) for _ in range(self.draw.randint(2, 12)))

    def able(self) -> list[int]:
        keeps = self.voters[self.world.seed % len(self.voters)]
        if not self.world.members[keeps].disk.hard_state.term:
            return []
        return [node for node in self.voters if node != keeps]

    def heal(self) -> None:
        """Heal all faults. The group may stay without a leader, but must not lose entries."""
        self.calm, self.cut = True, set()
        while self.down:
            self.restart()
        self.forward(SETTINGS.election_ms * 20)
        leader = self.world.leader()
        if leader is not None:
            leader.live.propose([], leader.now_ms)
            self.forward(SETTINGS.election_ms * 4)


class Moves(Births):
    """The group starts with some of the nodes, and only these lose disks: the others are created
    from scratch."""

    SIZES = ((1, 2, 3), (1, 2, 3), (1, 2, 3, 4, 5))

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.NODES = (*self.voters, *range(max(self.voters) + 1, 7))
        self.born = self.voters
        self.away: set[int] = set()  # they are in no configuration that counts, and have nothing
        for node in self.NODES[len(self.voters) :]:
            self.world.add(node)
            self.drop(node)

    def draw_losses(self) -> None:
        self.at_first_lead = False

    def drop(self, node: int) -> None:
        """Drop a removed replica, as its node does: it receives no more messages of the group."""
        self.world.members[node].crash()
        self.away.add(node)
        self.down.discard(node)

    def look(self) -> None:
        self.come_and_go()
        up, down = self.up(), self.down - self.away
        if (
            not down
            and self.world.leader() is not None
            and not any(self.forgets(member) for member in up)
            and self.draw.random() < 0.04
        ):
            node = self.draw.choice(self.born)
            if node not in self.away:
                self.lose(node)
                self.begin(node)

    @staticmethod
    def forgets(member: Member) -> bool:
        return member.live.amnesiac or member.disk.hard_state.amnesiac

    def come_and_go(self) -> None:
        """Start nodes that became members. Stop removed ones some time after a leader's settled
        configuration excludes them."""
        named: set[int] = set()
        for member in self.up():
            for configuration in possible(member.live):
                named.update(configuration.members)
        for node in sorted(self.away & named):
            self.away.discard(node)
            self.down.add(node)
            self.begin(node)
        for leader in self.leaders():
            if leader.live.status().settled:
                for member in self.up():
                    out = member.node not in leader.live.configuration.members
                    if (
                        out
                        and not any(member.node in each.members for each in possible(member.live))
                        and self.draw.random() < 0.5
                    ):
                        self.drop(member.node)

    def disturb(self) -> None:
        super().disturb()
        if self.draw.random() < 0.2:
            self.change()

    def change(self) -> None:
        """Change to at least three voters: with fewer no majority exists without the amnesiac."""
        for leader in self.leaders():
            old = leader.live.configuration
            peers = leader.live.peers
            pool = sorted(
                {
                    *old.voters,
                    *(node for node in old.learners if node in peers and peers[node].match),
                }
            )
            voters = tuple(self.draw.sample(pool, self.draw.choice((3, 3, len(pool)))))
            rest = [node for node in self.NODES if node not in voters]
            learners = tuple(self.draw.sample(rest, min(len(rest), self.draw.choice((0, 1, 2)))))
            leader.live.change(Configuration(voters, learners=learners), leader.now_ms)

    def partition(self) -> None:
        node = self.draw.choice(self.NODES)
        others = [other for other in self.NODES if other != node]
        self.cut |= {pair for other in others for pair in ((node, other), (other, node))}

    def restart(self) -> None:
        self.down -= self.away
        super().restart()

    def forward(self, ms: float) -> None:
        super().forward(ms)
        self.come_and_go()


KINDS = (Births, Seconds, Moves, Losses)


def run(seed: int, kind: type[Births], steps: int = 250) -> Births:
    """Run the seed. Raises AssertionError with the violated invariant."""
    world = kind(seed)
    try:
        world.run(steps)
        world.heal()
    except AssertionError as failure:
        raise AssertionError(
            f"seed {seed} of {kind.__name__}, {world.swarm}: {failure}"
        ) from failure
    return world


def main(first: int, count: int) -> int:
    failed = committed = led = 0
    for kind in KINDS:
        for seed in range(first, first + count):
            try:
                world = run(seed, kind)
            except AssertionError as failure:
                failed += 1
                print(failure)
            else:
                committed += world.world.checks.committed_last
                led += world.world.leader() is not None
    print(
        f"{len(KINDS) * count} seeds, {failed} failed: {committed} entries committed, {led} have "
        "a leader in the end"
    )
    return failed


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
