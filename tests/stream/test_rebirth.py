"""A new history: what groups that were copied one after the other say of each other is made to
agree, and nothing of before is mistaken for now."""

from __future__ import annotations

from worlds.stream import World, check_invariants, raw_batch

from polynya.base.names import group_of
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import ConfirmPin, PinSource
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.packs.commands import PackWritten, PublishSlices
from polynya.stream.features.retention.commands import Trim
from polynya.stream.features.subscriptions.commands import (
    LinkSubscription,
    SubscriptionConfig,
    SubscriptionEvent,
    SubscriptionPut,
    UnlinkSubscription,
)
from polynya.stream.features.subscriptions.rules import Event
from polynya.stream.features.subscriptions.state import State
from polynya.stream.features.tables.commands import TableCreate
from polynya.stream.parts import Encoding, Fork
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import (
    decode_image,
    machine_from,
    snapshot_of,
    write_image,
)
from polynya.stream.snapshots.restore_history import UID_JUMP, StreamLoss, Survey, reborn
from polynya.stream.state.record_gaps import JUMP

GROUPS = 2
SOURCE = next(f"docs/{n}" for n in range(9) if group_of(f"docs/{n}", GROUPS) == 1)
TARGET = next(f"docs/{n}" for n in range(9) if group_of(f"docs/{n}", GROUPS) == 2)
ATTEMPT = "a" * 32


class Copied:
    """Groups whose states are copied at different moments."""

    def __init__(self) -> None:
        self.world = World(GROUPS)
        self.copies = {
            group: snapshot_of(machine) for group, machine in self.world.machines.items()
        }

    def copy(self, *groups: int) -> None:
        for group in groups or self.world.machines:
            self.copies[group] = snapshot_of(self.world.machines[group])

    def reborn(self) -> tuple[World, list[StreamLoss]]:
        survey, notes, world = Survey(), [], World(GROUPS)
        for data in self.copies.values():
            survey.add(decode_image(data))
        for data in self.copies.values():
            survey.add_origins(decode_image(data))
        for group, data in self.copies.items():
            image = decode_image(data)
            notes += reborn(image, survey, now_ms=99)
            world.payloads, world.slices = self.world.payloads, self.world.slices
            world.adopt(
                group,
                machine_from(write_image(image), lambda position, uid: world.payloads[position]),
            )
            check_invariants(world.machines[group])
        return world, notes

    def source(self) -> None:
        self.world.apply(1, Create(SOURCE, 1, "text/plain", Encoding.BYTES))
        for number in range(3):
            self.world.apply(1, Append(SOURCE, 1, "text/plain", raw_batch(b"%d" % number)))

    def pin(self) -> None:
        assert self.world.apply(1, PinSource(SOURCE, ATTEMPT, TARGET, 2)).code == Code.OK

    def create(self) -> None:
        uid = self.world.machines[1].directory.streams[SOURCE].uid
        fork = Fork(ATTEMPT, SOURCE, uid, 3, 3)
        assert (
            self.world.apply(2, Create(TARGET, 2, "text/plain", Encoding.BYTES, fork=fork)).code
            == Code.CREATED
        )

    def confirm(self) -> None:
        assert (
            self.world.apply(
                1, ConfirmPin(self.world.machines[1].directory.streams[SOURCE].uid, ATTEMPT)
            ).code
            == Code.OK
        )


def test_a_pin_whose_fork_was_not_copied_is_to_be_settled_again() -> None:
    copied = Copied()
    copied.source()
    copied.pin()
    copied.copy(2)
    copied.create()
    copied.confirm()
    copied.copy(1)
    world, notes = copied.reborn()
    assert list(world.machines[1].forks.unconfirmed) == [ATTEMPT]
    assert notes == []


def test_a_fork_whose_pin_was_not_copied_gets_it_again() -> None:
    copied = Copied()
    copied.source()
    copied.copy(1)
    copied.pin()
    copied.create()
    copied.copy(2)
    world, notes = copied.reborn()
    pin = (world.machines[1].directory.streams[SOURCE].pins or {})[ATTEMPT]
    assert (pin.record, pin.confirmed, pin.target_name) == (3, True, TARGET)
    assert notes == []


def test_a_fork_whose_source_was_gone_when_it_was_copied_loses_what_it_inherited() -> None:
    copied = Copied()
    copied.source()
    copied.pin()
    copied.create()
    copied.confirm()
    copied.copy(2)
    copied.copies[1] = snapshot_of(World(GROUPS).machines[1])
    world, notes = copied.reborn()
    fork = world.machines[2].directory.streams[TARGET]
    assert (fork.first_record, fork.first_byte) == (3, 3)
    assert fork.extras is not None and fork.extras.detached
    assert [(note.name, note.record, note.end) for note in notes] == [(TARGET, 0, 3)]


