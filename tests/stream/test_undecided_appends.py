"""Appends of a transaction over several groups, at one stream of a group."""

from __future__ import annotations

import pytest
from msgspec import structs
from worlds.stream import World, json_batch

from polynya.base.limits import OPEN_TRANSACTIONS_MAX
from polynya.base.names import group_of
from polynya.stream.command import Command
from polynya.stream.command_validation import fault_of
from polynya.stream.features.appends.commands import Append, AppendIf, TxnAppend
from polynya.stream.features.appends.producers import STATE
from polynya.stream.features.appends.undecided import decided_end
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.markers.commands import TxnMarkers, TxnSettle
from polynya.stream.features.markers.control_batch import control_batch
from polynya.stream.features.packs.commands import PublishSlices
from polynya.stream.parts import ABORTED, TRANSACTIONAL, Encoding, Producer
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import Stream
from polynya.stream.state.tails import stable_of

NAME, JSON = "orders", "application/json"
GROUP = group_of(NAME, 1)


class Participant:
    """A stream. Transactions have the producers from 7 on."""

    def __init__(self) -> None:
        self.world = World(1)
        self.apply(Create(NAME, 1, JSON, Encoding.JSON))

    def apply(self, command: Command) -> Reply:
        assert fault_of(command) == ""
        if isinstance(command, TxnAppend):
            batch = command.commands[0].batch
            assert batch is not None
            self.world.payloads[self.world.position + 1] = batch.payload
        return self.world.apply(GROUP, command)

    @property
    def stream(self) -> Stream:
        return self.world.machines[GROUP].directory.streams[NAME]

    def append(self, value: bytes, sequence: int = -1, epoch: int = 0) -> Reply:
        """Append alone, of the producer `p` if it has a sequence."""
        producer = None if sequence < 0 else Producer("p", epoch, sequence)
        return self.apply(Append(NAME, 1, JSON, json_batch(value), producer))

    def undecided(
        self,
        number: int,
        value: bytes = b"1",
        sequence: int = -1,
        *,
        epoch: int = 0,
        id_: int = 7,
        record: int = -1,
    ) -> tuple[Code, Code]:
        """Append in a transaction; the codes of the whole and of the part."""
        producer = None if sequence < 0 else Producer("p", epoch, sequence)
        fields = (NAME, 1, JSON, json_batch(value), producer, None, False, self.stream.uid)
        part = Append(*fields) if record < 0 else AppendIf(*fields, record=record)
        reply = self.apply(TxnAppend([part], id_, 0, number))
        if reply.code == Code.NONE_APPENDED:
            return Code.NONE_APPENDED, Code(reply.detail[1][0])
        return Code(reply.code), Code(reply.code)

    def end(self, number: int, *, commit: bool = True, id_: int = 7) -> Reply:
        batch = control_batch(id_, 1, commit=commit, decided_ms=5)
        uids = [(self.stream.uid, NAME)]
        return self.apply(TxnMarkers(id_, 1, number, commit, batch, uids, [], 1))

    @property
    def flags(self) -> list[int]:
        return [batch.flags for batch in self.stream.hot or []]

    @property
    def last(self) -> tuple[int, int]:
        """Epoch and last sequence of the producer `p`."""
        epoch, last, _ = STATE.unpack_from((self.stream.producers or {})["p"])
        return epoch, last


OK, REFUSED = (Code.OK, Code.OK), Code.NONE_APPENDED


def test_a_commit_leaves_a_batch_like_others_and_no_marker() -> None:
    here = Participant()
    assert here.undecided(1) == OK
    assert (here.flags, stable_of(here.stream)) == ([TRANSACTIONAL], (0, 0))
    assert here.append(b"2").code == Code.OK
    assert stable_of(here.stream) == (0, 0)
    here.end(1)
    assert (here.flags, stable_of(here.stream)) == ([0, 0], (2, 4))
    before = here.stream.next_record
    here.end(1)
    here.end(1, commit=False)
    assert (here.stream.next_record, here.flags) == (before, [0, 0]), "repeats do nothing"


def test_an_abort_hides_the_batch_and_keeps_no_row() -> None:
    here = Participant()
    here.append(b"0")
    assert here.undecided(1) == OK
    here.append(b"2")
    here.end(1, commit=False)
    assert (here.flags, stable_of(here.stream)) == ([0, ABORTED, 0], (3, 6))
    assert here.stream.kafka is not None and here.stream.kafka.aborted == b""
    here.world.restart(GROUP)
    assert here.flags == [0, ABORTED, 0]


def test_a_number_that_has_ended_is_refused() -> None:
    here = Participant()
    here.end(3, commit=False)
    assert here.undecided(3) == (REFUSED, Code.TXN_ENDED)
    assert here.undecided(2) == (REFUSED, Code.TXN_ENDED)
    assert here.undecided(4) == OK
    assert here.undecided(4) == here.undecided(5) == (REFUSED, Code.NOT_YET)
    here.end(5)  # the end of a later one ends it too
    assert here.flags == [0]


