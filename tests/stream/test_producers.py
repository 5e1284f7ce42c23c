"""Limits of producers: the cap of a stream, idleness, and the memory of one."""

import struct
import sys

import pytest
from worlds.stream import kafka_batch, raw_batch

from polynya.base.levels import RECEIPT_LEVEL
from polynya.base.limits import PRODUCER_EVICT_IDLE_MS, PRODUCER_IDLE_MS, PRODUCER_RECEIPTS
from polynya.stream.features.appends import producers
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.settings.commands import SetLevel
from polynya.stream.machine import Machine
from polynya.stream.parts import Producer
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots.encode import machine_from, snapshot_of


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
    stream = machine.directory.lookup("docs/a")
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
    stream = machine.directory.lookup("docs/a")
    assert stream is not None
    assert stream.producers is not None
    ((key, state),) = stream.producers.items()
    size = sys.getsizeof(stream.producers) + sys.getsizeof(key) + sys.getsizeof(state)
    assert size < 600
    checked = checking()
    for sequence in range(20):
        append(checked, "0123456789abcdef0123456789abcdef", sequence, sequence)
    (with_checksums,) = states_of(checked).values()
    assert sys.getsizeof(with_checksums) - sys.getsizeof(state) == 20, "four bytes for a receipt"


# --- repeats with another body ----------------------------------------------------------------


def checking() -> Machine:
    """Return a machine of a cluster whose nodes all know the checksums."""
    machine = Machine(1)
    machine.apply(SetLevel(RECEIPT_LEVEL))
    machine.apply(Create("docs/a", 0, "text/plain", 0))
    return machine


def send(
    machine: Machine, sequence: int, body: bytes, *, epoch: int = 0, close: bool = False
) -> Reply:
    batch = raw_batch(body) if body else None
    producer = Producer("p", epoch, sequence)
    return machine.apply(Append("docs/a", 1, "text/plain", batch, producer, close=close))


def states_of(machine: Machine) -> dict[str, bytes]:
    stream = machine.directory.lookup("docs/a")
    assert stream is not None
    return stream.producers or {}


def receipts_only(states: dict[str, bytes]) -> dict[str, bytes]:
    """Return the states as a release without checksums keeps them."""
    return {
        key: state[: len(state) - (len(state) - producers.STATE.size) % 28]
        for key, state in states.items()
    }


def test_a_repeat_with_another_body_is_a_conflict_while_its_receipt_is_kept() -> None:
    machine = checking()
    for sequence in range(8):
        assert send(machine, sequence, b"%d" % sequence).code == Code.OK
    before = snapshot_of(machine)
    for sequence in range(8):
        assert send(machine, sequence, b"%d" % sequence).code == Code.DUPLICATE
        other = send(machine, sequence, b"other")
        is_kept = sequence >= 8 - PRODUCER_RECEIPTS
        assert other.code == (Code.PRODUCER_CONFLICT if is_kept else Code.DUPLICATE)
        if is_kept:
            assert (other.received_sequence, other.expected_sequence) == (sequence, 8)
    assert snapshot_of(machine) == before, "nothing was appended"
    assert send(machine, 8, b"8").code == Code.OK
    assert send(machine, 0, b"again", epoch=1).code == Code.OK
    assert send(machine, 0, b"other", epoch=1).code == Code.PRODUCER_CONFLICT


def test_one_kept_by_a_release_without_checksums_is_a_repeat_whatever_its_body() -> None:
    machine = checking()
    for sequence in range(6):
        send(machine, sequence, b"%d" % sequence)
    stream = machine.directory.lookup("docs/a")
    assert stream is not None
    stream.producers = receipts_only(states_of(machine))
    assert send(machine, 5, b"other").code == Code.DUPLICATE
    for newer in range(6, 12):
        assert send(machine, newer, b"%d" % newer).code == Code.OK
        for sequence in range(newer - 4, newer + 1):
            expected = Code.DUPLICATE if sequence < 6 else Code.PRODUCER_CONFLICT
            assert send(machine, sequence, b"other").code == expected
            assert send(machine, sequence, b"%d" % sequence).code == Code.DUPLICATE