def test_a_fork_whose_source_was_trimmed_meanwhile_begins_there() -> None:
    copied = Copied()
    copied.source()
    uid = copied.world.machines[1].directory.streams[SOURCE].uid
    copied.world.apply(1, Trim([(uid, 2, 2)], 5))
    copied.copy(1)
    fork = Fork(ATTEMPT, SOURCE, uid, 3, 3)
    copied.world.apply(2, Create(TARGET, 2, "text/plain", Encoding.BYTES, fork=fork))
    copied.copy(2)
    world, notes = copied.reborn()
    assert world.machines[2].directory.streams[TARGET].first_record == 2
    assert [(note.record, note.end) for note in notes] == [(0, 2)]


def test_a_fork_of_records_that_its_source_has_not_got_loses_what_it_inherited() -> None:
    """The source was copied first, or its last records were on the lost disks alone; with its pin,
    or without."""
    for pinned in (False, True):
        copied = Copied()
        copied.world.apply(1, Create(SOURCE, 1, "text/plain", Encoding.BYTES))
        copied.world.apply(1, Append(SOURCE, 1, "text/plain", raw_batch(b"0")))
        copied.copy(1)
        for number in (1, 2):
            copied.world.apply(1, Append(SOURCE, 1, "text/plain", raw_batch(b"%d" % number)))
        copied.pin()
        copied.create()
        copied.world.apply(2, Append(TARGET, 2, "text/plain", raw_batch(b"own")))
        copied.copy(2)
        if pinned:
            image = decode_image(snapshot_of(copied.world.machines[1]))
            cut = next(stream for stream in image.streams if stream.name == SOURCE)
            cut.next_record, cut.next_byte, cut.hot = 1, 1, (cut.hot or [])[:1]
            copied.copies[1] = write_image(image)
        world, notes = copied.reborn()
        fork, source = (
            world.machines[2].directory.streams[TARGET],
            world.machines[1].directory.streams[SOURCE],
        )
        assert (fork.first_record, fork.first_byte) == (3, 3)
        assert fork.extras is not None and fork.extras.detached
        assert not source.pins
        assert [(note.name, note.record, note.end) for note in notes] == [(TARGET, 0, 3)]


def test_a_fork_of_a_fork_that_loses_what_it_inherited_loses_it_too() -> None:
    """Lose inherited records: the middle fork has records of its own, which stay; its fork has
    them, or ends before them."""
    for record, first in ((4, 3), (2, 2)):
        copied = Copied()
        copied.source()
        copied.pin()
        copied.create()
        copied.confirm()
        copied.world.apply(2, Append(TARGET, 2, "text/plain", raw_batch(b"o")))
        middle = copied.world.machines[2].directory.streams[TARGET].uid
        attempt = "b" * 32
        assert (
            copied.world.apply(
                2, PinSource(TARGET, attempt, SOURCE + "-2", 2, record, record, resolved=True)
            ).code
            == Code.OK
        )
        fork = Fork(attempt, TARGET, middle, record, record, depth=2)
        group = group_of(f"{SOURCE}-2", GROUPS)
        assert (
            copied.world.apply(
                group, Create(f"{SOURCE}-2", 2, "text/plain", Encoding.BYTES, fork=fork)
            ).code
            == Code.CREATED
        )
        copied.world.apply(2, ConfirmPin(middle, attempt))
        copied.copy()
        image = decode_image(copied.copies[1])
        image.streams = [stream for stream in image.streams if stream.name != SOURCE]
        copied.copies[1] = write_image(image)
        world, notes = copied.reborn()
        last = world.machines[group].directory.streams[f"{SOURCE}-2"]
        assert (last.first_record, last.first_byte) == (first, first)
        assert (last.extras is not None and last.extras.detached) == (record == first)
        assert {(note.name, note.record, note.end) for note in notes} == {
            (TARGET, 0, 3),
            (f"{SOURCE}-2", 0, first),
        }


def put(copied: Copied) -> int:
    config = SubscriptionConfig(0, "docs/**", [], "http://127.0.0.1/", "", 1000)
    return copied.world.apply(1, SubscriptionPut("s", 1, config, "http://here")).uid


def test_a_subscription_is_idle_and_linked_anew() -> None:
    copied = Copied()
    copied.source()
    uid = put(copied)
    for group in (1, 2):
        copied.world.apply(group, LinkSubscription("s", uid, 1, "docs/**", "", []))
    copied.world.apply(1, SubscriptionEvent("s", uid, Event.WAKE, 5, wake_id="w", text=SOURCE))
    before = copied.world.machines[1].subscriptions.owned["s"]
    assert before.state == State.WAKING
    copied.copy()
    world, _ = copied.reborn()
    after = world.machines[1].subscriptions.owned["s"]
    assert (after.state, after.wake_id, after.linked) == (State.IDLE, "", 0)
    assert after.generation > before.generation
    watch = world.machines[1].subscriptions.watches["s"]
    assert list(watch.pending) == []  # the cursor was at the tail, and still is
    assert (world.machines[1].directory.streams[SOURCE].links or {})["s"].record == 3 + JUMP