def test_a_producer_waits_for_the_end_and_an_abort_takes_its_sequence_back() -> None:
    here = Participant()
    assert here.append(b"0", 0).code == Code.OK
    before = here.stream.producers
    assert before is not None
    state = before["p"]
    assert here.undecided(1, b"1", 1) == OK
    assert here.last == (0, 1)
    for sequence in (0, 1, 2):
        assert here.append(b"1", sequence).code == Code.UNSTABLE
        assert here.undecided(1, b"1", sequence, id_=8) == (REFUSED, Code.UNSTABLE)
    here.end(1, commit=False)
    assert here.stream.producers == {"p": state}
    assert here.append(b"0", 0).code == Code.DUPLICATE
    assert here.undecided(2, b"1", 1) == OK
    here.end(2)
    assert here.append(b"1", 1).code == Code.DUPLICATE
    assert here.append(b"9", 1).code == Code.PRODUCER_CONFLICT
    assert here.undecided(3, b"1", 1) == (Code.DUPLICATE, Code.DUPLICATE)
    assert here.append(b"2", 2).code == Code.OK


def test_an_aborted_first_append_keeps_former_instances_fenced() -> None:
    here = Participant()
    for sequence in range(7):
        assert here.append(b"0", sequence).code == Code.OK
    assert here.undecided(1, b"1", 0, epoch=1) == OK
    here.end(1, commit=False)
    assert here.last == (1, -1)
    assert here.append(b"0", 0).code == Code.PRODUCER_STALE
    assert here.append(b"1", 0, 1).code == Code.OK
    assert here.last == (1, 0)


def test_conditions_wait_behind_what_is_undecided() -> None:
    here = Participant()
    assert here.undecided(1, record=7) == (REFUSED, Code.PRECONDITION)
    assert here.undecided(1, record=0) == OK
    for record in (0, 1):
        assert here.undecided(1, id_=8, record=record) == (REFUSED, Code.UNSTABLE)
    assert here.undecided(1, id_=8) == OK, "one without a condition goes behind"
    here.end(1)
    assert stable_of(here.stream) == (1, 2)
    here.end(1, id_=8)
    assert stable_of(here.stream) == (2, 4)
    assert here.undecided(2, record=2) == OK


def test_no_slice_has_what_is_undecided() -> None:
    here = Participant()
    here.append(b"0")
    here.undecided(1)
    here.append(b"2")
    assert decided_end(here.stream) == (1, 2)
    uid = here.stream.uid
    for count in (2, 3):
        cold = here.world.slice_of(here.stream, count, f"p{count}")
        here.apply(PublishSlices(f"p{count}", GROUP, 1, [(uid, cold)], 1))
        assert len(here.flags) == 3, "it is refused"
    cold = here.world.slice_of(here.stream, 1, "p1")
    here.apply(PublishSlices("p1", GROUP, 1, [(uid, cold)], 1))
    assert here.flags == [TRANSACTIONAL, 0]
    here.apply(TxnSettle(uid, "", 7, 1, 1, True, 5, 1))
    assert here.flags == [0, 0] and decided_end(here.stream) == (3, 6)


def test_a_stream_that_is_deleted_or_another_one_is_refused() -> None:
    here = Participant()
    uid = here.stream.uid
    here.undecided(1)
    assert here.apply(Delete(NAME, 1)).code == Code.OK
    batch = control_batch(7, 1, commit=True, decided_ms=5)
    assert here.apply(TxnMarkers(7, 1, 1, True, batch, [(uid, NAME)], [], 1)).code == Code.OK
    part = Append(NAME, 1, JSON, json_batch(b"1"), incarnation=uid)
    assert here.apply(TxnAppend([part], 7, 1, 2)).detail[1][0] == Code.NOT_FOUND
    here.apply(Create(NAME, 1, JSON, Encoding.JSON))
    assert here.apply(TxnAppend([part], 7, 1, 2)).detail[1][0] == Code.INCARNATION
    assert not here.flags


def test_a_stream_has_a_limit_of_open_ones() -> None:
    here = Participant()
    here.world.checks_copies = False
    assert here.undecided(1) == OK
    kafka = here.stream.kafka
    assert kafka is not None
    opened = kafka.open[7]
    kafka.open |= dict.fromkeys(range(100, 99 + OPEN_TRANSACTIONS_MAX), opened)
    assert here.undecided(1, id_=8) == (REFUSED, Code.TOO_MANY)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"batch": None, "close": True}, "no batch"),
        ({"close": True}, "closes"),
        ({"stream_seq": "a"}, "Stream-Seq"),
        ({"incarnation": 0}, "without an incarnation"),
        ({"producer": Producer("7", 0, 0, 0, 1)}, "a producer of Kafka"),
        ({"batch": structs.replace(json_batch(b"1"), flags=1)}, "flags"),
    ],
)
def test_what_cannot_be_taken_back_is_nonsense(change: dict[str, object], fault: str) -> None:
    part = Append(NAME, 1, JSON, json_batch(b"1"), incarnation=1)
    assert fault_of(TxnAppend([part], 7, 0, 1)) == ""
    assert fault in fault_of(TxnAppend([structs.replace(part, **change)], 7, 0, 1))
    assert "two appends" in fault_of(TxnAppend([part, part], 7, 0, 1))
