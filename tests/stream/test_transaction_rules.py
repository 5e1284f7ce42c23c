"""The logged state of transactional ids: limits, order of use, owners, snapshots and deltas. The
table of states has its stories."""

from __future__ import annotations

import pytest
from group_machines import codes

from polynya.base.limits import MARKED_MAX, TRANSACTION_IDLE_MS
from polynya.stream.command_validation import fault_of
from polynya.stream.features.forks.commands import Acknowledge
from polynya.stream.features.transactions import rules
from polynya.stream.features.transactions.commands import (
    EPOCH_LAST,
    TxnAdd,
    TxnAsk,
    TxnEnd,
    TxnExpire,
    TxnForget,
    TxnHold,
    TxnInit,
)
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots import deltas
from polynya.stream.snapshots.encode import decode_image, machine_from, snapshot_of, write_image
from polynya.stream.snapshots.restore_history import PRODUCER_ID_JUMP, Survey, reborn

FIRST = 1 << 47  # the first producer of group 1
STREAMS = [(2, 9, "kafka/t/0"), (3, 10, "kafka/t/1")]


def init(id_: str, now_ms: int = 0, *, owner: int = 0) -> TxnInit:
    return TxnInit(id_, now_ms, 1000, owner=owner)


def add(id_: str, producer: int, epoch: int = 0, *, now_ms: int = 0) -> TxnAdd:
    return TxnAdd(id_, producer, epoch, now_ms, STREAMS, [(4, "g")], 2)


def end(id_: str, producer: int, epoch: int = 0, *, now_ms: int = 0) -> TxnEnd:
    return TxnEnd(id_, producer, epoch, True, 2, now_ms)


def acknowledge(machine: Machine) -> None:
    for message in list(machine.outbox.messages):
        machine.apply(Acknowledge(message))


def checked(machine: Machine) -> Machine:
    """Check that a snapshot has everything, and that what is derived is that of the ids."""
    again = machine_from(snapshot_of(machine), lambda position, uid: b"")
    assert snapshot_of(again) == snapshot_of(machine)
    for part in ("by_producer", "by_message", "owned", "bytes"):
        assert getattr(again.transactions, part) == getattr(machine.transactions, part), part
    return again


def test_every_command_is_in_the_next_delta_alone() -> None:
    machine = Machine(1, 4)
    base = deltas.SnapshotPart(snapshot_of(machine))
    commands = [
        init("b"),
        init("a", 5),
        add("b", FIRST),
        end("b", FIRST, now_ms=7),
        Acknowledge(1),
        Acknowledge(2),
        Acknowledge(3),
        add("b", FIRST, 1),
        TxnExpire("b", 2, 8, True),
        TxnAsk(FIRST + 1, 4, 9),
        TxnForget("a", 9),
    ]
    for command in commands:
        assert machine.apply(command).code == Code.OK, command
        changes = machine.take_changes()
        assert changes.transactions == {"a" if command in (commands[1], *commands[9:]) else "b"}
        delta = deltas.encode_head(machine, changes, 0, whole=False)
        base = deltas.SnapshotPart(
            deltas.merge([base, deltas.SnapshotPart(delta, delta=True, root=False)])
        )
        assert base.body == snapshot_of(machine), command
    checked(machine)


def test_a_delta_without_forgotten_ids_has_the_bytes_of_the_release_before() -> None:
    gone = deltas.PlainGone(streams=[7], writers=["w"])
    assert len(gone.__struct_fields__) + 1 == len(deltas.Gone.__struct_fields__)
    machine = Machine(1, 4)
    machine.apply(init("a"))
    plain = deltas.encode_head(machine, machine.take_changes(), 0, whole=False)
    machine.apply(TxnForget("a", 0))
    with_gone = deltas.encode_head(machine, machine.take_changes(), 0, whole=False)
    eight, nine = b"\x98" + b"\x90" * 8, b"\x99" + b"\x90" * 8 + b"\x91\xa1a"
    assert eight in plain
    assert nine in with_gone


def test_a_state_with_ids_needs_level_4_and_its_markers_stay_in_the_outbox() -> None:
    machine = Machine(1, 4)
    assert codes(machine, init("a"), add("a", FIRST), end("a", FIRST)) == [Code.OK] * 3
    assert machine.counters.level == 4
    again = checked(machine)
    assert [group for group, _ in again.outbox.messages.values()] == [2, 3, 4]
    acknowledge(again)
    acknowledge(machine)
    assert snapshot_of(again) == snapshot_of(machine)
    assert again.transactions.get("a").state.name == "COMPLETE_COMMIT"  # type: ignore[union-attr]
    assert not again.transactions.by_message


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "TRANSACTIONAL_IDS_MAX", 4)


