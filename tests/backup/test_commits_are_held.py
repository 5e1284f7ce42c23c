"""Backups in the middle of commits: after a restore each transaction is whole or not there at all,
in its streams and its consumer group. The hold of commits and its count are what makes it so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from unittest import mock

import pytest
from sim.code_edits import edited_function
from worlds.backup import ALL, BackedUp, FakeSource, taken
from worlds.cold import GROUPS
from worlds.stream import kafka_producer
from worlds.transactions import data_batch, stored

from polynya.backup import commit_hold, writer
from polynya.backup.commit_hold import CommitHold
from polynya.base.errors import Unavailable
from polynya.base.names import group_of
from polynya.objectstore import MemoryStore
from polynya.recovery.from_backup import FromBackup
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import TxnProduce
from polynya.stream.features.consumer_groups.commands import OffsetEntry, TxnOffsets
from polynya.stream.features.forks.commands import Acknowledge
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.markers.commands import TxnMarkers
from polynya.stream.features.transactions import rules
from polynya.stream.features.transactions.commands import TxnAdd, TxnEnd, TxnInit
from polynya.stream.machine import Machine
from polynya.stream.parts import ABORTED, CONTROL, TRANSACTIONAL, Encoding
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots.encode import machine_from, write_image
from polynya.stream.snapshots.restore_history import Survey, reborn

SEEDS = 12
TOPIC = bytes(16)
NAMES = [f"kafka/t/{number}" for number in range(8)]
Steps = Iterator[None]


class Client:
    """A client of one transactional id; each step is one entry of a log."""

    def __init__(self, transactions: Transactions, number: int) -> None:
        self.world, self.number = transactions, number
        self.id, self.group = f"id{number}", f"readers{number}"
        self.owner_group = 1 + number % GROUPS
        self.sequences = dict.fromkeys(NAMES, 0)
        self.steps = self.run()

    def run(self) -> Steps:
        apply, random = self.world.apply, self.world.random
        detail = apply(self.owner_group, TxnInit(self.id, self.world.now, 900_000)).detail
        self.producer, self.epoch = detail
        count = 0
        while True:
            count += 1
            names = random.sample(NAMES, random.randint(2, 3))
            yield
            added = apply(self.owner_group, self.add(names))
            for name in names:
                yield
                self.write(name, count, added.detail)
            yield
            self.offset(count, added.detail)
            commit = random.random() < 0.6
            yield from self.end(commit)
            while self.world.machine(self.owner_group).transactions.get(self.id).is_active:  # type: ignore[union-attr]
                yield
                self.world.deliver(self.owner_group)
            if commit:
                self.world.committed.add((self.number, count))
            self.world.whole[self.number, count] = set(names)

    def add(self, names: list[str]) -> TxnAdd:
        streams = [(group_of(name, GROUPS), self.world.uids[name], name) for name in names]
        groups = [(self.world.group_of_readers(self.group), self.group)]
        return TxnAdd(self.id, self.producer, self.epoch, self.world.now, streams, groups, 2)

    def write(self, name: str, count: int, number: int) -> None:
        first = self.sequences[name]
        self.sequences[name] = first + 1
        value = b"%d.%d" % (self.number, count)
        batch = data_batch(self.producer, first, value, epoch=self.epoch)
        command = TxnProduce(
            name,
            self.world.now,
            stored(batch, 1, TRANSACTIONAL),
            kafka_producer(self.producer, self.epoch, first, 1),
            self.world.uids[name],
            number,
        )
        assert self.world.apply(group_of(name, GROUPS), command).code == Code.OK

    def offset(self, count: int, number: int) -> None:
        entry = OffsetEntry(TOPIC, 0, count, -1, "")
        command = TxnOffsets(
            self.group, self.world.now, self.producer, self.epoch, number, -1, "", [entry]
        )
        owner_group = self.world.group_of_readers(self.group)
        assert self.world.apply(owner_group, command).code == Code.OK

    def end(self, commit: bool) -> Steps:
        while True:
            yield
            end = TxnEnd(self.id, self.producer, self.epoch, commit, 2, self.world.now)
            reply = self.world.apply(self.owner_group, end)
            if reply.code != Code.TXN_HELD:
                assert reply.code == Code.OK, reply
                self.producer, self.epoch = reply.detail
                self.sequences = dict.fromkeys(NAMES, 0)
                return


class Transactions:
    """Clients that transact while `source` is asked, and the clock of all groups."""

    def __init__(self, seed: int, *, stalls: bool, pace: int) -> None:
        self.tier, self.random, self.stalls = BackedUp(), Random(seed), stalls
        self.pace = pace  # steps of clients beside a request of the backup, at most
        self.uids = {name: self.create(name) for name in NAMES}
        self.committed: set[tuple[int, int]] = set()
        self.whole: dict[tuple[int, int], set[str]] = {}
        self.clients = [Client(self, number) for number in range(3)]
        self.source = FakeSource(self.tier)
        self.source.before_capture = lambda group: self.go_on()
        self.source.before_commits = lambda group, hold_ms: self.go_on()

    @property
    def now(self) -> int:
        return self.tier.world.now

    def machine(self, group: int) -> Machine:
        return self.tier.world.machines()[group]

    def group_of_readers(self, group: str) -> int:
        return group_of(f"consumer-group/{group}", GROUPS)

    def create(self, name: str) -> int:
        command = Create(name, self.now, "", Encoding.KAFKA)
        return self.apply(group_of(name, GROUPS), command).uid

    def apply(self, group: int, command: Command) -> Reply:
        return self.tier.world.apply(group, command)

    def deliver(self, group: int) -> None:
        """Deliver some message of a group's outbox."""
        messages = [
            (number, target, command)
            for number, (target, command) in self.machine(group).outbox.messages.items()
            if isinstance(command, TxnMarkers)
        ]
        if messages:
            number, target, command = self.random.choice(messages)
            assert self.apply(target, command).code == Code.OK
            self.apply(group, Acknowledge(number))

    def go_on(self) -> None:
        for _ in range(self.random.choice((0, 1, self.pace // 3, self.pace))):
            next(self.random.choice(self.clients).steps)
        self.tier.world.now += self.random.randint(1, 30)
        if self.stalls and self.random.random() < 0.03:
            self.tier.world.now += 12_000

    async def back_up(self) -> dict[int, Machine] | None:
        """Return the restored machines, once what was under way has arrived; None: no backup."""
        for _ in range(40):
            self.go_on()
        repository = MemoryStore()
        try:
            manifest, _ = await taken(self.source, repository)
        except Unavailable:
            return None
        states = FromBackup(repository, manifest, lambda key: key, has_store=True)
        found = [await states.state(group) for group in ALL]
        survey = Survey()
        for each in found:
            survey.add(each.image, each.term)
        machines = {}
        for each in found:
            reborn(each.image, survey, now_ms=each.log_ms)
            machines[each.image.group] = machine_from(
                write_image(each.image), lambda position, uid, hot=each.hot: hot[position]
            )
        for number, machine in machines.items():
            for target, command in list(machine.outbox.messages.values()):
                assert isinstance(command, TxnMarkers), number
                assert machines[target].apply(command).code == Code.OK
        return machines


def torn(machines: dict[int, Machine], transactions: Transactions) -> list[str]:
    """Return what is wrong with restored transactions."""
    found: dict[tuple[int, int], set[str]] = {}
    wrong = []
    for name in NAMES:
        stream = machines[group_of(name, GROUPS)].directory.streams[name]
        if stream.kafka is not None and stream.kafka.open:
            wrong.append(f"{name} has an open transaction")
        for batch in stream.hot or ():
            if not batch.flags & (CONTROL | ABORTED):
                client, _, count = bytes(batch.payload).rpartition(b".")
                key = int(client[-1:]), int(count.rstrip(b"\0"))
                found.setdefault(key, set()).add(name)
    for client in transactions.clients:
        owner = machines[transactions.group_of_readers(client.group)]
        group = owner.consumer_groups.by_id.get(client.group)
        position = max((entry.offset for entry, _ in group.entries()), default=0) if group else 0
        newest = max((count for number, count in found if number == client.number), default=0)
        if position != newest:
            wrong.append(f"{client.group} is at {position}; its last transaction is {newest}")
    for key, names in sorted(found.items()):
        if key in transactions.whole and transactions.whole[key] != names:
            wrong.append(f"{key} is in {sorted(names)} of {sorted(transactions.whole[key])}")
        if key in transactions.whole and key not in transactions.committed:
            wrong.append(f"{key} was aborted")
    return wrong


def play(seeds: range, *, stalls: bool, pace: int = 30) -> tuple[int, list[str]]:
    """Return how many backups were made, and what was torn in the first that was not whole."""
    made = 0
    for seed in seeds:
        transactions = Transactions(seed, stalls=stalls, pace=pace)
        with (
            mock.patch.object(writer, "ROUND_SECONDS", 0),
            mock.patch.object(commit_hold, "LOOK_SECONDS", 0),
        ):
            machines = asyncio.run(transactions.back_up())
        if machines is not None:
            made += 1
            # all that was under way ends, so that each transaction is known
            for _ in range(60):
                transactions.go_on()
            found = torn(machines, transactions)
            if found:
                return made, found
    return made, []


def test_a_backup_under_commits_is_made_and_whole() -> None:
    made, found = play(range(SEEDS), stalls=False)
    assert not found, found
    assert made == SEEDS, "the hold lets a backup end while clients go on"


def test_a_hold_that_ends_early_is_found_by_the_count() -> None:
    made, found = play(range(100, 100 + SEEDS), stalls=True)
    assert not found, found
    assert made


DEFECTS = {
    "commits are neither held nor counted": (
        CommitHold,
        "_is_untouched",
        "return found.backup == self.round and not found.commits",
        "return True",
    ),
    "a commit is not counted": (
        rules,
        "_decide",
        "machine.transactions.hold.commits += 1",
        "pass",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_without_it_a_transaction_is_torn(defect: str) -> None:
    owner, name, old, new = DEFECTS[defect]
    with mock.patch.object(owner, name, edited_function(getattr(owner, name), old, new)):
        _, found = play(range(200, 230), stalls=False, pace=120)
    assert found, "a defect was not found"
