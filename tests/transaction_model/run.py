"""A run of the model: its worlds, their processes, and the final reads."""

from __future__ import annotations

import sys
from copy import deepcopy
from dataclasses import dataclass

from sim.transactions import TransactionHistory

from chaos.transaction_history import (
    COMMITTED,
    FORK,
    ROWS,
    TABLE,
    Final,
    check_transactions,
)
from transaction_model import compaction, readers, storage
from transaction_model import state as s
from transaction_model import world as cluster
from transaction_model.backups import Backup, restore, restored
from transaction_model.clients import (
    Front,
    Instance,
    Topic,
    fetch_position,
    offset_writer,
    pipeline,
    plain_commits,
    plain_writer,
    writer,
)
from transaction_model.world import ORPHAN_MS, Group, Process, World

FAULTS_MS, END_MS = 25_000, 125_000
INPUT, OUTPUT = "input", "output"
PIPELINE, SIDE = (1, "pipeline"), (2, "side")


@dataclass(frozen=True)
class Shape:
    """The parts that a world has beside writers and storage."""

    streams: int = 4
    writers: int = 3
    version: int = 0  # of the protocol; 0: both
    slow: float = 0.08  # the share of batches that are long under way
    compacted: bool = False
    evictions: bool = False
    recreated: bool = False
    operators: bool = False
    consumers: bool = False
    backups: bool = False


WORLDS = {
    "plain": Shape(),
    "evicted": Shape(streams=9, writers=5, slow=0.4, evictions=True, operators=True),
    "recreated": Shape(evictions=True, recreated=True),
    "ghosts": Shape(streams=1, writers=4, version=1, slow=0.3),
    "compacted": Shape(streams=2, writers=4, compacted=True),
    "operated": Shape(operators=True),
    "consumers": Shape(consumers=True, operators=True),
    "backups": Shape(streams=6, writers=5, consumers=True, backups=True),
}


