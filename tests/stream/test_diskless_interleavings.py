"""Every order of the turns of two writers, a change of the profile in both directions, and a
restart from a snapshot: each append is in the stream once, at the position that its reply names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec import structs
from worlds.packed import commit_of
from worlds.stream import World, check_invariants, raw_batch

from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.packs.commands import PackWritten, PublishSlices
from polynya.stream.features.profiles.commands import (
    CommitSlices,
    Profile,
    SealProfileEpoch,
    SetProfile,
)
from polynya.stream.machine import Machine
from polynya.stream.parts import Batch, Encoding, Producer
from polynya.stream.read_plan import Want
from polynya.stream.replies import Code, Reply
from polynya.stream.state.profile_epochs import profile_epoch_of

NAME = "s"
RETRY = (Code.NOT_YET, Code.WRONG_PROFILE)


class Writer:
    """A core that appends `count` bodies in order, with `NAME` as it knows the profile. It loses
    the reply to each commit once, so it repeats the commit. With a producer it loses the replies to
    logged appends, too."""

    def __init__(self, cluster: Cluster, name: str, count: int, *, produces: bool) -> None:
        self.cluster = cluster
        self.name = name
        self.produces = produces
        self.left = [f"{name}{number};".encode() for number in range(count)]
        self.positions: dict[bytes, int] = {}
        self.packs = False  # what it believes
        self.number = 0
        self.lost: CommitSlices | Append | None = None

    def turn(self) -> None:
        """Send the next append, or repeat the one whose reply was lost."""
        if not self.left:
            return
        if self.lost is None:
            self.lost = self.command()
            reply = self.cluster.apply(self.lost)
            if isinstance(self.lost, CommitSlices) or self.produces:
                return
        else:
            reply = self.cluster.apply(self.lost)
        command, self.lost = self.lost, None
        if isinstance(command, CommitSlices):
            assert reply.code == Code.OK, reply
            (reply,) = reply.detail
        self.judge(reply)

    def judge(self, reply: Reply) -> None:
        if reply.code == Code.WRONG_PROFILE:
            self.packs = not self.packs
        if reply.code in RETRY:
            return
        assert reply.code in (Code.OK, Code.DUPLICATE), reply
        self.positions[self.left.pop(0)] = reply.first_record

    def command(self) -> CommitSlices | Append:
        now_ms, body = self.cluster.tick(), self.left[0]
        producer = Producer(self.name, 0, len(self.positions)) if self.produces else None
        append = Append(NAME, now_ms, "text/plain", raw_batch(body), producer)
        if not self.packs:
            return append
        self.number += 1
        pack = f"{self.name}-{self.number}"
        return commit_of(
            self.cluster.world, pack, (self.name, self.number), [append], now_ms=now_ms
        )


class Cluster:
    """One group, whose machine may begin again from its snapshot."""

    def __init__(self) -> None:
        self.world = World(1)
        self.now_ms = 1000
        self.position = 0
        self.uid = self.apply(Create(NAME, 1000, "text/plain", Encoding.BYTES)).uid

    @property
    def machine(self) -> Machine:
        return self.world.machines[1]

    def tick(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def apply(self, command: object) -> Reply:
        self.position += 1
        batch = getattr(command, "batch", None)
        if isinstance(batch, Batch):
            self.world.payloads[self.position] = batch.payload
        stamped = structs.replace(command, now_ms=self.tick())  # type: ignore[type-var]
        return self.machine.apply(stamped, self.position)  # type: ignore[arg-type]

    def change(self, step: str) -> None:
        stream = self.machine.directory.streams[NAME]
        if step == "to diskless":
            self.apply(SetProfile(NAME, Profile.DISKLESS, 0))
        elif step == "to replicated":
            self.apply(SetProfile(NAME, Profile.REPLICATED, 0))
        elif step == "seal":
            self.apply(SealProfileEpoch(NAME, self.uid, profile_epoch_of(stream).epoch, 0))
        elif step == "restart":
            self.world.machines[1] = self.world.restored(self.machine)
        elif stream.hot:
            assert step == "flush"
            cold = self.world.slice_of(stream, len(stream.hot), f"flush{self.position}")
            self.apply(PackWritten(cold.pack, [1], 0))
            self.apply(PublishSlices(cold.pack, 1, 1, [(self.uid, cold)]))


def orders(*turns: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every merge of the sequences."""
    if not any(turns):
        yield ()
    for at, each in enumerate(turns):
        if each:
            for rest in orders(*turns[:at], each[1:], *turns[at + 1 :]):
                yield each[0], *rest


def play(order: tuple[str, ...], *, begin: int) -> None:
    cluster = Cluster()
    if begin == Profile.DISKLESS:
        cluster.change("to diskless")
    writers = {
        "v": Writer(cluster, "v", 2, produces=False),
        "w": Writer(cluster, "w", 2, produces=True),
    }
    for step in order:
        if step in writers:
            writers[step].turn()
        else:
            cluster.change(step)
    for _ in range(12):  # the leader ends the change, writers go on
        if not any(writer.left for writer in writers.values()):
            break
        for step in ("flush", "seal"):
            cluster.change(step)
        for writer in writers.values():
            writer.turn()
    check(cluster, list(writers.values()))


def check(cluster: Cluster, writers: list[Writer]) -> None:
    check_invariants(cluster.machine)
    stream = cluster.machine.directory.streams[NAME]
    found = cluster.world.read(stream, Want(-1, 0, 1 << 20))
    assert isinstance(found, tuple)
    bodies = [body + b";" for body in found[0].split(b";")[:-1]]
    positions = {
        body: position for writer in writers for body, position in writer.positions.items()
    }
    assert not any(writer.left for writer in writers)
    assert [positions[body] for body in bodies] == list(range(4)), bodies
    for writer in writers:
        assert list(writer.positions.values()) == sorted(writer.positions.values())


CHANGES = {
    "into": (Profile.REPLICATED, ("to diskless", "flush", "seal")),
    "back": (Profile.DISKLESS, ("to replicated", "to diskless", "flush", "seal")),
    "undone": (Profile.REPLICATED, ("to diskless", "to replicated", "seal")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_append_is_there_once_whatever_the_order(change: str) -> None:
    begin, steps = CHANGES[change]
    turns = [("v", "v"), ("w", "w"), steps, ("restart",)]
    played = 0
    for order in orders(*turns):
        try:
            play(order, begin=begin)
        except AssertionError as fault:
            fault.add_note(f"in the order {order}")
            raise
        played += 1
    assert played in (1680, 3780)
