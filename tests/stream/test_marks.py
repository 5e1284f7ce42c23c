"""Snapshots of streams in the machine: what ends them, what they hold, and what a loss leaves."""

from __future__ import annotations

import pytest
from msgspec import structs
from worlds.stream import World, raw_batch

from polynya.base.limits import SNAPSHOT_BYTES_MAX
from polynya.base.names import companion_of, group_of, owner_of
from polynya.stream.command_validation import describe_fault
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import PinSource, Unpin
from polynya.stream.features.lifetimes.commands import Create, Delete, Expire
from polynya.stream.features.marks.commands import DropSnapshot, PublishSnapshot
from polynya.stream.features.marks.held import marks_of
from polynya.stream.features.pages.eviction import is_evictable, mark_of, may_leave
from polynya.stream.features.retention.commands import Trim
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots.encode import Image, decode_image, snapshot_of
from polynya.stream.snapshots.restore_history import Survey, reborn
from polynya.stream.snapshots.store_recovery import UnnamedSlice, salvage

NAME = "docs/a"
OWN = companion_of(NAME)
TYPE = "text/plain"
DIGEST = b"d" * 32


def published(
    world: World, record: int = 2, *, part: int = 0, ttl: int | None = None, origin: str = ""
) -> Reply:
    """Publish a snapshot of a stream, which is created with three records if it is not there."""
    if NAME not in world.machines[1].directory.streams:
        assert world.apply(1, Create(NAME, 1, TYPE, 0, ttl_seconds=ttl)).code == Code.CREATED
        for _ in range(3):
            world.apply(1, Append(NAME, 1, TYPE, raw_batch(b"x")))
    own = world.apply(1, Create(OWN, 1, TYPE, 0))
    world.apply(1, Append(OWN, 1, TYPE, raw_batch(b"body")))
    uid = world.machines[1].directory.streams[NAME].uid
    parts = ((part, 4 * part, 4),)
    return world.apply(
        1,
        PublishSnapshot(
            NAME, uid, record, record, own.uid, parts, 4, DIGEST, TYPE, origin, 2, None, 1
        ),
    )


def test_a_companion_is_in_the_group_of_its_stream() -> None:
    for name in (NAME, "docs/{tag}/x", "kafka/topic/7", "default/docs"):
        assert owner_of(companion_of(name)) == name
        for groups in (1, 7, 64):
            assert group_of(companion_of(name), groups) == group_of(name, groups)
    assert owner_of(NAME) == ""


@pytest.mark.parametrize("end", ["delete", "expire", "replace", "fork"])
def test_each_end_of_a_stream_ends_its_snapshots(end: str) -> None:
    world = World(1)
    assert published(world, ttl=1).code == Code.CREATED
    directory = world.machines[1].directory
    uid = directory.streams[NAME].uid
    if end == "delete":
        assert world.apply(1, Delete(NAME, 2)).code == Code.OK
    elif end == "expire":
        assert world.apply(1, Expire(NAME, uid, 1, 90_000)).code == Code.OK
    elif end == "replace":
        assert world.apply(1, Create(NAME, 90_000, TYPE, 0)).code == Code.CREATED
        assert marks_of(directory.streams[NAME]) == ()
    else:
        pin = PinSource(NAME, "ab", "docs/b", 2, 2, 2, "", 0, False)
        assert world.apply(1, pin).code == Code.OK
        assert world.apply(1, Delete(NAME, 3)).code == Code.OK
        assert directory.streams[NAME].deleted and OWN not in directory.streams
        world.apply(1, Unpin(uid, "ab", 4))
    assert not directory.marked and not directory.companions
    assert list(directory.streams) == ([NAME] if end == "replace" else [])
    assert directory.hot_bytes == 0


def test_no_companion_of_a_stream_that_does_not_live() -> None:
    world = World(1)
    assert world.apply(1, Create(OWN, 1, TYPE, 0)).code == Code.NOT_FOUND
    published(world)
    world.apply(1, PinSource(NAME, "ab", "docs/b", 2, 2, 2, "", 0, False))
    world.apply(1, Delete(NAME, 3))
    assert world.apply(1, Create(OWN, 4, TYPE, 0)).code == Code.NOT_FOUND, "only its forks need it"


