"""Limits of producers: the cap of a stream, idleness, and what one costs."""

import sys

import pytest
from worlds.stream import raw_batch

from polynya.base.limits import PRODUCER_EVICT_IDLE_MS, PRODUCER_IDLE_MS
from polynya.stream.commands import Append, Create, Producer
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Reply
from polynya.stream.rules import producers


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(producers, "PRODUCERS_PER_STREAM_MAX", 3)
    machine = Machine(1)
    machine.apply(Create("docs/a", 0, "text/plain", 0))
    return machine


def append(machine: Machine, producer: str, sequence: int, now_ms: int, kind: int = 0) -> Reply:
    return machine.apply(
        Append(
            "docs/a",
            now_ms,
            "text/plain",
            raw_batch(b"x"),
            Producer(producer, 0, sequence, kind=kind),
        )
    )


def known(machine: Machine) -> list[str]:
    stream = machine.lookup("docs/a")
    assert stream is not None
    return list(stream.producers or ())


def test_at_the_cap_the_longest_idle_goes_when_it_was_idle_for_ten_minutes(
    machine: Machine,
) -> None:
    for now_ms, producer in enumerate("abc"):
        assert append(machine, producer, 0, now_ms).code == Code.OK
    assert append(machine, "a", 1, 10).code == Code.OK  # now b is the longest idle
    assert known(machine) == ["b", "c", "a"]
    assert append(machine, "d", 0, PRODUCER_EVICT_IDLE_MS).code == Code.PRODUCER_LIMIT
    assert known(machine) == ["b", "c", "a"]
    assert append(machine, "d", 0, PRODUCER_EVICT_IDLE_MS + 1).code == Code.OK
    assert known(machine) == ["c", "a", "d"]
    assert append(machine, "b", 1, PRODUCER_EVICT_IDLE_MS + 2).code == Code.PRODUCER_GAP


def test_a_new_producer_clears_those_idle_for_a_week(machine: Machine) -> None:
    append(machine, "a", 0, 0)
    append(machine, "b", 0, 5)
    append(machine, "c", 0, PRODUCER_IDLE_MS)
    assert known(machine) == ["b", "c"]
    assert append(machine, "b", 0, PRODUCER_IDLE_MS + 9).code == Code.DUPLICATE


def test_producers_of_two_kinds_with_one_id_are_two(machine: Machine) -> None:
    assert append(machine, "a", 0, 0).code == Code.OK
    assert append(machine, "a", 0, 0, kind=1).code == Code.OK
    assert append(machine, "a", 0, 0, kind=1).code == Code.DUPLICATE
    assert len(known(machine)) == 2


def test_a_producer_of_many_sequences_answers_a_repeat_of_any_of_them(machine: Machine) -> None:
    machine.apply(Append("docs/a", 1, "text/plain", raw_batch(b"x"), Producer("k", 0, 0, 9)))
    reply = machine.apply(Append("docs/a", 2, "text/plain", raw_batch(b"x"), Producer("k", 0, 4)))
    assert (reply.code, reply.producer_sequence, reply.first_record) == (Code.DUPLICATE, 9, 0)
    assert (
        machine.apply(Append("docs/a", 3, "text/plain", raw_batch(b"x"), Producer("k", 0, 10))).code
        == Code.OK
    )


def test_a_producer_with_all_receipts_costs_less_than_a_kilobyte(machine: Machine) -> None:
    for sequence in range(20):
        append(machine, "0123456789abcdef0123456789abcdef", sequence, sequence)
    stream = machine.lookup("docs/a")
    assert stream is not None
    assert stream.producers is not None
    ((key, state),) = stream.producers.items()
    assert sys.getsizeof(stream.producers) + sys.getsizeof(key) + sys.getsizeof(state) < 600
