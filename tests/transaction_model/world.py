"""The clock, the messages and the groups of the model."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from copy import deepcopy
from random import Random
from typing import Any

from sim.transactions import Recorder

from transaction_model import compaction, coordinator, participant, storage
from transaction_model import state as s
from transaction_model.state import Code, GroupState, Reply

GROUPS = 3
LOG_MS = 3  # an entry is committed
ORPHAN_MS = 16 * 60_000
Answer = Callable[[Reply], None]
Process = Generator[Any, Any, Any]  # yields milliseconds to sleep, or a call

RULES: dict[type, tuple[Any, str]] = {
    s.TxnInit: (coordinator, "apply_init"),
    s.TxnAdd: (coordinator, "apply_add"),
    s.TxnNumber: (coordinator, "read_number"),
    s.TxnEnd: (coordinator, "apply_end"),
    s.TxnExpire: (coordinator, "apply_expire"),
    s.TxnAsk: (coordinator, "apply_ask"),
    s.TxnHold: (coordinator, "apply_hold"),
    s.Acknowledge: (coordinator, "apply_acknowledge"),
    s.TxnMarkers: (participant, "apply_markers"),
    s.TxnSettle: (participant, "apply_settle"),
    s.TxnOffsets: (participant, "apply_txn_offsets"),
    s.CommitOffsets: (participant, "apply_commit_offsets"),
    s.FetchOffset: (participant, "read_offset"),
    s.JoinGroup: (participant, "apply_join"),
    s.Produce: (participant, "apply_produce"),
    s.CommitSlices: (participant, "apply_slices"),
    s.Create: (participant, "apply_create"),
    s.Delete: (participant, "apply_delete"),
    s.Evict: (participant, "apply_evict"),
    s.Recall: (participant, "apply_recall"),
    s.Fork: (participant, "apply_fork"),
    s.Unpin: (participant, "apply_unpin"),
    s.ReplaceSlices: (storage, "apply_replace"),
    s.Cleaned: (compaction, "apply_cleaned"),
}
OF_CLIENTS = (s.TxnInit, s.TxnAdd, s.TxnEnd)
ONCE = (*OF_CLIENTS, s.TxnOffsets, s.CommitOffsets)  # a connection does not repeat them


def apply(state: GroupState, command: Any, now_ms: int) -> Reply:
    module, name = RULES[type(command)]
    reply: Reply = getattr(module, name)(state, command, now_ms)
    return reply


def ignore(_: Any) -> None:
    pass


class World:
    """The clock, and the messages under way. Faults stop when `faulty` is false."""

    def __init__(self, seed: int, slow: float) -> None:
        self.random = Random(seed)
        self.now = 0
        self.faulty = True
        self.slow = slow  # the share of batches that are long under way
        self.recorder = Recorder(lambda: self.now / 1000)
        self.groups = [Group(self, number) for number in range(GROUPS)]
        self.connection_count = 0  # of connections
        self.era = 0  # a restore ends one: its messages are lost
        self._queue: list[tuple[int, int, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, delay_ms: int, act: Callable[[], None], *, era: int | None = None) -> None:
        self._count += 1
        era = self.era if era is None else era
        heapq.heappush(self._queue, (self.now + delay_ms, self._count, era, act))

    def run(self, until_ms: int) -> None:
        while self._queue and self._queue[0][0] <= until_ms:
            self.now, _, era, act = heapq.heappop(self._queue)
            if era in (self.era, -1):
                act()
        self.now = until_ms

    def spawn(self, process: Process) -> None:
        """Start a process of a client, which goes on after a restore."""
        self._step(process, None, -1)

    def serve(self, process: Process) -> None:
        """Start a process of a node: it ends with its cluster."""
        self._step(process, None, self.era)

    def _step(self, process: Process, value: Any, era: int) -> None:
        if era not in (self.era, -1):
            return
        try:
            wanted = process.send(value)
        except StopIteration:
            return
        if isinstance(wanted, int):
            self.at(wanted, lambda: self._step(process, None, era), era=era)
        else:
            wanted(lambda reply: self._step(process, reply, era))

    def chance(self, share: float) -> bool:
        return self.faulty and self.random.random() < share

    def delay(self, slow: float = 0.01) -> int:
        if self.chance(slow):
            return self.random.randint(500, 12_000)
        return self.random.randint(1, 60) if self.chance(0.3) else self.random.randint(1, 6)

    def call(
        self, group: int, command: Any, timeout_ms: int = 1200, slow: float = 0.01
    ) -> Callable[[Callable[[Reply | None], None]], None]:
        """Send a command to a group; the answer is None after the timeout. Messages between nodes
        may come twice."""
        times = 2 if type(command) not in ONCE and self.chance(0.05) else 1
        receive = self.groups[group].receive
        return self.exchange(lambda answer: receive(command, answer), timeout_ms, slow, times)

    def exchange(
        self, ask: Callable[[Answer], None], timeout_ms: int, slow: float = 0.01, times: int = 1
    ) -> Callable[[Callable[[Reply | None], None]], None]:
        def start(resume: Callable[[Reply | None], None]) -> None:
            waiting = [resume]

            def once(reply: Reply | None) -> None:
                if waiting:
                    waiting.pop()(reply)

            def answered(reply: Reply) -> None:
                if not self.chance(0.03):
                    self.at(self.delay(), lambda: once(reply))

            for _ in range(times):
                if not self.chance(0.02):
                    self.at(self.delay(slow), lambda: ask(answered))
            self.at(timeout_ms, lambda: once(None), era=-1)

        return start


class Group:
    """A group of Raft: its logged state, and the part of its leader that a crash forgets."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.state = GroupState(number)
        self.crash(0)

    def crash(self, down_ms: int) -> None:
        self.up_at = self.world.now + down_ms
        self.term = getattr(self, "term", 0) + 1
        self.began = getattr(
            self.world, "connection_count", 0
        )  # older connections are of former terms
        self.newest: dict[str, int] = {}  # transactional id -> age of its connection
        self.packs: dict[int, list[tuple[s.Produce, Answer]]] = {}
        self.sent: dict[int, int] = {}  # messages of the outbox, and when
        self.asked: set[tuple[int, int]] = set()
        self.stale = deepcopy(self.state.transactions)  # as a deposed leader knows them

    def receive(self, command: Any, answer: Answer) -> None:
        if self.world.now < self.up_at:
            return
        if isinstance(command, OF_CLIENTS) and self.is_of_old_connection(command):
            answer(Reply(Code.NOT_COORDINATOR))
        elif isinstance(command, s.Produce) and self._is_diskless(command.uid):
            self._pack(command, answer)
        else:
            self.propose(command, answer)

    def propose(self, command: Any, answer: Answer) -> None:
        term = self.term
        self.world.at(LOG_MS, lambda: self._commit(term, command, answer))

    def _commit(self, term: int, command: Any, answer: Answer) -> None:
        if term != self.term:
            if self.world.random.random() < 0.5:
                return  # the next leader does not have the entry
            answer = ignore
        reply = apply(self.state, command, self.world.now)
        if reply.code is Code.OTHER_OPEN and isinstance(command, s.Produce):
            self.world.serve(settle(self.world, self, command.uid, command.pid, reply.value))
        answer(reply)

    def is_of_old_connection(self, command: Any) -> bool:
        """Report whether the connection is older than another of this id, or than the term. A
        request with another epoch is judged by its epoch alone, and changes nothing."""
        if not command.born:
            return False
        txn = self.state.transactions.get(command.id)
        current = txn is not None and (txn.producer, txn.epoch) == (command.producer, command.epoch)
        if not current and command.producer != -1:
            return False
        if command.born <= self.began or command.born < self.newest.get(command.id, 0):
            return True
        self.newest[command.id] = command.born
        return False

    def _is_diskless(self, uid: int) -> bool:
        stream = self.state.streams.get(uid)
        return stream is not None and stream.diskless

    def _pack(self, command: s.Produce, answer: Answer) -> None:
        """Put the batch into the next pack of its stream; it is uploaded, then committed."""
        pack = self.packs.get(command.uid)
        if pack is None:
            pack = self.packs[command.uid] = []
            delay = self.world.random.randint(20, 300) + self.world.delay(0.05)
            self.world.at(30, lambda: self.packs.pop(command.uid, None))
            self.world.at(30 + delay, lambda: self._commit_pack(command.uid, pack))
        pack.append((command, answer))

    def _commit_pack(self, uid: int, pack: list[tuple[s.Produce, Answer]]) -> None:
        def answered(reply: Reply) -> None:
            for (_, answer), each in zip(pack, reply.value, strict=True):
                answer(each)

        if self.world.now >= self.up_at:
            self.propose(s.CommitSlices(uid, tuple(command for command, _ in pack)), answered)

    def pump(self) -> None:
        """Send what is in the outbox and was not acknowledged."""
        for message, (target, markers) in [*self.state.outbox.items()]:
            if self.world.now - self.sent.get(message, -1000) >= 500:
                self.sent[message] = self.world.now
                self.world.serve(deliver(self.world, self, message, target, markers))


def deliver(
    world: World, group: Group, message: int, target: int, markers: s.TxnMarkers
) -> Process:
    """Deliver markers; streams that are evicted are recalled before they are repeated."""
    reply = yield world.call(target, markers, slow=0.03)
    if reply is not None and reply.code is Code.EVICTED:
        for name in reply.value:
            yield world.call(target, s.Recall(name))
        group.sent.pop(message, None)
    elif reply is not None:
        yield world.call(group.number, s.Acknowledge((message,)))


def settle(world: World, group: Group, uid: int, pid: int, number: int) -> Process:
    """Ask the coordinator of an open transaction, and end it by the answer."""
    if (uid, pid) in group.asked:
        return
    group.asked.add((uid, pid))
    reply = yield ask(world, s.TxnAsk(pid, number))
    group.asked.discard((uid, pid))
    if reply is not None and reply.value is not None:
        commit, epoch = reply.value
        yield world.call(group.number, s.TxnSettle(pid, epoch, number, commit, uid), slow=0.1)


def ask(world: World, command: s.TxnAsk) -> Any:
    return world.call(command.producer >> s.PID_SHIFT, command)
