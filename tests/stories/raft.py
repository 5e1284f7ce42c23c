"""Story scripts of a group: commands in, trace out. A line is a command; the indented lines below
it are its effects.

    group 1 2 3 [learners=4] [readers=5] [auto=1]   create members, old enough to vote; they campaign on command, or on their own
    time MS                                 pass: messages arrive, writes are synced at once (heartbeats are not shown)
    wait MS                                 pass: nothing arrives, nothing is synced; timers fire
    run                                     run until nothing is in flight, in no time
    deliver [A>B …]                         deliver all messages, or those of a link
    drop [A>B …]                            lose them
    cut A>B … | heal                        lose all later messages of a link
    sync N                                  make the writes of N durable
    full N                                  undo the writes of N: its disk is full
    crash N [KEPT] | wipe N | start N       lose unsynced writes except KEPT frames; or all, of a member that never votes
    propose N TEXT … | read N | campaign N | transfer N M | snapshot N [keep=K]
    lost N M [silent=MS] | found N M        report M lost or found to N
    sends N M | takes N M                   tell N that a large message from M is arriving, or one to M is leaving
    change N voters=1,2 [learners=3] [readers=4]
    show N …                                part, term, log, peers"""

from __future__ import annotations

import shlex
from collections.abc import Callable

import msgspec
from sim.raft_checks import show_configuration
from worlds.raft import SETTINGS, Disk, Member, World, commands, text_of

from polynya.raft import Configuration, Message


def run(text: str) -> str:
    """The script with its trace."""
    story, lines = Story(), []
    for line in text.splitlines():
        if not line.startswith("    "):
            lines.append(line)
            if line and not line.startswith("#"):
                lines += [f"    {happened}" for happened in story.step(shlex.split(line))]
    return "\n".join(lines) + "\n"