class Run:
    def __init__(self, world: str, seed: int) -> None:
        self.shape = WORLDS[world]
        self.world = World(seed, self.shape.slow)
        self.random = self.world.random
        self.fronts = [Front(self.world) for _ in range(2)]
        self.topics: dict[str, Topic] = {}
        self.uids = 0
        self.backups: list[Backup] = []

    def play(self) -> list[str]:
        """Return the violations."""
        self._start()
        world = self.world
        if self.shape.backups:
            world.run(FAULTS_MS * 2 // 3)
            complete = [backup for backup in self.backups if backup.is_complete]
            if complete:
                restore(world, self.random.choice(complete[-2:]))
                for front in self.fronts:
                    front.numbers.clear()
        world.run(FAULTS_MS)
        world.faulty = False
        world.recorder.history.healed = FAULTS_MS / 1000
        world.run(END_MS)
        final = self._final()
        return check_transactions(self.history(), final) or self._backup_violations()

    def _backup_violations(self) -> list[str]:
        """Restore each complete backup, and check what is there."""
        complete = [backup for backup in self.backups if backup.is_complete]
        if not complete:
            return []
        history = deepcopy(self.history()).after_restore(self.world.now / 1000)
        found = []
        for backup in complete:
            states = [restored(backup, number, self.world.now) for number in sorted(backup.copies)]
            found += [
                f"backup {backup.number}: {violation}"
                for violation in check_transactions(history, final_of(states))
            ]
        return found

    def history(self) -> TransactionHistory:
        history = self.world.recorder.history
        if self.shape.consumers:
            history.pipelines = {PIPELINE[1]: (self.topics[INPUT].key, self.topics[OUTPUT].key)}
        return history

    def _start(self) -> None:
        for number in range(self.shape.streams):
            self.create(f"t{number}", number % len(self.world.groups), diskless=number % 2 == 1)
        if self.shape.consumers:
            self.create(INPUT, 0, diskless=True)
            self.create(OUTPUT, 2, diskless=False)
        spawn = self.world.spawn
        for number in range(self.shape.writers):
            version = self.shape.version or 1 + number % 2
            spawn(self._instances(f"w{number}", version))
        if self.shape.consumers:
            spawn(self._instances("p0", version=self.random.randint(1, 2), kind="pipeline"))
            spawn(self._instances("o0", version=self.random.randint(1, 2), kind="offsets"))
            spawn(plain_commits(self.world, SIDE))
            spawn(plain_writer(self.world, self.topics[INPUT], "plain"))
        for group in self.world.groups:
            spawn(self._duties(group))
            spawn(self._storage(group))
            spawn(self._crashes(group))
        spawn(self._observer())
        if self.shape.recreated:
            spawn(self._recreated("t3"))
            spawn(self._recreated("t2"))
        if self.shape.operators:
            spawn(self._operator())
            spawn(self._asker())
        if self.shape.backups:
            self.world.serve(self._backup())

    def create(self, name: str, group: int, *, diskless: bool) -> None:
        self.uids += 1
        compacted = self.shape.compacted
        topic = self.topics[name] = Topic(group, self.uids, name, compacted)
        if compacted:
            self.world.recorder.history.compacted.add(topic.key)
        state = self.world.groups[group].state
        state.streams[self.uids] = s.Stream(topic.uid, name, diskless, compacted)
        state.names[name] = topic.uid

    def _instances(self, name: str, version: int, kind: str = "writer") -> Process:
        """Run one instance after the other; sometimes the next begins before the end of one."""
        number = 0
        while self.world.faulty:
            number += 1
            bumps = version == 2 or self.random.random() < 0.5
            instance = Instance(self.world, self.fronts, name, number, version, bumps=bumps)
            running = [True]
            self.world.spawn(self._life(instance, kind, running))
            patience = self.random.randint(1000, 6000) if self.random.random() < 0.4 else 60_000
            while running and patience > 0:
                yield 200
                patience -= 200

    def _life(self, instance: Instance, kind: str, running: list[bool]) -> Process:
        rounds = self.random.randint(2, 9)
        if kind == "pipeline":
            begin, end = self.topics[INPUT], self.topics[OUTPUT]
            yield from pipeline(instance, begin, end, PIPELINE, rounds)
        elif kind == "offsets":
            yield from offset_writer(instance, SIDE, rounds)
        else:
            topics = {name: topic for name, topic in self.topics.items() if name != OUTPUT}
            yield from writer(instance, topics, rounds)
        instance.dead = True
        running.clear()

    def _duties(self, group: Group) -> Process:
        """The leader's work: the outbox, timeouts, orphans."""
        world = self.world
        while True:
            yield 25 if world.faulty else 250
            if world.now < group.up_at:
                continue
            group.pump()
            for txn in [*group.state.transactions.values()]:
                if txn.state == s.ONGOING and world.now > txn.since_ms + txn.timeout_ms:
                    world.serve(call(world, group.number, s.TxnExpire(txn.id, txn.number)))
            for stream in [*group.state.streams.values()]:
                for pid, opened in [*stream.open.items()]:
                    if world.now - opened.since_ms > ORPHAN_MS:
                        world.serve(cluster.settle(world, group, stream.uid, pid, opened.number))

    def _crashes(self, group: Group) -> Process:
        while self.world.faulty:
            yield self.random.randint(1000, 9000)
            if self.world.faulty:
                group.crash(self.random.randint(100, 2500))

    def _storage(self, group: Group) -> Process:
        """Flush, merge, decide, page and evict; each plan is proposed later."""
        tables: dict[int, int] = {}
        while self.world.faulty:
            yield self.random.randint(20, 120)
            streams = [*group.state.streams.values()]
            stream = self.random.choice(streams) if streams else None
            if stream is None:
                continue
            draw = self.random.random()
            command = None
            if draw < 0.3:
                command = storage.flush_plan(stream, beyond=self.random.random() < 0.5)
            elif draw < 0.4:
                command = storage.merge_plan(stream, self.random)
            elif draw < 0.55:
                command = storage.decide_plan(stream)
            elif draw < 0.6:
                command = storage.page_plan(stream)
            elif draw < 0.75:
                self.world.serve(self._table(stream, tables))
            elif draw < 0.85 and (not self.shape.compacted or self.random.random() < 0.1):
                self.world.serve(self._fork(group, stream))
            elif self.shape.compacted:
                self.world.serve(self._compact(group, stream))
            elif self.shape.evictions:
                command = storage.evict_plan(stream)
            if command is not None:
                self.world.serve(self._proposed(group.number, command))

    def _compact(self, group: Group, stream: s.Stream) -> Process:
        """Propose the slices of a pass one after the other, then what it cleaned."""
        made = compaction.plan(stream)
        if made is None:
            return
        replies = []
        for command in made.slices:
            yield self.random.randint(1, 300)
            replies.append((yield self.world.call(group.number, command)))
        if compaction.is_complete(replies, made):
            cleaned = s.Cleaned(stream.uid, made.began, made.end)
            yield self.world.call(group.number, cleaned)

    def _proposed(self, group: int, command: object) -> Process:
        if isinstance(command, s.Evict):
            yield self.random.randint(100, 3000)  # the copy is uploaded
        yield self.world.call(group, command, slow=0.15)

    def _table(self, stream: s.Stream, tables: dict[int, int]) -> Process:
        """Claim packs for a table; its job runs later."""
        claimed = readers.claim(stream, tables.get(stream.uid, 0))
        tables[stream.uid] = claimed.end
        era, key = self.world.era, f"{stream.name}#{stream.uid}"
        yield self.random.randint(10, 3000)
        if era == self.world.era and claimed.end > claimed.begin:
            found = readers.table_rows(claimed)
            self.world.recorder.poll(TABLE, "job", key, claimed.begin, claimed.end, found)

    def _fork(self, group: Group, stream: s.Stream) -> Process:
        """Fork a stream, and read later what the fork inherits."""
        point, era = stream.stable_end, self.world.era
        reply = yield self.world.call(group.number, s.Fork(stream.uid, point))
        if reply is None or reply.code is not s.Code.OK:
            return
        yield self.random.randint(10, 4000)
        state = group.state
        source = state.streams.get(stream.uid) or state.released.get(stream.uid)
        if era == self.world.era and source is not None:
            found = readers.inherited_rows(source, point)
            key = f"{stream.name}#{stream.uid}"
            self.world.recorder.poll(FORK, "fork", key, 0, point, found)
            while True:
                unpinned = yield self.world.call(group.number, s.Unpin(stream.uid, point))
                if unpinned is not None or not self.shape.compacted:
                    break

    def _observer(self) -> Process:
        """Read as Kafka's client and as a reader of rows, from where the last poll ended."""
        positions: dict[tuple[int, str, int], int] = {}
        while True:
            yield self.random.randint(40, 120) if self.world.faulty else 5000
            for group in self.world.groups:
                for stream in group.state.streams.values():
                    self._ends(stream)
                    if self.world.faulty and self.random.random() < 0.5:
                        self._poll(stream, positions)
            if self.shape.consumers and self.world.faulty:
                self.world.spawn(fetch_position(self.world, SIDE, "elsewhere"))

    def _ends(self, stream: s.Stream) -> None:
        key = f"{stream.name}#{stream.uid}"
        self.world.recorder.ends(key, stream.stable_end, stream.next)

    def _poll(self, stream: s.Stream, positions: dict[tuple[int, str, int], int]) -> None:
        kind = self.random.choice((COMMITTED, ROWS))
        key = f"{stream.name}#{stream.uid}"
        if self.shape.compacted and self.random.random() < 0.3:
            batches, aborted, end = readers.fetched(stream, 0, 10**9)
            found = readers.client_filter(batches, aborted)
            self.world.recorder.whole_poll(COMMITTED, key, end, found)
        reader = (self.world.era, kind, stream.uid)
        begin = positions.get(reader, 0)
        if self.random.random() < 0.15:
            begin = self.random.randint(0, stream.stable_end)
        if kind == COMMITTED:
            batches, aborted, end = readers.fetched(stream, begin, self.random.randint(2, 12))
            found = readers.client_filter(batches, aborted)
            found = [pair for pair in found if pair[0] >= begin]
        else:
            end = min(stream.stable_end, begin + self.random.randint(2, 12))
            found = readers.rows(stream, begin, end)
        if end > begin:
            positions[reader] = end
            self.world.recorder.poll(kind, kind, key, begin, end, found)

    def _recreated(self, name: str) -> Process:
        """Delete a topic and create it again."""
        while self.world.faulty:
            yield self.random.randint(1500, 6000)
            old = self.topics[name]
            reply = yield self.world.call(old.group, s.Recall(name))
            reply = yield self.world.call(old.group, s.Delete(old.uid))
            if reply is not None and reply.code is s.Code.OK and self.world.faulty:
                diskless = self.random.random() < 0.5
                self.create(name, old.group, diskless=diskless)

    def _operator(self) -> Process:
        """Abort transactions by their ids; the request may be late."""
        while self.world.faulty:
            yield self.random.randint(1500, 5000)
            group = self.random.choice(self.world.groups)
            going = [t for t in group.state.transactions.values() if t.state == s.ONGOING]
            if going:
                txn = self.random.choice(going)
                self.world.recorder.force(txn.id)
                command = s.TxnExpire(txn.id, txn.number, force=True)
                self.world.serve(call(self.world, group.number, command, slow=0.5))

    def _asker(self) -> Process:
        """Ask for the outcome of what is open in a stream, and settle it by the answer."""
        while self.world.faulty:
            yield self.random.randint(50, 300)
            group = self.random.choice(self.world.groups)
            opened = [
                (stream.uid, pid, each.number)
                for stream in group.state.streams.values()
                for pid, each in stream.open.items()
            ]
            if opened:
                uid, pid, number = self.random.choice(opened)
                self.world.serve(cluster.settle(self.world, group, uid, pid, number))

    def _backup(self) -> Process:
        number = 0
        while self.world.faulty and not self.world.era:
            yield self.random.randint(500, 2500)
            number += 1
            self.backups.append(Backup(self.world, number))
            yield from self.backups[-1].take()

    def _final(self) -> Final:
        for group in self.world.groups:
            self.world.recorder.hold(f"group {group.number}", held(group.state))
            for stream in group.state.streams.values():
                read = f"{stream.name}#{stream.uid}, as a consumer reads it,"
                self.world.recorder.ends(read, readers.reached(stream), stream.stable_end)
        return final_of([group.state for group in self.world.groups])


def final_of(states: list[s.GroupState]) -> Final:
    """Read all streams as Kafka's client, and all positions."""
    final = Final()
    for state in states:
        for stream in (*state.streams.values(), *state.stubs.values()):
            batches, aborted, _ = readers.fetched(stream, 0, 10**9)
            key = f"{stream.name}#{stream.uid}"
            final.records[key] = readers.client_filter(batches, aborted)
        for name, consumers in state.consumers.items():
            final.positions[name] = dict(consumers.positions)
    return final


def held(state: s.GroupState) -> int:
    streams = (*state.streams.values(), *state.released.values())
    pending = sum(len(each.pending) for each in state.consumers.values())
    return sum(len(stream.open) for stream in streams) + pending + len(state.outbox)


def call(world: World, group: int, command: object, slow: float = 0.01) -> Process:
    yield world.call(group, command, slow=slow)


def play(world: str, seed: int) -> list[str]:
    return Run(world, seed).play()


if __name__ == "__main__":
    name, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for seed in range(first, first + count):
        for violation in play(name, seed)[:4]:
            print(name, seed, violation)  # noqa: T201
