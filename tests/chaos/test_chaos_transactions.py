"""The checker of transactions: it believes a true history, and finds each lie by its rule."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos.history import FAIL, INFO, OK  # noqa: E402  (not a part of the package)
from chaos.transaction_history import (  # noqa: E402
    ABORT,
    COMMIT,
    COMMITTED,
    FENCED,
    ROWS,
    UNCOMMITTED,
    End,
    Ends,
    Final,
    Held,
    Init,
    Offsets,
    Poll,
    Position,
    Produce,
    Transaction,
    TransactionHistory,
    check_transactions,
)

INPUT, OUTPUT, KEYED, GROUP = "input", "output", "keyed", "copier"


def true_history() -> tuple[TransactionHistory, Final]:
    """A copier commits three inputs, aborts one, and is fenced by its next instance, which commits
    the rest. A plain producer writes the inputs."""
    history = TransactionHistory(pipelines={GROUP: (INPUT, OUTPUT)}, compacted={KEYED})
    history.plain = [Produce(INPUT, [f"i{n}"], n, n + 0.1, OK) for n in range(4)]
    history.inits = [
        Init("copier", "first", 4.0, 4.1, OK),
        Init("copier", "second", 20.0, 20.5, OK),
    ]
    history.transactions = [
        transaction("t1", "first", 5.0, ["i0", "i1", "i2"], 3, COMMIT),
        transaction("t2", "first", 10.0, ["i3"], 4, ABORT),
        transaction("t3", "second", 30.0, ["i3"], 4, COMMIT),
    ]
    keyed = [("k0", "a"), ("k1", "b"), ("k2", "a")]
    history.plain += [
        Produce(KEYED, [value], 50.0 + n, 50.5 + n, OK, keys=[key])
        for n, (value, key) in enumerate(keyed)
    ]
    records = {
        INPUT: [(n, f"i{n}") for n in range(4)],
        OUTPUT: [(0, "t1:i0"), (1, "t1:i1"), (2, "t1:i2"), (6, "t3:i3")],
        KEYED: [(1, "k1"), (2, "k2")],
    }
    for kind in (COMMITTED, ROWS):
        history.polls.append(Poll(kind, "r", OUTPUT, 40.0, 40.1, 0, 8, [*records[OUTPUT]]))
    history.polls.append(Poll(ROWS, "r", KEYED, 53.0, 53.1, 0, 1, [(0, "k0")]))
    history.ends = [Ends(OUTPUT, at, at, stable, 8) for at, stable in ((9.0, 4), (200.0, 8))]
    history.positions = [Position(GROUP, INPUT, 3, 8.0, 8.1), Position(GROUP, INPUT, 4, 40.0, 40.1)]
    history.held = [Held("group 0", 200.0, 0)]
    return history, Final(records, {GROUP: {INPUT: 4}})


def transaction(
    name: str, instance: str, began: float, inputs: list[str], position: int, kind: str
) -> Transaction:
    produces = [
        Produce(OUTPUT, [f"{name}:{each}"], began, began + 0.2, OK, sources=[each])
        for each in inputs
    ]
    offsets = [Offsets(GROUP, {INPUT: position}, began + 0.5, began + 0.6, OK)]
    end = End(kind, began + 1, began + 1.5, OK)
    return Transaction(name, "copier", instance, began, 60.0, produces, offsets, end)


def torn(history: TransactionHistory, final: Final) -> None:
    history.transactions[0].end = End(COMMIT, 6.0)
    final.records[OUTPUT].remove((1, "t1:i1"))


def lost(history: TransactionHistory, final: Final) -> None:
    del final.records[OUTPUT][:3]


def a_plain_record_is_lost(history: TransactionHistory, final: Final) -> None:
    del final.records[INPUT][3]


def aborted_is_read(history: TransactionHistory, final: Final) -> None:
    history.polls.append(Poll(ROWS, "liar", OUTPUT, 41.0, 41.1, 4, 5, [(4, "t2:i3")]))


def open_is_read(history: TransactionHistory, final: Final) -> None:
    history.polls.append(Poll(ROWS, "liar", OUTPUT, 5.1, 5.2, 0, 1, [(0, "t1:i0")]))


def refused_is_read(history: TransactionHistory, final: Final) -> None:
    history.transactions[2].end = End(COMMIT, 31.0, 31.5, FAIL, "fenced")
    history.transactions[2].forced = 30.0


def an_offset_changes(history: TransactionHistory, final: Final) -> None:
    history.polls[0].records[0] = (3, "t1:i0")


def a_value_is_there_twice(history: TransactionHistory, final: Final) -> None:
    final.records[OUTPUT].append((7, "t3:i3"))


def a_zombie_commits(history: TransactionHistory, final: Final) -> None:
    history.transactions.append(transaction("t4", "first", 35.0, [], 4, COMMIT))


def a_zombie_comes_back(history: TransactionHistory, final: Final) -> None:
    history.inits.append(Init("copier", "first", 22.0, 22.1, OK, again=True))


def the_newest_is_fenced(history: TransactionHistory, final: Final) -> None:
    history.transactions.append(
        Transaction(
            "t5", "second", "", 36.0, 60.0, [Produce(OUTPUT, ["x"], 36.0, 36.1, FAIL, FENCED)]
        )
    )
    history.transactions[-1].id, history.transactions[-1].instance = "copier", "second"


def the_stable_end_falls(history: TransactionHistory, final: Final) -> None:
    history.ends.insert(1, Ends(OUTPUT, 12.0, 12.0, 3, 8))


def the_stable_end_stands(history: TransactionHistory, final: Final) -> None:
    history.ends[-1].stable = 7


def something_is_held(history: TransactionHistory, final: Final) -> None:
    history.held[0].count = 1


def an_input_has_two_outputs(history: TransactionHistory, final: Final) -> None:
    history.transactions[2].produces.append(
        Produce(OUTPUT, ["t3:i2"], 30.0, 30.2, OK, sources=["i2"])
    )
    final.records[OUTPUT].append((7, "t3:i2"))
    history.polls.clear()


def offsets_of_an_aborted_one(history: TransactionHistory, final: Final) -> None:
    final.positions[GROUP][INPUT] = 9


def offsets_are_dropped(history: TransactionHistory, final: Final) -> None:
    final.positions[GROUP][INPUT] = 3


def offsets_are_early(history: TransactionHistory, final: Final) -> None:
    history.positions.append(Position(GROUP, INPUT, 3, 5.6, 5.7))


def readers_differ(history: TransactionHistory, final: Final) -> None:
    history.polls[1].records.pop()


def an_uncommitted_reader_misses_a_record(history: TransactionHistory, final: Final) -> None:
    history.polls.append(
        Poll(UNCOMMITTED, "r", OUTPUT, 8.0, 8.1, 0, 3, [*final.records[OUTPUT][1:3]])
    )


def an_uncommitted_reader_has_another_order(history: TransactionHistory, final: Final) -> None:
    history.polls.append(Poll(UNCOMMITTED, "r", OUTPUT, 11.0, 11.1, 4, 8, [(4, "t3:i3")]))


def a_key_has_its_former_value(history: TransactionHistory, final: Final) -> None:
    final.records[KEYED] = [(0, "k0"), (1, "k1")]


@pytest.mark.parametrize(
    ("lie", "rule"),
    [
        (torn, "A"),
        (lost, "C"),
        (a_plain_record_is_lost, "C"),
        (aborted_is_read, "B"),
        (open_is_read, "B"),
        (refused_is_read, "B"),
        (an_offset_changes, "D"),
        (a_value_is_there_twice, "D"),
        (a_zombie_commits, "E"),
        (a_zombie_comes_back, "E"),
        (the_newest_is_fenced, "E"),
        (the_stable_end_falls, "F"),
        (the_stable_end_stands, "F"),
        (something_is_held, "F"),
        (an_input_has_two_outputs, "G"),
        (offsets_of_an_aborted_one, "A"),
        (offsets_are_dropped, "C"),
        (offsets_are_early, "B"),
        (readers_differ, "H"),
        (an_uncommitted_reader_misses_a_record, "H"),
        (an_uncommitted_reader_has_another_order, "D"),
        (a_key_has_its_former_value, "I"),
    ],
)
def test_a_lie_is_found(lie: Callable[[TransactionHistory, Final], None], rule: str) -> None:
    history, final = true_history()
    lie(history, final)
    found = check_transactions(history, final)
    assert rule in {each.partition(":")[0] for each in found}, found


def test_a_true_history_is_believed() -> None:
    assert check_transactions(*true_history()) == []


def test_an_uncommitted_reader_sees_open_and_aborted_records_too() -> None:
    history, final = true_history()
    records = [*final.records[OUTPUT][:3], (4, "t2:i3"), (6, "t3:i3")]
    history.polls.append(Poll(UNCOMMITTED, "r", OUTPUT, 30.5, 30.6, 0, 7, records))
    assert check_transactions(history, final) == []


def test_an_unknown_commit_is_whole_or_absent() -> None:
    for there in (True, False):
        history, final = true_history()
        history.transactions[2].end = End(COMMIT, 31.0, outcome=INFO)
        if not there:
            final.records[OUTPUT].pop()
            final.positions[GROUP][INPUT] = 3
            history.polls.clear()
        assert check_transactions(history, final) == []


def test_a_restore_may_lose_whole_transactions_alone() -> None:
    history, final = true_history()
    final.records[OUTPUT].pop()
    final.positions[GROUP][INPUT] = 3
    restored = history.after_restore(100.0)
    assert check_transactions(restored, final) == []
    final.records[OUTPUT].pop()
    assert any(each.startswith("A:") for each in check_transactions(restored, final))


def test_a_key_may_be_gone_for_a_deletion_that_nobody_saw_or_a_trim() -> None:
    history, final = true_history()
    history.plain.append(Produce(KEYED, ["gone"], 60.0, 60.5, OK, keys=["a"]))
    history.tombstones.add("gone")
    history.polls.append(Poll(ROWS, "r", KEYED, 55.0, 55.1, 0, 3, [(1, "k1"), (2, "k2")]))
    final.records[KEYED] = [(1, "k1")]
    assert check_transactions(history, final) == []
    history.tombstones.clear()
    assert any(each.startswith("I:") for each in check_transactions(history, final))
    history.plain.pop()
    history.trimmed[KEYED] = 3
    assert check_transactions(history, final) == []