@pytest.mark.usefixtures("few")
def test_the_longest_idle_id_makes_room() -> None:
    machine = Machine(1, 4)
    codes(machine, init("a", 1), init("d", 2), init("c", 2), init("b", 3), add("a", FIRST))
    assert codes(machine, init("e", 10)) == [Code.TOO_MANY], "none is idle for long"
    late = TRANSACTION_IDLE_MS + 3
    assert codes(machine, init("e", late)) == [Code.OK]
    assert machine.transactions.get("c") is None, "of those of one time the first by name"
    assert machine.transactions.get("a") is not None, "a transaction is open"
    assert codes(checked(machine), init("f", late)) == codes(machine, init("f", late)) == [Code.OK]
    assert machine.transactions.get("d") is None
    assert codes(machine, init("g", late)) == [Code.TOO_MANY], "b is idle for 15 minutes, no longer"
    assert codes(machine, init("g", late + 1)) == [Code.OK]
    assert codes(machine, add("b", FIRST + 3)) == [Code.NOT_FOUND]


@pytest.mark.usefixtures("few")
def test_an_owner_has_at_most_half_of_the_ids() -> None:
    machine = Machine(1, 4)
    assert codes(machine, init("a", owner=7), init("b", owner=7)) == [Code.OK] * 2
    assert codes(machine, init("c", owner=7), init("c", owner=8)) == [Code.TOO_MANY, Code.OK]
    late = TRANSACTION_IDLE_MS + 1
    assert codes(machine, init("c", late), init("d", late, owner=7)) == [Code.OK] * 2
    assert machine.transactions.get("a") is None, "its own id makes room"
    assert machine.transactions.owned == {7: 2, 0: 1}, "the one that took the id last has it"
    checked(machine)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(1, 4)
    codes(machine, init("a"), add("a", FIRST))
    monkeypatch.setattr(rules, "TRANSACTION_BYTES_MAX", machine.transactions.bytes - 1)
    more = TxnAdd("a", FIRST, 0, 1, [(2, 99, "kafka/t/9")], [], 2)
    assert codes(machine, more, init("b")) == [Code.TOO_MANY] * 2
    assert codes(machine, add("a", FIRST), end("a", FIRST)) == [Code.OK] * 2, "they need none"
    acknowledge(machine)
    assert codes(checked(machine), init("b")) == [Code.OK], "participants go with the transaction"


def test_a_transaction_has_so_many_participants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MARKED_MAX", 3)
    machine = Machine(1, 4)
    more = TxnAdd("a", FIRST, 0, 1, [(2, 99, "kafka/t/9")], [], 2)
    assert codes(machine, init("a"), add("a", FIRST), more, add("a", FIRST)) == [
        Code.OK,
        Code.OK,
        Code.TOO_LARGE,
        Code.OK,
    ]


def test_outcomes_are_kept_for_eight_transactions() -> None:
    machine = Machine(1, 4)
    codes(machine, init("a"))
    for epoch in range(10):
        assert codes(machine, add("a", FIRST, epoch), end("a", FIRST, epoch)) == [Code.OK] * 2
        acknowledge(machine)

    def asked(number: int) -> Reply:
        return machine.apply(TxnAsk(FIRST, number, 50))

    assert asked(2).detail == (False, -1, 50)
    assert asked(3).detail == (True, 3, 0)
    assert asked(10).detail == (True, 10, 0)


def test_former_producers_are_known_while_an_outcome_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "EPOCH_LAST", 0)
    machine = Machine(1, 4)
    codes(machine, init("a"))
    for number in range(12):
        producer = FIRST + number
        assert codes(machine, add("a", producer), end("a", producer)) == [Code.OK] * 2
        acknowledge(machine)
        checked(machine)
    assert sorted(machine.transactions.by_producer) == [FIRST + number for number in range(4, 13)]
    assert codes(machine, TxnForget("a", 0)) == [Code.OK]
    assert not machine.transactions.by_producer
    assert not machine.transactions.bytes


def test_impossible_commands_are_faults() -> None:
    long, streams = "x" * 1025, [(1, 5, "s")]
    assert all(map(fault_of, (init(""), init(long), init("é" * 513), TxnForget("", 1))))
    assert fault_of(TxnInit("a", 0, 15 * 60_000 + 1))
    assert fault_of(TxnInit("a", 0, 0))
    assert fault_of(TxnAdd("a", -1, 0, 0, streams, [], 2))
    assert fault_of(TxnAdd("a", 1, EPOCH_LAST + 1, 0, streams, [], 2))
    assert fault_of(TxnAdd("a", 1, 1, 0, streams, [(-1, "g")], 2))
    assert fault_of(TxnAdd("a", 1, 1, 0, streams, [(1, "")], 2))
    assert fault_of(TxnAdd("a", 1, 1, 0, [(1, -1, "s")], [], 2))
    assert fault_of(TxnAdd("a", 1, 1, 0, streams, [], 3))
    assert fault_of(TxnAdd("a", 1, 1, 0, streams * (MARKED_MAX + 1), [], 2))
    assert not fault_of(TxnAdd("a", 1, 1, 0, streams * MARKED_MAX, [], 2))