class Story:
    def __init__(self) -> None:
        self.world = World(Configuration((1,)))
        self.cut: set[tuple[int, int]] = set()
        self.held: list[Message] = []

    def step(self, words: list[str]) -> list[str]:
        verb, plain = words[0], [word for word in words[1:] if "=" not in word]
        named = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        self.world.trace = []
        COMMANDS[verb](self, plain, named)
        self.settle()
        return self.world.trace

    def settle(self) -> None:
        self.world.settle()
        self.world.network = [
            message
            for message in self.world.network
            if (message.sender, message.to) not in self.cut
        ]

    def member(self, number: str) -> Member:
        return self.world.members[int(number)]

    def say(self, text: object) -> None:
        assert self.world.trace is not None
        self.world.trace.append(str(text))

    # --- commands ---------------------------------------------------------------------------------

    def group(self, plain: list[str], named: dict[str, str]) -> None:
        settings = (
            SETTINGS if named.pop("auto", "") else msgspec.structs.replace(SETTINGS, priority=0)
        )
        self.world = World(_configuration({"voters": ",".join(plain)} | named), settings=settings)
        self.world.trace = []
        for node in self.world.identity.configuration.members:
            self.world.add(node)
        self.world.now = settings.election_ms

    def time(self, plain: list[str], named: dict[str, str]) -> None:
        end = self.world.now + float(plain[0])
        self.until_quiet()
        while (due := max(self.world.next_deadline(), self.world.now)) <= end:
            self.world.now = due + 0.001
            self.world.tick()
            self.until_quiet()
        self.world.now = max(self.world.now, end)
        assert self.world.trace is not None
        self.world.trace = [line for line in self.world.trace if " Heartbeat" not in line]

    def wait(self, plain: list[str], named: dict[str, str]) -> None:
        end = self.world.now + float(plain[0])
        while (due := max(self.world.next_deadline(), self.world.now)) <= end:
            self.world.now = due + 0.001
            self.world.tick()
            self.settle()
        self.world.now = max(self.world.now, end)

    def until_quiet(self, *_: object) -> None:
        self.settle()
        while self.world.network or any(member.pending for member in self.world.members.values()):
            self.deliver([], {})
            for member in self.world.members.values():
                member.sync()
            self.settle()

    def deliver(self, plain: list[str], named: dict[str, str]) -> None:
        taken = self._take(plain)
        first = int(named.get("first", len(taken)))
        self.world.network = taken[first:] + self.world.network
        for message in taken[:first]:
            self.world.deliver(message)
            self.settle()

    def drop(self, plain: list[str], named: dict[str, str]) -> None:
        self._take(plain)

    def _take(self, links: list[str]) -> list[Message]:
        wanted = [_link(word) for word in links]
        taken = [
            message
            for message in self.world.network
            if not wanted or (message.sender, message.to) in wanted
        ]
        self.world.network = [
            message
            for message in self.world.network
            if all(message is not other for other in taken)
        ]
        return taken

    def hold(self, plain: list[str], named: dict[str, str]) -> None:
        self.held += self._take(plain)

    def release(self, plain: list[str], named: dict[str, str]) -> None:
        self.world.network += self.held
        self.held = []

    def cut_links(self, plain: list[str], named: dict[str, str]) -> None:
        self.cut |= {_link(word) for word in plain}

    def heal(self, plain: list[str], named: dict[str, str]) -> None:
        self.cut = set()

    def sync(self, plain: list[str], named: dict[str, str]) -> None:
        self.member(plain[0]).sync()

    def full(self, plain: list[str], named: dict[str, str]) -> None:
        self.say(f"first entry that is gone: {self.member(plain[0]).lose_writes()}")

    def crash(self, plain: list[str], named: dict[str, str]) -> None:
        self.member(plain[0]).crash(int(plain[1]) if len(plain) > 1 else 0)

    def wipe(self, plain: list[str], named: dict[str, str]) -> None:
        member = self.member(plain[0])
        member.crash()
        member.disk = Disk()

    def start(self, plain: list[str], named: dict[str, str]) -> None:
        self.member(plain[0]).start()

    def propose(self, plain: list[str], named: dict[str, str]) -> None:
        member = self.member(plain[0])
        texts = [text[0] * int(text[2:]) if text[1:2] == "*" else text for text in plain[1:]]
        self._answer(member.live.propose(commands(*texts), member.now_ms))

    def read(self, plain: list[str], named: dict[str, str]) -> None:
        member = self.member(plain[0])
        self._answer(member.live.read(self.world.checks.token(), member.now_ms))

    def campaign(self, plain: list[str], named: dict[str, str]) -> None:
        member = self.member(plain[0])
        member.live.campaign(member.now_ms)

    def transfer(self, plain: list[str], named: dict[str, str]) -> None:
        member = self.member(plain[0])
        self._answer(member.live.transfer(int(plain[1]), member.now_ms))

    def snapshot(self, plain: list[str], named: dict[str, str]) -> None:
        self.member(plain[0]).take_snapshot(keep=int(named.get("keep", "0")))

    def change(self, plain: list[str], named: dict[str, str]) -> None:
        member = self.member(plain[0])
        self._answer(member.live.change(_configuration(named), member.now_ms))

    def add(self, plain: list[str], named: dict[str, str]) -> None:
        for number in plain:
            self.world.add(int(number))

    def lost(self, plain: list[str], named: dict[str, str]) -> None:
        member = self.member(plain[0])
        member.live.peer_lost(
            int(plain[1]), member.now_ms - int(named.get("silent", "0")), member.now_ms
        )

    def found(self, plain: list[str], named: dict[str, str]) -> None:
        member = self.member(plain[0])
        member.live.peer_found(int(plain[1]), member.now_ms)

    def sends(self, plain: list[str], named: dict[str, str]) -> None:
        member = self.member(plain[0])
        member.live.peer_sends(int(plain[1]), member.now_ms)

    def takes(self, plain: list[str], named: dict[str, str]) -> None:
        member = self.member(plain[0])
        member.live.peer_takes(int(plain[1]), member.now_ms)

    def show(self, plain: list[str], named: dict[str, str]) -> None:
        for number in plain:
            raft = self.member(number).live
            entries = " ".join(
                text_of(entry) for entry in raft.log.entries(raft.log.cached, raft.log.last + 1)
            )
            asleep = " asleep" if raft.quiescent else ""
            self.say(
                f"{number} {raft.role.name.lower()}{asleep} term={raft.term} vote={raft.vote} "
                f"commit={raft.commit} durable={raft.durable}"
            )
            self.say(
                f"  {show_configuration(raft.configuration)}; log after {raft.log.cached - 1}: "
                f"{entries}"
            )
            for node, peer in raft.peers.items():
                self.say(
                    f"  {node}: {peer.mode.name.lower()} match={peer.match} next={peer.next} "
                    f"inflight={len(peer.inflight)}"
                )

    def _answer(self, refusal: object) -> None:
        if refusal is not None:
            self.say(f"declined: {refusal.name.lower()}")  # type: ignore[attr-defined]


def _configuration(named: dict[str, str]) -> Configuration:
    parts = {
        name: tuple(int(number) for number in numbers.split(",") if number)
        for name, numbers in named.items()
    }
    return Configuration(
        parts.get("voters", ()), (), parts.get("learners", ()), parts.get("readers", ())
    )


def _link(word: str) -> tuple[int, int]:
    sender, _, to = word.partition(">")
    return int(sender), int(to)


COMMANDS: dict[str, Callable[[Story, list[str], dict[str, str]], None]] = {
    "group": Story.group,
    "time": Story.time,
    "wait": Story.wait,
    "run": Story.until_quiet,
    "deliver": Story.deliver,
    "drop": Story.drop,
    "hold": Story.hold,
    "release": Story.release,
    "cut": Story.cut_links,
    "heal": Story.heal,
    "sync": Story.sync,
    "full": Story.full,
    "crash": Story.crash,
    "wipe": Story.wipe,
    "start": Story.start,
    "propose": Story.propose,
    "read": Story.read,
    "campaign": Story.campaign,
    "transfer": Story.transfer,
    "snapshot": Story.snapshot,
    "change": Story.change,
    "add": Story.add,
    "lost": Story.lost,
    "found": Story.found,
    "sends": Story.sends,
    "takes": Story.takes,
    "show": Story.show,
}
