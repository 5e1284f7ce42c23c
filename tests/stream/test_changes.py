"""Each command that changes something is in the next delta, alone."""

from __future__ import annotations

from collections.abc import Callable

from worlds.stream import World, json_batch

from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import (
    Acknowledge,
    ConfirmPin,
    PinSource,
    RefuseAttempt,
    Unpin,
)
from polynya.stream.features.lifetimes.commands import Create, Delete, Touch
from polynya.stream.features.packs.commands import (
    PackDeleted,
    PackWritten,
    PublishSlices,
    ReleasePack,
)
from polynya.stream.features.retention.commands import BucketRetention, SetRetention, Trim
from polynya.stream.features.settings.commands import MetaSet
from polynya.stream.features.subscriptions.commands import (
    LinkSubscription,
    SubscriptionConfig,
    SubscriptionDelete,
    SubscriptionLinked,
    SubscriptionPut,
    SubscriptionStreams,
    UnlinkSubscription,
)
from polynya.stream.features.topics.commands import TopicDrop, TopicGone, TopicPut, TopicReady
from polynya.stream.parts import Encoding, Retention
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import snapshot_of

A = "a"


def changing(world: World) -> Callable[[Command], None]:
    """Applies a command to group 1, and sees that it changes something and that the change is
    kept."""
    machine = world.machines[1]

    def apply(command: Command) -> None:
        before = snapshot_of(machine)
        world.apply(1, command)
        world.chain(1)  # compares
        assert snapshot_of(machine) != before, "it changes something"

    return apply


def test_each_command_alone() -> None:
    world = World()
    machine, apply = world.machines[1], changing(world)
    apply(Create(A, 1, "application/json", Encoding.JSON, ttl_seconds=1000))
    uid = machine.directory.streams[A].uid
    apply(Append(A, 2, "application/json", json_batch(b"1", b"2")))
    apply(Touch([(uid, 500)], 600))
    apply(SetRetention(A, Retention(age_seconds=5), 700))
    apply(PinSource(A, "attempt-1", "fork", 800))
    apply(ConfirmPin(uid, "attempt-1"))
    apply(PinSource(A, "attempt-2", "fork", 801))
    apply(Unpin(uid, "attempt-2", 802))
    apply(RefuseAttempt("fork", "attempt-3", 803))
    apply(Trim([(uid, 1, 2)], 803))
    apply(
        PublishSlices(
            "packs/1",
            2,
            1,
            [(uid, world.slice_of(machine.directory.streams[A], 1, "packs/1"))],
            804,
        )
    )
    apply(PackWritten("packs/2", [1, 2], 805))
    apply(ReleasePack("packs/2", 1, 806))
    apply(ReleasePack("packs/2", 2, 807))
    apply(PackDeleted("packs/2"))
    apply(BucketRetention("bucket", Retention(age_seconds=9), 808))
    apply(MetaSet("key", b"value"))
    apply(Unpin(uid, "attempt-1", 900))
    apply(Delete(A, 901))
    assert world.apply(1, Acknowledge(max(machine.outbox.messages))).code == Code.OK
    world.chain(1)
    apply(Create(A, 902, "application/json", Encoding.JSON))
    apply(Delete(A, 903))


def test_each_command_of_a_topic_alone() -> None:
    world = World()
    apply = changing(world)
    apply(TopicPut("b", bytes(16), 3, [("retention.ms", "-1")], 1))
    apply(TopicPut("a", bytes(16), 1, [], 2))
    apply(TopicReady("b", bytes(16)))
    apply(TopicDrop("b", bytes(16)))
    apply(TopicGone("b", bytes(16)))
    apply(TopicDrop("a", bytes(16)))
    apply(TopicGone("a", bytes(16)))


def test_each_command_of_a_subscription_alone() -> None:
    world = World()
    machine, apply = world.machines[1], changing(world)
    config = SubscriptionConfig(0, "", ["a"], "http://hook/", "", 1000)
    apply(SubscriptionPut("s", 1, config, "http://one"))
    uid = machine.subscriptions.owned["s"].uid
    apply(SubscriptionPut("s", 2, config, "http://two"))
    apply(SubscriptionStreams("s", ["b"], [], 3))
    apply(SubscriptionLinked("s", uid, machine.subscriptions.owned["s"].revision))
    apply(Create(A, 4, "text/plain", Encoding.BYTES))
    apply(LinkSubscription("s", uid, 1, "", "", [A]))
    apply(LinkSubscription("s", uid, 2, "", "", []))
    apply(UnlinkSubscription("s", uid))
    apply(SubscriptionDelete("s", 5))
    apply(SubscriptionLinked("s", uid, 9))


def test_who_watches_a_stream_by_its_name_is_the_same_on_a_member_that_began_with_a_snapshot() -> (
    None
):
    """Compare byte for byte, as the world does. They are told of the name in another order than
    they came in."""
    world = World()
    for command in (
        LinkSubscription("s", 5, 1, "", "", []),
        LinkSubscription("t", 6, 1, "", "", [A]),
        LinkSubscription("s", 5, 2, "", "", [A]),
        Create(A, 4, "text/plain", Encoding.BYTES),
    ):
        assert world.apply(1, command).code in (Code.OK, Code.CREATED)
    assert list(world.machines[1].directory.streams[A].links or ()) == ["s", "t"]


def test_a_stream_that_is_taken_off_a_subscription_is_not_linked_any_more() -> None:
    world = World()
    for command in (
        Create(A, 1, "text/plain", Encoding.BYTES),
        LinkSubscription("s", 5, 1, "", "", [A]),
        LinkSubscription("t", 6, 1, "", "", [A]),
        LinkSubscription("s", 5, 2, "", "", []),
    ):
        assert world.apply(1, command).code in (Code.OK, Code.CREATED)
    machine = world.machines[1]
    assert list(machine.directory.streams[A].links or ()) == ["t"]
    assert {name: list(keys) for name, keys in machine.subscriptions.by_name.items()} == {A: ["t"]}


def test_a_stream_that_came_and_went_needs_no_tombstone() -> None:
    world = World()
    machine = world.machines[1]
    machine.apply(Create("old", 1, "text/plain", Encoding.BYTES))
    machine.take_changes()
    machine.apply(Create(A, 1, "text/plain", Encoding.BYTES))
    uid = machine.directory.streams[A].uid
    machine.apply(Delete(A, 2))
    machine.apply(Delete("old", 2))
    changes = machine.take_changes()
    assert uid not in changes.streams and len(changes.streams) == 1
    machine.kept.put_back(changes)
    again = machine.take_changes()
    assert again.streams == changes.streams and again.born == changes.born