def test_a_subscription_of_which_another_group_knows_more_is_linked_as_its_home_says() -> None:
    copied = Copied()
    uid = put(copied)
    copied.copy(1)
    copied.world.apply(2, LinkSubscription("s", uid, 3, "docs/**", "", [TARGET]))
    copied.copy(2)
    world, _ = copied.reborn()
    subscription = world.machines[1].subscriptions.owned["s"]
    assert (
        world.apply(2, LinkSubscription("s", uid, subscription.revision, "docs/**", "", [])).code
        == Code.OK
    )
    assert not world.machines[2].subscriptions.by_name, (
        "not what it watched in the time that is lost"
    )
    copied.world.apply(2, UnlinkSubscription("s", uid))  # nor that it came to an end
    copied.copy(2)
    world, _ = copied.reborn()
    assert (
        world.apply(2, LinkSubscription("s", uid, subscription.revision, "docs/**", "", [])).code
        == Code.OK
    )


def test_links_of_a_subscription_that_is_not_there_go() -> None:
    copied = Copied()
    copied.source()
    uid = put(copied)
    copied.world.apply(2, LinkSubscription("s", uid, 1, "docs/**", "", []))
    copied.world.apply(2, Create(TARGET, 1, "text/plain", Encoding.BYTES))
    copied.copy(2)
    copied.copies[1] = snapshot_of(World(GROUPS).machines[1])
    world, _ = copied.reborn()
    assert world.machines[2].subscriptions.watches == {}
    assert world.machines[2].directory.streams[TARGET].links is None
    assert world.apply(2, UnlinkSubscription("s", uid)).code == Code.OK


def with_a_pack() -> Copied:
    """Publish a pack of group 2 that holds the whole source."""
    copied = Copied()
    copied.source()
    stream = copied.world.machines[1].directory.streams[SOURCE]
    cold = copied.world.slice_of(stream, 3, "c/packs/h/2-x")
    copied.world.apply(1, PublishSlices(cold.pack, 2, 1, [(stream.uid, cold)]))
    return copied


def test_who_holds_a_pack_is_counted_anew() -> None:
    copied = with_a_pack()
    copied.copy(1)
    copied.world.apply(2, PackWritten("c/packs/h/2-old", [1, 2], 5))
    copied.copy(2)
    world, _ = copied.reborn()
    assert {key: pack.groups for key, pack in world.machines[2].packs.owned.items()} == {
        "c/packs/h/2-x": [1]
    }
    world.apply(1, Delete(SOURCE, 100))
    assert [target for target, _ in world.machines[1].outbox.messages.values()] == [2]


def test_keys_follow_the_cluster() -> None:
    copied = with_a_pack()
    image = decode_image(snapshot_of(copied.world.machines[1]))
    survey = Survey(lambda key: key.replace("c/", "d/"))
    survey.add(image)
    reborn(image, survey, now_ms=9)
    assert list(image.held) == ["d/packs/h/2-x"]
    assert survey.packs == {2: {"d/packs/h/2-x": [1]}}


def test_a_table_begins_anew_under_another_uid() -> None:
    copied = Copied()
    uid = copied.world.apply(0, TableCreate("t", "docs/", 1)).uid
    copied.copy(0)
    world, _ = copied.reborn()
    (table,) = world.machines[0].meta.tables.values()
    assert (table.name, table.prefix, table.job, table.main) == ("t", "docs/", 0, "")
    assert table.uid == uid + UID_JUMP + 1
    assert world.apply(0, TableCreate("u", "other/", 1)).uid == uid + UID_JUMP + 2


def test_of_restores_one_after_the_other_no_uid_tells_of_another_group() -> None:
    """Restore repeatedly, each time from a backup of the previous restore."""
    copied = Copied()
    for _ in range(1000):
        image = decode_image(copied.copies[1])
        reborn(image, Survey(), now_ms=99)
        copied.copies[1] = write_image(image)
    world, _ = copied.reborn()
    assert world.machines[1].counters.next_uid() >> 48 == 1


def test_a_closed_stream_ends_where_it_ended_and_new_uids_are_far_away() -> None:
    copied = Copied()
    copied.source()
    copied.world.apply(1, Append(SOURCE, 2, "", None, close=True))
    copied.copy()
    world, _ = copied.reborn()
    stream = world.machines[1].directory.streams[SOURCE]
    assert (stream.closed, stream.next_record) == (True, 3)
    world.apply(1, Delete(SOURCE, 100))
    assert (
        world.apply(1, Create(SOURCE, 101, "text/plain", Encoding.BYTES)).uid
        == stream.uid + UID_JUMP + 1
    )
