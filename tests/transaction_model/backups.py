"""Backups under transactions: commits are held while all groups are captured; a restore aborts what
is open and gives new producer ids."""

from __future__ import annotations

from copy import copy, deepcopy

from transaction_model import state as s
from transaction_model.coordinator import new_pid
from transaction_model.participant import apply_settle
from transaction_model.state import GroupState
from transaction_model.storage import copied
from transaction_model.world import Process, World

HOLD_MS = 10_000
ROUNDS_MAX = 8


class Backup:
    """A backup, and its copies once it is complete."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.copies: dict[int, GroupState] = {}
        self.is_complete = False
        self.every = [*range(len(world.groups))]

    def take(self) -> Process:
        """Capture without a hold first, then in rounds with one."""
        counted = yield from self._log(self.every, 0)
        if counted and self.is_drained():
            yield from self._capture()
            self.is_complete = yield from self._is_untouched()
        for _ in range(ROUNDS_MAX):
            if self.is_complete:
                return
            yield from self._round()
            yield 1000
        yield from self._release()

    def _round(self) -> Process:
        self.number += 1000  # the count begins again
        yield from self._release()
        if not (yield from self._log(self.held(), self.world.now + HOLD_MS)):
            yield from self._release()
            return
        for _ in range(40):
            if self.is_drained():
                break
            yield 200
        else:
            yield from self._release()
            return
        yield from self._capture()
        yield from self._release()
        untouched = yield from self._is_untouched()
        if untouched and self.world.chance(0.5):
            yield from self._retake()
            untouched = yield from self._is_untouched()
        self.is_complete = untouched

    def held(self) -> list[int]:
        return self.every

    def counted(self) -> list[int]:
        return self.every

    def _log(self, groups: list[int], until_ms: int) -> Process:
        for number in groups:
            reply = None
            for _ in range(5):
                reply = yield self.world.call(number, s.TxnHold(self.number, until_ms), 400)
                if reply is not None:
                    break
            if reply is None:
                return False
        return True

    def _release(self) -> Process:
        yield from self._log(self.every, 0)

    def is_drained(self) -> bool:
        return not any(
            txn.state == s.PREPARE_COMMIT
            for group in self.world.groups
            for txn in group.state.transactions.values()
        )

    def _capture(self) -> Process:
        for number in self.every:
            self.copies[number] = captured(self.world.groups[number].state)
            stalled = self.world.chance(0.15)
            yield self.world.random.randint(3000, 12_000) if stalled else 20 + self.world.delay()

    def _is_untouched(self) -> Process:
        """Ask each group, after the last capture, whether a commit was decided since the hold."""
        for number in self.counted():
            reply = yield self.world.call(number, s.TxnHold(self.number, 0))
            if reply is None or reply.value != (self.number, 0):
                return False
        return True

    def _retake(self) -> Process:
        """A capture was lost after the release: its group is captured alone."""
        yield self.world.random.randint(1, 400)
        number = self.world.random.choice(self.every)
        self.copies[number] = captured(self.world.groups[number].state)


def captured(state: GroupState) -> GroupState:
    made = copy(state)
    made.transactions = deepcopy(state.transactions)
    made.consumers = deepcopy(state.consumers)
    made.streams = {uid: backed_up(stream) for uid, stream in state.streams.items()}
    made.stubs = {name: backed_up(stream) for name, stream in state.stubs.items()}
    made.released = {}
    made.names, made.outbox, made.hold = dict(state.names), dict(state.outbox), s.Hold()
    return made


def backed_up(stream: s.Stream) -> s.Stream:
    """Copy a stream; the index in a backup has all its entries."""
    made = copied(stream)
    made.entries = [entry for entry in stream.entries if is_in_backup(entry)]
    return made


def is_in_backup(entry: s.Entry) -> bool:
    return True


def reborn(state: GroupState, now_ms: int) -> None:
    """Abort what is open, without asking a coordinator; give new producer ids."""
    for uid, stream in state.streams.items():
        for pid, opened in [*stream.open.items()]:
            apply_settle(state, s.TxnSettle(pid, -1, opened.number, False, uid), now_ms)
    for name, group in state.consumers.items():
        for pid, (number, _) in [*group.pending.items()]:
            apply_settle(state, s.TxnSettle(pid, -1, number, False, group=name), now_ms)
    state.pids += s.RESTORED_PIDS
    for txn in state.transactions.values():
        renew(state, txn)
    state.outbox, state.hold = {}, s.Hold()


def renew(state: GroupState, txn: s.Transaction) -> None:
    """Fence the clients of before: no pair of theirs is given again."""
    txn.producer, txn.epoch, txn.previous = new_pid(state), 0, (-1, -1)
    txn.state, txn.messages, txn.streams, txn.groups = s.EMPTY, set(), {}, {}


def restored(backup: Backup, number: int, now_ms: int) -> GroupState:
    state = captured(backup.copies[number])
    reborn(state, now_ms)
    return state


def restore(world: World, backup: Backup) -> None:
    """Put the copies in the place of the groups: a new cluster, of which its messages are none."""
    world.era += 1
    for group in world.groups:
        group.state = restored(backup, group.number, world.now)
        group.crash(0)
    world.recorder.history = world.recorder.history.after_restore(world.now / 1000)