def test_a_restore_gives_new_producers_and_aborts_what_is_open() -> None:
    machine = Machine(1, 4)
    codes(machine, init("idle"), init("open"), add("open", FIRST + 1))
    codes(machine, init("decided"), add("decided", FIRST + 2), end("decided", FIRST + 2))
    image = decode_image(snapshot_of(machine))
    reborn(image, Survey(), now_ms=90)
    again = machine_from(write_image(image), lambda position, uid: b"")
    states = {each.id: each.state.name for each in again.transactions}
    assert states == {"idle": "EMPTY", "open": "PREPARE_ABORT", "decided": "PREPARE_COMMIT"}
    for each in again.transactions:
        assert each.pair[0] >= FIRST + PRODUCER_ID_JUMP
        assert (each.epoch, each.previous) == (0, (-1, -1))
    assert codes(again, end("open", FIRST + 1), init("idle")) == [Code.FENCED, Code.OK]
    sent = [command for _, command in again.outbox.messages.values()]
    assert [(each.producer, each.commit) for each in sent] == [  # type: ignore[union-attr]
        *[(FIRST + 2, True)] * 3,
        *[(FIRST + 1, False)] * 3,
    ]
    acknowledge(again)
    assert again.apply(TxnAsk(FIRST + 1, 1, 99)).detail == (False, 1, 90)
    assert again.apply(TxnAsk(FIRST + 2, 1, 99)).detail == (True, 1, 0)
    checked(again)


def hold(backup: str, until_ms: int, now_ms: int) -> TxnHold:
    return TxnHold(backup, until_ms, now_ms)


def test_a_backup_holds_commits_and_nothing_else_and_counts_them() -> None:
    machine = Machine(1, 4)
    for number, id_ in enumerate("abc"):
        assert codes(machine, init(id_), add(id_, FIRST + number)) == [Code.OK] * 2
    assert machine.apply(hold("one/0", 0, 10)).detail == ("one/0", 0)
    assert codes(machine, end("a", FIRST, now_ms=11)) == [Code.OK], "it counts, and holds none"
    assert machine.apply(hold("one/0", 0, 12)).detail == ("one/0", 1)
    assert machine.apply(hold("one/1", 500, 20)).detail == ("one/1", 0), "another round"
    before = machine.transactions.get("b")
    assert before is not None
    assert codes(machine, end("b", FIRST + 1, now_ms=30)) == [Code.TXN_HELD]
    assert before.state.name == "ONGOING"
    aborted = TxnEnd("c", FIRST + 2, 0, False, 2, 31)
    assert codes(machine, aborted, init("d"), add("d", FIRST + 3)) == [Code.OK] * 3
    assert codes(machine, end("b", FIRST + 1, now_ms=499)) == [Code.TXN_HELD]
    again = checked(machine)
    for each in (machine, again):
        assert codes(each, end("b", FIRST + 1, now_ms=500)) == [Code.OK], "the hold is over"
        assert each.apply(hold("one/1", 0, 501)).detail == ("one/1", 1)
    assert snapshot_of(again) == snapshot_of(machine)


def test_a_hold_is_not_taken_from_another_backup_while_it_stands() -> None:
    machine = Machine(1, 4)
    assert codes(machine, hold("one/1", 500, 20)) == [Code.OK]
    for until_ms in (0, 600):
        refused = machine.apply(hold("two/1", until_ms, 30))
        assert (refused.code, refused.detail) == (Code.BACKUP_HOLDS, "one/1")
    assert codes(machine, hold("one/1", 0, 40), hold("two/1", 600, 41)) == [Code.OK] * 2
    assert machine.apply(hold("one/1", 0, 700)).detail == ("one/1", 0), "the other one expired"


@pytest.mark.parametrize("wrong", [hold("", 0, 5), hold("b" * 65, 0, 5), hold("b", 10_006, 5)])
def test_a_hold_that_no_backup_asks_for_is_refused(wrong: TxnHold) -> None:
    assert fault_of(wrong)


def test_a_hold_is_in_the_next_delta_and_a_state_without_one_has_the_bytes_of_before() -> None:
    machine = Machine(1, 4)
    machine.apply(init("a"))
    plain = snapshot_of(machine)
    base = deltas.SnapshotPart(plain)
    machine.take_changes()
    machine.apply(hold("one/1", 500, 20))
    delta = deltas.encode_head(machine, machine.take_changes(), 0, whole=False)
    merged = deltas.merge([base, deltas.SnapshotPart(delta, delta=True, root=False)])
    assert merged == snapshot_of(machine)
    assert decode_image(merged).hold == machine.transactions.hold
    image = decode_image(merged)
    reborn(image, Survey(), now_ms=30)
    assert image.hold is None
    assert plain[:3] == b"\xdc\x00\x1d", "29 fields"
    assert merged[:3] == b"\xdc\x00\x1e"