def test_a_fork_before_the_oldest_snapshot_of_a_trimmed_stream_is_refused() -> None:
    world = World(1)
    published(world)
    stream = world.machines[1].directory.streams[NAME]

    def pin(record: int, *, resolved: bool = False) -> Reply:
        attempt = f"at {record} {resolved}"
        return world.apply(
            1, PinSource(NAME, attempt, "docs/b", 2, record, record, "", 0, resolved)
        )

    world.apply(1, Trim([(stream.uid, 1, 1)], 2))
    assert pin(0).code == Code.OK, "it inherits nothing"
    for refused in (pin(1), pin(1, resolved=True)):
        assert (refused.code, refused.detail) == (Code.SNAPSHOT_NEEDED, [2, 2])
    assert pin(2).code == pin(3).code == Code.OK, "the snapshot covers what they lack"
    world.apply(1, Trim([(stream.uid, 2, 2)], 2))
    assert pin(1).code == Code.SNAPSHOT_NEEDED
    world.apply(1, Trim([(stream.uid, 3, 3)], 2))
    assert pin(1).code == Code.TRIMMED, "the snapshot covers nothing any more"


def test_superseded_snapshots_keep_their_stream_in_memory() -> None:
    world = World(1)
    published(world)
    machine = world.machines[1]
    stream, own = (machine.directory.streams[name] for name in (NAME, OWN))
    stream.hot = own.hot = None
    assert is_evictable(stream) and not may_leave(machine, own), "its owner is in memory"
    before = mark_of(stream)
    assert stream.extras is not None and stream.extras.marks
    stream.extras.marks = [structs.replace(stream.extras.marks[0], dropped_ms=1)]
    assert not is_evictable(stream) and mark_of(stream) != before


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"sha256": b"d"}, "has 1 bytes; expected 32"),
        ({"parts": ()}, "4 bytes has 0 parts"),
        ({"parts": ((1, 4, 4),) * 65, "size": 260}, "65 parts"),
        ({"parts": ((1, 4, 3),)}, "the parts of a snapshot of 4 bytes"),
        ({"parts": ((1, -4, 4),)}, "expected 0 to"),
        ({"size": SNAPSHOT_BYTES_MAX + 1}, "size is"),
        ({"kept": 9}, "kept is 9"),
        ({"origin": "x" * 129}, "more than 128 characters"),
        ({"bound": ["r"] * 65}, "65 origins"),
        ({"content_type": "x" * 5000}, "content type"),
    ],
)
def test_a_publish_that_makes_no_sense(change: dict[str, object], fault: str) -> None:
    fields: dict[str, object] = {
        "name": NAME,
        "uid": 1,
        "record": 2,
        "byte": 2,
        "companion_uid": 2,
        "parts": ((1, 4, 4),),
        "size": 4,
        "sha256": DIGEST,
        "content_type": TYPE,
        "origin": "",
        "kept": 2,
        "bound": None,
        "now_ms": 1,
    }
    assert describe_fault(PublishSnapshot(**fields)) == ""  # type: ignore[arg-type]
    assert fault in describe_fault(PublishSnapshot(**fields | change))  # type: ignore[arg-type]
    assert "record is -2" in describe_fault(DropSnapshot(NAME, 1, "", -2, 2, None, 1))


def image_of(world: World) -> Image:
    return decode_image(snapshot_of(world.machines[1]))


def test_a_restore_keeps_the_snapshots() -> None:
    world = World(1)
    published(world)
    image, survey = image_of(world), Survey()
    survey.add(image)
    assert reborn(image, survey, now_ms=9) == []
    owner = next(stream for stream in image.streams if stream.name == NAME)
    assert [mark.record for mark in marks_of(owner)] == [2]


def test_a_recovery_drops_a_snapshot_whose_body_is_lost() -> None:
    world = World(1)
    published(world)
    image = image_of(world)
    notes = salvage(image, {})  # all of it was on the lost disks
    owner = next(stream for stream in image.streams if stream.name == NAME)
    assert owner.extras is None and [stream.name for stream in image.streams] == [NAME, OWN]
    assert any("the snapshot at record 2" in note.what for note in notes)


def test_a_recovery_drops_the_bodies_of_a_lost_stream() -> None:
    """The stream was created after the copy, and no slice of it is in the store."""
    world = World(1)
    image = image_of(world)
    published(world)
    own = world.machines[1].directory.streams[OWN]
    piece = world.slice_of(own, 1, "packs/1")
    found = UnnamedSlice(own.uid, piece, 1, 0, 1, OWN, TYPE)
    salvage(image, {own.uid: [found]})
    assert image.streams == [] and image.held == {}
