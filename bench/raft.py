"""What agreement costs: an append in the leader and in a follower of three voters, by batch size,
and a thousand groups that sleep."""

from __future__ import annotations

import argparse
import gc
from collections import defaultdict
from time import process_time, thread_time

from polynya.raft import (
    NEVER,
    Configuration,
    Effects,
    Entry,
    Identity,
    Message,
    Raft,
    RestoredMember,
    Settings,
    Snapshot,
    decode_message,
    encode_block,
    encode_message,
)
from polynya.raft.messages import Append

BIRTH = RestoredMember(Snapshot(0, 0, Configuration((1, 2, 3))))
PAYLOAD = b"x" * 300
SETTINGS = Settings()


class Member:
    """One member and the CPU time that it and its messages took."""

    def __init__(self, node: int, group: int = 1) -> None:
        self.ready: list[Raft] = []
        self.raft = Raft(
            Identity(group, node, node * 7919 + group), BIRTH, SETTINGS, now_ms=0, ready=self.ready
        )
        self.seconds = 0.0
        self.codec_seconds = 0.0

    def turn(self, now_ms: int, messages: list[Message], proposals: list[Entry]) -> Effects:
        begin = thread_time()
        for message in messages:
            self.raft.step(message, now_ms)
        if proposals:
            self.raft.propose(proposals, now_ms)
        effects = self.raft.take()
        if effects.committed:
            self.raft.applied_to(effects.committed[-1].index)
        self.seconds += thread_time() - begin
        return effects

    def synced(self, ticket: int, now_ms: int) -> Effects:
        begin = thread_time()
        self.raft.persisted(ticket, now_ms)
        self.ready.clear()
        effects = self.raft.take()
        if effects.committed:
            self.raft.applied_to(effects.committed[-1].index)
        self.seconds += thread_time() - begin
        return effects


class Group:
    """Three members whose messages arrive at the next turn, and whose writes are synced at its
    end."""

    def __init__(self) -> None:
        self.members = {node: Member(node) for node in (1, 2, 3)}
        self.now_ms = SETTINGS.election_ms
        self.inbox: dict[int, list[Message]] = defaultdict(list)
        self.frames = 0

    def elect(self) -> None:
        self.members[1].raft.campaign(self.now_ms)
        for _ in range(8):
            self.turn([])

    def turn(self, proposals: list[Entry]) -> None:
        inbox, self.inbox = self.inbox, defaultdict(list)
        for node, member in self.members.items():
            effects = member.turn(self.now_ms, inbox[node], proposals if node == 1 else [])
            self.carry(member, effects.messages)
            while effects.ticket:
                effects = member.synced(effects.ticket, self.now_ms)
                self.carry(member, effects.messages)

    def carry(self, member: Member, messages: list[Message]) -> None:
        """Over the wire: a block of entries is encoded once for both followers."""
        blocks: dict[int, bytes] = {}
        for message in messages:
            begin = thread_time()
            if type(message) is Append:
                block = blocks.get(id(message.entries)) or blocks.setdefault(
                    id(message.entries), encode_block(message.entries)
                )
                data = encode_message(message, block)
            else:
                data = encode_message(message)
            between = thread_time()
            arrived = decode_message(data)
            member.codec_seconds += between - begin
            self.members[message.to].codec_seconds += thread_time() - between
            self.inbox[message.to].append(arrived)
            self.frames += 1


def append_cost(batch: int, count: int) -> None:
    best: tuple[float, ...] = ()
    for _ in range(3):
        group = Group()
        group.elect()
        for member in group.members.values():
            member.seconds = member.codec_seconds = 0.0
        group.frames = 0
        gc.collect()
        for _ in range(count // batch):
            group.turn([Entry(PAYLOAD) for _ in range(batch)])
        turns = 0
        while group.members[1].raft.applied < count // batch * batch:
            group.turn([])
            turns += 1
            assert turns < 100, "all is committed in the end"
        leader, follower = group.members[1], group.members[2]
        total = count // batch * batch
        per = 1e6 / total
        found = (
            leader.seconds * per,
            follower.seconds * per,
            leader.codec_seconds * per,
            follower.codec_seconds * per,
            group.frames / total,
        )
        best = min(best or found, found)
    print(
        f"  {batch:5} {best[0]:12.2f} {best[1]:12.2f} {best[2]:18.2f} {best[3]:18.2f} "
        f"{best[4]:14.3f}"
    )


def sleep_cost(groups: int) -> None:
    """All members of many groups in one process, from birth through election to sleep, then ten
    seconds of nothing."""
    members = {(group, node): Member(node, group) for group in range(groups) for node in (1, 2, 3)}
    now_ms = 1000
    for group in range(groups):
        members[group, 1].raft.campaign(now_ms)
    beats, busy = 0, process_time()
    while any(member.raft.deadline_ms < NEVER for member in members.values()):
        now_ms += SETTINGS.heartbeat_ms
        for member in members.values():
            if member.raft.deadline_ms <= now_ms:
                member.raft.tick(now_ms)
        beats += settle(members, now_ms)
    begin, spent = process_time(), process_time() - busy
    due = sum(member.raft.deadline_ms < now_ms + 10_000 for member in members.values())
    print(
        f"  {groups} groups of three: {beats} messages until all slept ({spent:.1f} s of CPU); "
        f"then {due} deadlines in the next ten seconds"
    )
    group = members[0, 1].raft
    group.propose([Entry(PAYLOAD)], now_ms + 10_000)
    settle(members, now_ms + 10_000)
    print(
        f"  and one that wakes commits in {(process_time() - begin) * 1e3:.1f} ms of CPU, commit "
        f"{group.commit}"
    )


def settle(members: dict[tuple[int, int], Member], now_ms: int) -> int:
    sent = 0
    while True:
        messages: list[Message] = []
        for member in members.values():
            while member.ready:
                member.ready.clear()
                effects = member.turn(now_ms, [], [])
                messages += effects.messages
                while effects.ticket:
                    effects = member.synced(effects.ticket, now_ms)
                    messages += effects.messages
        if not messages:
            return sent
        sent += len(messages)
        for message in messages:
            members[message.group, message.to].raft.step(message, now_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--appends", type=int, default=40_000)
    parser.add_argument("--groups", type=int, default=1000)
    options = parser.parse_args()
    print("three voters, payloads of 300 bytes; microseconds of CPU per entry, best of three")
    print(
        f"  {'batch':>5} {'leader':>12} {'a follower':>12} {'codec, leader':>18} "
        f"{'codec, follower':>18} {'messages/entry':>14}"
    )
    for batch in (1, 8, 32, 128, 512):
        append_cost(batch, options.appends)
    sleep_cost(options.groups)


if __name__ == "__main__":
    main()
