"""Two clients with one transactional id, in all orders: the machine answers as the model of the
specification does, also where the epochs end."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest
from transaction_model import coordinator
from transaction_model import state as model

from polynya.stream.features.forks.commands import AcknowledgeAll
from polynya.stream.features.markers.commands import TxnMarkers
from polynya.stream.features.transactions import rules
from polynya.stream.features.transactions.commands import (
    TxnAdd,
    TxnAsk,
    TxnEnd,
    TxnExpire,
    TxnInit,
)
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots.encode import machine_from, snapshot_of

CODES = {
    Code.OK: model.Code.OK,
    Code.NOT_FOUND: model.Code.UNKNOWN_ID,
    Code.FENCED: model.Code.FENCED,
    Code.TXN_STATE: model.Code.INVALID,
    Code.ACTIVE: model.Code.INVALID,
    Code.TXN_CONCURRENT: model.Code.CONCURRENT,
}
PRODUCERS = (1 << 47) - (1 << model.PID_SHIFT) - 1  # its first id is 1, and not 0
STEPS = [
    *((who, step) for who in (0, 1) for step in ("init", "again", "add", "commit", "abort")),
    *((0, step) for step in ("expire", "force", "ask", "ack")),
]


class Pair:
    """A machine and a model with the same commands. Each client knows the last pair that it got,
    and the protocol that it speaks."""

    def __init__(self, versions: tuple[int, int], epochs: int = 0) -> None:
        self.machine, self.model = Machine(1, 4), model.GroupState(1)
        self.versions = versions
        self.now_ms = 1000
        self.pairs = [(-1, -1), (-1, -1)]
        self.step(0, "init")
        for _ in range(epochs):
            self.step(0, "init")
        self.trace: list[Any] = []

    def step(self, who: int, step: str) -> None:
        self.now_ms += 10
        getattr(self, step)(who)

    def init(self, who: int) -> None:
        self._init(who, -1, -1)

    def again(self, who: int) -> None:
        self._init(who, *self.pairs[who])

    def add(self, who: int) -> None:
        pair, version = self.pairs[who], self.versions[who]
        if pair == (-1, -1):
            return
        streams, groups = [(2, 5, "kafka/t/0"), (3, 6, "kafka/t/1")], [(3, "g")]
        self._same(
            TxnAdd("id", *theirs(pair), self.now_ms, streams, groups, version),
            model.TxnAdd("id", *pair, version, tuple(streams), tuple(groups)),
        )

    def commit(self, who: int) -> None:
        self._end(who, commit=True)

    def abort(self, who: int) -> None:
        self._end(who, commit=False)

    def expire(self, who: int) -> None:
        self.now_ms += 100
        self._expire(force=False)

    def force(self, who: int) -> None:
        self._expire(force=True)

    def ask(self, who: int) -> None:
        txn = self.model.transactions["id"]
        for number in {max(1, txn.number - 3), max(1, txn.number)}:
            asked = self._apply(TxnAsk(theirs_id(txn.producer), number, self.now_ms))
            expected = coordinator.apply_ask(self.model, model.TxnAsk(txn.producer, number), 0)
            got = None if asked.detail is None else asked.detail[:2]
            want = expected.value
            assert got == want

    def ack(self, who: int) -> None:
        messages = [*self.model.outbox][:1]
        coordinator.apply_acknowledge(self.model, model.Acknowledge(tuple(messages)), 0)
        if messages:
            self._apply(AcknowledgeAll([*self.machine.outbox.messages][:1]))

    def checked(self) -> None:
        """The state, the markers, and what a snapshot restores are the model's."""
        mine = self.machine.transactions.get("id")
        his = self.model.transactions["id"]
        assert mine is not None
        assert mine.pair == theirs((his.producer, his.epoch))
        assert (mine.number, mine.state.name) == (his.number, his.state)
        assert mine.previous == theirs(his.previous)
        sent = [(group, shape(each)) for group, each in self.machine.outbox.messages.values()]
        assert sent == [
            (
                group,
                (
                    theirs_id(each.producer),
                    each.epoch,
                    each.number,
                    each.commit,
                    list(each.uids),
                    list(each.groups),
                ),
            )
            for group, each in self.model.outbox.values()
        ]
        again = machine_from(snapshot_of(self.machine), lambda position, uid: b"")
        assert snapshot_of(again) == snapshot_of(self.machine)
        for part in ("by_producer", "by_message", "owned", "bytes", "idle", "active"):
            assert getattr(again.transactions, part) == getattr(self.machine.transactions, part)

    def _init(self, who: int, producer: int, epoch: int) -> None:
        got = self._same(
            TxnInit("id", self.now_ms, 50, *theirs((producer, epoch))),
            model.TxnInit("id", 50, producer, epoch),
        )
        if got is not None:
            self.pairs[who] = got

    def _end(self, who: int, *, commit: bool) -> None:
        pair, version = self.pairs[who], self.versions[who]
        if pair == (-1, -1):
            return
        got = self._same(
            TxnEnd("id", *theirs(pair), commit, version, self.now_ms),
            model.TxnEnd("id", *pair, commit, version),
        )
        if got is not None and version == 2:
            self.pairs[who] = got

    def _expire(self, *, force: bool) -> None:
        number = self.model.transactions["id"].number
        self._same(
            TxnExpire("id", number, self.now_ms, force), model.TxnExpire("id", number, force)
        )

    def _same(self, mine: Any, his: Any) -> Any:
        reply = self._apply(mine)
        name = {"Init": "init", "Add": "add", "End": "end", "Expire": "expire"}[
            type(his).__name__[3:]
        ]
        expected = getattr(coordinator, f"apply_{name}")(self.model, his, self.now_ms)
        assert CODES[Code(reply.code)] == expected.code, (mine, Code(reply.code), expected)
        if expected.code is not model.Code.OK or expected.value is None:
            return None
        assert reply.detail == (theirs(expected.value) if name != "add" else expected.value)
        return expected.value

    def _apply(self, command: Any) -> Reply:
        return self.machine.apply(command)


def theirs_id(producer: int) -> int:
    return producer if producer == -1 else producer + PRODUCERS


def theirs(pair: tuple[int, int]) -> tuple[int, int]:
    producer, epoch = pair
    return pair if producer == -1 else (theirs_id(producer), epoch)


def shape(command: Any) -> tuple[Any, ...]:
    assert isinstance(command, TxnMarkers)
    return (
        command.producer,
        command.epoch,
        command.number,
        command.commit,
        [*command.uids],
        [*command.groups],
    )


@pytest.fixture(autouse=True)
def early_last_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "EPOCH_LAST", model.EPOCH_LAST)


@pytest.mark.parametrize("versions", [(2, 2), (1, 1), (1, 2)])
def test_all_short_interleavings(versions: tuple[int, int]) -> None:
    for steps in product(STEPS, repeat=3):
        pair = Pair(versions)
        for who, step in steps:
            pair.step(who, step)
        pair.checked()


@pytest.mark.parametrize("versions", [(2, 2), (1, 1), (1, 2)])
def test_long_interleavings_also_where_epochs_end(versions: tuple[int, int]) -> None:
    random = Random(f"interleavings {versions}")
    for _ in range(120):
        pair = Pair(versions, random.randrange(8))
        for _ in range(random.randrange(4, 40)):
            pair.step(*random.choice(STEPS))
            pair.checked()
