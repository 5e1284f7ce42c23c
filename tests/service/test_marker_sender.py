"""The markers of transactions on their way: what is in flight, what a failed target gets, and what a
new term sends again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from polynya.service.outbox_sender import OutboxSender
from polynya.service.transactions import marker_sender
from polynya.stream.features.forks.commands import AcknowledgeAll
from polynya.stream.features.markers.commands import TxnMarkers
from polynya.stream.features.transactions.commands import TxnAdd, TxnEnd, TxnInit
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Reply

FIRST = 1 << 47
DOWN = RuntimeError("no leader is reachable")


class Group:
    """A group that this core leads, with transactions of two streams in groups 2 and 3."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = Machine(1, 4)
        self.asked: list[tuple[int, Any, Any]] = []
        self.term = 1
        self.timers: list[tuple[float, Any, tuple[Any, ...]]] = []
        self.soon: list[Any] = []
        self.local = SimpleNamespace(led={1: self.machine}, machines={1: self.machine})
        service: Any = SimpleNamespace(
            now_ms=lambda: 99,
            local=self.local,
            proposals=SimpleNamespace(propose_to=self._propose),
        )
        self.sender = OutboxSender(service, lambda group: self.term)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)

    def call_later(self, seconds: float, act: Any, *args: Any) -> Any:
        timer = (seconds, act, args)
        self.timers.append(timer)
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer))

    def call_soon(self, act: Any) -> None:
        self.soon.append(act)

    def _propose(self, group: int, command: Any, done: Any) -> None:
        self.asked.append((group, command, done))

    def commit(self, count: int) -> None:
        """Commit transactions of so many ids."""
        for number in range(count):
            id_, producer = f"t{number}", FIRST + number
            self.machine.apply(TxnInit(id_, 1, 1000))
            self.machine.apply(TxnAdd(id_, producer, 0, 1, [(2, 5, "x"), (3, 6, "y")], [], 2))
            self.machine.apply(TxnEnd(id_, producer, 0, True, 2, 1))
        self.sender.pump()

    def sent(self, target: int) -> list[int]:
        """Return the producers of the markers in flight to a target."""
        return [
            command.producer - FIRST
            for group, command, _ in self.asked
            if group == target and isinstance(command, TxnMarkers)
        ]

    def answer(self, target: int, reply: Reply | BaseException, count: int = 1) -> None:
        for _ in range(count):
            found = next(
                each for each in self.asked if each[0] == target and isinstance(each[1], TxnMarkers)
            )
            self.asked.remove(found)
            found[2](reply)

    def log(self) -> list[list[int]]:
        """Log the acknowledgements, and return their messages."""
        soon, self.soon = self.soon, []
        for act in soon:
            act()
        logged = [each for each in self.asked if isinstance(each[1], AcknowledgeAll)]
        for each in logged:
            self.asked.remove(each)
            each[2](self.machine.apply(each[1]))
        return [each[1].messages for each in logged]

    def tick(self) -> float:
        """Let the next timer end, and return its seconds."""
        seconds, act, args = self.timers.pop(0)
        act(*args)
        return seconds


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(monkeypatch)


def test_acknowledgements_of_one_pass_are_one_entry(group: Group) -> None:
    group.commit(3)
    group.answer(2, Reply(Code.OK), 3)
    group.answer(3, Reply(Code.OK))
    assert group.log() == [[1, 3, 5, 2]]
    states = [group.machine.transactions.get(f"t{number}").state.name for number in range(3)]  # type: ignore[union-attr]
    assert states == ["COMPLETE_COMMIT", "PREPARE_COMMIT", "PREPARE_COMMIT"]
    group.answer(3, Reply(Code.OK), 2)
    assert group.log() == [[4, 6]]
    assert not group.machine.outbox.messages
    assert not group.sender._sending


def test_so_many_are_in_flight(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_sender, "IN_FLIGHT_MAX", 2)
    group.commit(5)
    assert group.sent(2) == [0, 1]
    group.answer(2, Reply(Code.OK))
    assert group.sent(2) == [1, 2]


def test_a_failed_target_is_probed_with_one_message(group: Group) -> None:
    group.commit(4)
    group.answer(2, DOWN, 4)
    assert group.sent(2) == []
    assert len(group.sent(3)) == 4, "the other one goes on"
    assert [group.tick() for _ in range(1)] == [0.1]
    assert len(group.sent(2)) == 1
    pauses = []
    for _ in range(5):
        group.answer(2, DOWN)
        pauses.append(group.tick())
        assert len(group.sent(2)) == 1
    assert pauses == [0.2, 0.4, 0.8, 1.0, 1.0]
    group.commit(5)
    assert len(group.sent(2)) == 1, "new ones wait, too"
    group.answer(2, Reply(Code.OK))
    assert len(group.sent(2)) == 4
    assert sorted([*group.sent(2), group.log()[0][0] // 2]) == [0, 1, 2, 3, 4]


def test_an_evicted_stream_is_asked_again_soon(group: Group) -> None:
    group.commit(1)
    group.answer(2, Reply(Code.EVICTED, detail=[5]))
    assert group.log() == []
    assert group.tick() == 0.1
    group.answer(2, Reply(Code.OK))
    assert group.log() == [[1]]


def test_each_term_sends_again(group: Group) -> None:
    group.commit(2)
    group.answer(2, Reply(Code.OK))
    late = group.asked[:]
    group.term = 2
    group.sender.leadership_changed(1)
    assert group.log() == [], "an acknowledgement of the term before is left to this one"
    group.asked.clear()
    group.sender.pump()
    assert group.sent(2) == group.sent(3) == [0, 1]
    for _, _, done in late:
        done(Reply(Code.OK))
    assert group.log() == [], "answers to the term before"
    group.answer(2, Reply(Code.OK), 2)
    group.answer(3, DOWN, 2)
    group.log()
    group.local.led = {}
    group.sender.leadership_changed(1)
    assert group.timers == []


def test_the_sweep_sends_nothing_twice(group: Group) -> None:
    group.commit(2)
    group.answer(2, DOWN)
    asyncio.run(group.sender.sweep())
    assert group.sent(2) == [1]
    assert group.sent(3) == [0, 1]


def test_what_is_proposed_behind_acknowledgements_need_not_wait_for_them(group: Group) -> None:
    woken: list[int] = []
    markers = group.sender.markers
    markers.wake = woken.append
    group.commit(1)
    group.answer(2, Reply(Code.OK))
    assert not markers.is_acknowledging(1, [1])
    for act in group.soon:
        act()
    assert woken == [1]
    assert markers.is_acknowledging(1, [1])
    assert not markers.is_acknowledging(1, [1, 2]), "the other target has not answered"
    group.soon = []
    group.log()
    assert not markers.is_acknowledging(1, [1]), "it is applied"