def test_a_group_below_the_level_keeps_what_an_older_release_keeps() -> None:
    machine, newer = Machine(1), checking()
    machine.apply(Create("docs/a", 0, "text/plain", 0))
    for sequence in range(7):
        for each in (machine, newer):
            assert send(each, sequence, b"%d" % sequence).code == Code.OK
        assert send(machine, sequence, b"other").code == Code.DUPLICATE
        assert states_of(machine) == receipts_only(states_of(newer))
    assert machine.counters.level == 1
    machine.apply(SetLevel(RECEIPT_LEVEL))
    assert send(machine, 6, b"other").code == Code.DUPLICATE
    send(machine, 7, b"7")
    assert send(machine, 7, b"other").code == Code.PRODUCER_CONFLICT


def test_a_standalone_group_reaches_the_level_with_its_first_such_append() -> None:
    machine = Machine(1)
    machine.counters.standalone = True
    machine.apply(Create("docs/a", 0, "text/plain", 0))
    machine.apply(Append("docs/a", 1, "text/plain", raw_batch(b"x")))
    assert machine.counters.level == 1, "an older release may still start with this folder"
    assert send(machine, 0, b"0").code == Code.OK
    assert machine.counters.level == RECEIPT_LEVEL
    assert send(machine, 0, b"other").code == Code.PRODUCER_CONFLICT


def test_the_tuple_that_closed_the_stream_may_have_any_body() -> None:
    machine = checking()
    send(machine, 0, b"0")
    assert send(machine, 1, b"1", close=True).code == Code.OK
    assert send(machine, 1, b"other", close=True).code == Code.DUPLICATE
    assert send(machine, 1, b"", close=True).code == Code.DUPLICATE
    assert send(machine, 0, b"other").code == Code.CLOSED


def test_a_repeat_without_a_body_and_records_with_keys_are_not_compared() -> None:
    machine = checking()
    send(machine, 0, b"0")
    assert send(machine, 0, b"").code == Code.DUPLICATE
    for payload in (b"a batch with the time of its first attempt", b"and of its second"):
        batch = kafka_batch(1, payload)
        reply = machine.apply(Append("docs/a", 1, "text/plain", batch, Producer("p", 0, 1)))
    assert reply.code == Code.DUPLICATE
    assert send(machine, 2, b"2").code == Code.OK
    assert send(machine, 2, b"other").code == Code.PRODUCER_CONFLICT
    assert send(machine, 1, b"other").code == Code.DUPLICATE
    assert send(machine, 0, b"other").code == Code.PRODUCER_CONFLICT


def test_a_creation_with_a_body_is_compared_too() -> None:
    machine = checking()
    producer = Producer("p", 0, 0)
    machine.apply(Create("docs/b", 0, "text/plain", 0, batch=raw_batch(b"0"), producer=producer))
    for body, code in ((b"0", Code.DUPLICATE), (b"other", Code.PRODUCER_CONFLICT)):
        append = Append("docs/b", 1, "text/plain", raw_batch(body), producer)
        assert machine.apply(append).code == code


def test_a_snapshot_keeps_the_checksums_and_a_cut_drops_those_of_its_receipts() -> None:
    machine = checking()
    for sequence in range(6):
        send(machine, sequence, b"%d" % sequence)
    restored = machine_from(snapshot_of(machine), lambda _position, _uid: b"x")
    assert states_of(restored) == states_of(machine)
    assert send(restored, 5, b"other").code == Code.PRODUCER_CONFLICT
    cut = producers.cut_receipts(states_of(machine), 4)
    assert cut is not None
    assert [row[0] for row in producers.receipts_of(cut["p"])] == [3, 2, 1]
    kept = [producers.crc_of(cut["p"], number) for number in range(4)]
    assert kept == [raw_batch(b"%d" % sequence).crc for sequence in (3, 2, 1)] + [0]


@pytest.mark.parametrize("held", range(PRODUCER_RECEIPTS + 1))
@pytest.mark.parametrize("checksums", range(PRODUCER_RECEIPTS + 1))
def test_the_length_of_a_state_says_what_it_has(held: int, checksums: int) -> None:
    if checksums > held:
        return
    rows = [(number, number, number, 1) for number in range(held)]
    state = producers.STATE.pack(0, 9, 9) + b"".join(struct.pack("<qqqI", *row) for row in rows)
    state += b"".join(struct.pack("<I", 100 + number) for number in range(checksums))
    assert producers.receipts_of(state) == rows
    found = [producers.crc_of(state, number) for number in range(held)]
    assert found == [100 + number for number in range(checksums)] + [0] * (held - checksums)
