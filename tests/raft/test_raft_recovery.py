"""Journal records of a group whose replica was created, removed and created again; and their
encoding."""

from __future__ import annotations

import pytest

from polynya.base.errors import CorruptData
from polynya.raft import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Recovery,
    Snapshot,
    decode_configuration,
    decode_message,
    encode_configuration,
    encode_message,
)
from polynya.raft.messages import RecoverVote, RecoverVoteAnswer

BORN = Configuration((1, 2, 3))
LATER = Configuration((2, 3, 4), learners=(5,), readers=(6,))


def entry(index: int, term: int = 1, configuration: Configuration | None = None) -> Entry:
    kind = EntryKind.COMMAND if configuration is None else EntryKind.CONFIGURATION
    return Entry(
        b"" if configuration is None else encode_configuration(configuration), kind, term, index
    )


def test_the_bytes_of_a_configuration_and_of_an_answer_to_a_recall() -> None:
    assert encode_configuration(LATER).hex() == "94930203049091059106"
    assert decode_configuration(bytes.fromhex("94930203049091059106")) == LATER
    answer = RecoverVoteAnswer(
        3, 1, 7, 9, blank=False, members=(1, 2, 3), configurations=((5, BORN), (8, LATER))
    )
    assert (
        encode_message(answer, None).hex()
        == "990d03010709c293010203c29292059493010203909090920894930203049091059106"
    )
    assert (
        encode_message(RecoverVote(3, 1, 7, 0, blank=True, found=True)).hex() == "970c03010700c3c3"
    )
    assert (
        decode_message(
            bytes.fromhex("990d03010709c293010203c29292059493010203909090920894930203049091059106")
        )
        == answer
    )
    before = RecoverVoteAnswer(3, 1, 7, 9, blank=False, members=(1, 2, 3))
    assert decode_message(bytes.fromhex("980d03010709c293010203c2")) == before, (
        "of a release that does not tell since when"
    )
    assert decode_message(bytes.fromhex("970d03010709c293010203")) == before, (
        "of a release that campaigned without asking: it counts as one that has found"
    )
    assert decode_message(bytes.fromhex("960c03010700c3")) == RecoverVote(3, 1, 7, 0, blank=True), (
        "it is amnesiac"
    )


def test_what_was_in_effect_at_a_snapshot_is_the_newest_that_the_journal_knows_up_to_it() -> None:
    recovery = Recovery(1)
    assert recovery.configuration_at(9, BORN) == BORN, (
        "a journal of before there was anything to know"
    )
    for index in (8, 9, 10):
        recovery.entry(entry(index))
    recovery.entry(entry(11, configuration=LATER))
    assert recovery.configuration_at(10, BORN) == BORN
    assert recovery.configuration_at(11, BORN) == LATER
    recovery.configured(5, Configuration((7,)))
    assert recovery.configuration_at(10, BORN) == Configuration((7,))
    assert recovery.configuration_at(11, BORN) == LATER
    recovery.configured(20, Configuration((8,)))
    assert recovery.configuration_at(11, BORN) == LATER, (
        "what belongs to a snapshot that never came is no matter"
    )
    assert recovery.configuration_at(20, BORN) == Configuration((8,))


def test_an_entry_that_was_cut_off_configures_nothing() -> None:
    recovery = Recovery(1)
    recovery.entry(entry(1))
    recovery.entry(entry(2, 1, LATER))
    recovery.entry(entry(2, 2))
    assert recovery.configuration_at(2, BORN) == BORN


def test_what_is_dropped_is_void_but_for_what_was_promised() -> None:
    recovery = Recovery(1)
    recovery.configured(0, BORN)
    recovery.hard_state(HardState(4, 2))
    recovery.entry(entry(1))
    recovery.dropped(HardState(5, 3))
    assert recovery.departed == HardState(5, 3)
    recovery.configured(0, Configuration(()))
    assert recovery.departed is None and not recovery.blank
    restored = recovery.result(Snapshot(0, 0, recovery.configuration_at(0, BORN)))
    assert restored.hard_state == HardState(5, 3, learning=True), (
        "a vote is never given twice, and none before it knows what it may have known"
    )
    assert restored.entries == [] and restored.snapshot.configuration == Configuration(())
    recovery.entry(entry(1, 6))
    assert recovery.result(Snapshot(0, 0, Configuration(()))).hard_state.term == 6


def test_a_log_that_goes_on_over_a_drop_has_a_hole() -> None:
    recovery = Recovery(1)
    recovery.configured(0, BORN)
    recovery.entry(entry(1))
    recovery.dropped(HardState(1, 0))
    recovery.configured(0, Configuration(()))
    recovery.entry(entry(2))
    with pytest.raises(CorruptData, match="begins at entry 2"):
        recovery.result(Snapshot(0, 0, Configuration(())))
