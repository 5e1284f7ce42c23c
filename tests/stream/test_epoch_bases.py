"""Kafka leader epochs across restores: no client has seen a later one than the next ones."""

from __future__ import annotations

from polynya.stream.machine import Machine
from polynya.stream.snapshots.encode import decode_image, machine_from, snapshot_of, write_image
from polynya.stream.snapshots.restore_history import EPOCH_JUMP, Survey, reborn


def restored(*machines: Machine, term: int = 0) -> list[Machine]:
    """Return the groups after a restore of their copies, the first of which was in this term."""
    survey, terms = Survey(), [term] + [0] * len(machines)
    for machine, each in zip(machines, terms, strict=False):
        survey.add(decode_image(snapshot_of(machine)), each)
    images = [decode_image(snapshot_of(machine)) for machine in machines]
    for image in images:
        reborn(image, survey, now_ms=1)
    return [machine_from(write_image(image), lambda position, uid: b"") for image in images]


def test_a_restore_raises_the_epochs_of_all_groups_beyond_what_a_client_can_have_seen() -> None:
    first = Machine(1, 2)
    assert (first.counters.epoch_base, first.counters.epoch_bases) == (0, [])
    once = restored(first, Machine(2, 2), term=7)
    assert [machine.counters.epoch_bases for machine in once] == [[EPOCH_JUMP]] * 2
    elections = EPOCH_JUMP + 5  # more than a jump: the highest term counts
    twice = restored(*once, term=elections)
    assert [machine.counters.epoch_bases for machine in twice] == [[EPOCH_JUMP, 3 * EPOCH_JUMP]] * 2
    assert twice[1].counters.epoch_base > once[0].counters.epoch_base + elections


def test_a_group_that_no_copy_has_gets_the_bases_of_the_others() -> None:
    (once,) = restored(Machine(1, 2))
    both = restored(once, Machine(2, 2))
    assert [machine.counters.epoch_bases for machine in both] == [[EPOCH_JUMP, 2 * EPOCH_JUMP]] * 2
