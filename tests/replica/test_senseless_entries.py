"""An entry that no node can read does not get into the logs of the others: they elect one of
themselves, and the broken leader follows."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from sim.cluster import Node, World
from stories.cluster import A, led, stories
from worlds.service import raw_batch

from polynya.base.errors import InvalidMessage, OutcomeUnknown, PolynyaError
from polynya.base.levels import LEVEL
from polynya.engine.entry_validation import EntryValidator
from polynya.raft.messages import Append as AppendEntries
from polynya.raft.messages import Entry
from polynya.replica import log
from polynya.routing import messages
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, Bundle
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.packs.commands import ReplaceSlices
from polynya.stream.features.placement.commands import PlaceGroup
from polynya.stream.features.settings.commands import MetaChange, SetLevel
from polynya.stream.parts import ColdSlice, Fork, Producer

story = stories(led, World.wait_equal)
NEGATIVE = msgspec.structs.replace(
    Append(A, 1, "text/plain", raw_batch(b"x")), producer=Producer("p", -1, 0)
)
MANY = Append(A, 1, "text/plain", msgspec.structs.replace(raw_batch(b"x"), records=1 << 32))
NOISE = (
    log.encode_command(NEGATIVE),
    log.encode_command(MANY),
    b"",
    b"\xc1",
    b"\x93",
    b"\x92\x63\x91",
    b"\x91\xcc\xfe",
    b"\x94\x01\x02\x03\x04",
    b"\xd9\x02\xff\xff",
    b"\x91" * 3000,
    log.encode_command(SetLevel(99)),
    log.encode_command(
        Append(A, 1, "text/plain", msgspec.structs.replace(raw_batch(b"x"), lengths=b"123"))
    ),
    log.encode_command(Bundle([Append(A, 1 << 60, "text/plain", None, close=True)])),
)
PACK = "c/packs/20260101-00/1-" + "0" * 32
NONSENSE: tuple[
    tuple[str, Command], ...
] = (  # stopped followers, or would be stored and stop its readers
    ("level", SetLevel(99)),
    ("slice", ReplaceSlices(PACK, 1, 1, [(1, ColdSlice(0, 0, 1, 1 << 40, PACK, 0, 1, 0))])),
    (
        "lengths",
        Append(
            A,
            1,
            "text/plain",
            msgspec.structs.replace(raw_batch(b"noise"), records=2, lengths=b"\1\0\0\0"),
        ),
    ),
    ("time", Append(A, 1 << 60, "text/plain", raw_batch(b"noise"))),
    ("epoch", PlaceGroup(1, (1,), 1, -1)),
    ("fork", Create("default/f", 1, "text/plain", 0, fork=Fork("a", A, 1, 1 << 63, 0))),
    ("scope", MetaChange("access/", 0, [])),
)


@pytest.mark.parametrize("noise", NOISE, ids=range(len(NOISE)))
def test_what_is_no_command_is_refused_when_it_is_read(noise: bytes) -> None:
    doubts = EntryValidator()
    message = AppendEntries(1, 2, 3, 4, 0, 0, 0, [Entry(noise, 1, 4, 1, 3)])
    assert not doubts.accept(message, 0)
    sound = AppendEntries(1, 2, 3, 4, 0, 0, 0, [])
    assert not doubts.accept(sound, 9_999)
    assert doubts.accept(AppendEntries(1, 2, 3, 5, 0, 0, 0, []), 9_999), "another term"
    assert doubts.accept(AppendEntries(1, 2, 2, 4, 0, 0, 0, []), 9_999), "another group"
    assert doubts.accept(AppendEntries(1, 1, 3, 4, 0, 0, 0, []), 9_999), "another node"
    assert doubts.accept(sound, 10_000)


@story
async def test_a_leader_that_logs_noise_is_followed_no_more_and_recovers(
    world: World, leader: Node
) -> None:
    group = world.group_of(A)
    await leader.append(A, b"1;")
    encode = log.encode_command
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "polynya.engine.replicated.encode_command", lambda command: b"\xc1" + encode(command)
        )
        stuck = asyncio.ensure_future(leader.append(A, b"noise;"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await world.wait(
        lambda: any(
            node.core.replicas.is_leader(group) for node in world.alive() if node is not leader
        )
    )
    other = next(
        node for node in world.alive() if node is not leader and node.core.replicas.is_leader(group)
    )
    await other.append(A, b"2;")
    with pytest.raises(PolynyaError):
        await stuck
    assert isinstance(stuck.exception(), OutcomeUnknown)
    for node in world.alive():
        assert not node.faults and await node.read(A) == b"1;2;"
    for node in list(world.alive()):  # nor is it on any disk
        node.kill()
        node.start()
    await world.wait_leaders()
    assert await leader.read(A) == b"1;2;"


@pytest.mark.parametrize(("_", "command"), NONSENSE, ids=[name for name, _ in NONSENSE])
def test_a_leader_that_logs_nonsense_ends_no_follower_and_nothing_of_it_is_stored(
    _: str, command: Command
) -> None:
    @story
    async def nonsense_logged(world: World, leader: Node) -> None:
        group = world.group_of(A)
        await leader.append(A, b"1;")
        answers: list[object] = []
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("polynya.engine.replicated.encode_proposal", log.encode_command)
            leader.core.propose(group, command, answers.append)
        await world.wait(
            lambda: any(
                node.core.replicas.is_leader(group) for node in world.alive() if node is not leader
            )
        )
        other = next(
            node
            for node in world.alive()
            if node is not leader and node.core.replicas.is_leader(group)
        )
        await other.append(A, b"2;")
        assert [type(answer) for answer in answers] == [OutcomeUnknown]
        for node in list(world.alive()):
            assert not node.faults
            node.kill()
            node.start()
        await world.wait_leaders()
        for node in world.alive():
            assert not node.faults and await node.read(A) == b"1;2;"
            assert node.core.core_replicas.groups[group].machine.counters.level <= LEVEL

    nonsense_logged()


@story
async def test_nonsense_is_not_proposed(world: World, leader: Node) -> None:
    group, term = world.group_of(A), leader.core.replicas.term(world.group_of(A))
    for _, command in NONSENSE:  # an append is checked where it enters: see the next test
        if type(command) is not Append:
            with pytest.raises(InvalidMessage, match="refused to propose"):
                leader.core.propose(group, command, lambda answer: None)
    await leader.append(A, b"1;")
    assert leader.core.replicas.term(group) == term and await leader.read(A) == b"1;"


@story
async def test_a_senseless_append_of_a_hostile_relay_is_not_proposed(
    world: World, leader: Node
) -> None:
    group, term = world.group_of(A), leader.core.replicas.term(world.group_of(A))
    head = group.to_bytes(2, "little")
    hear = leader.way.handlers[messages.PROPOSE]
    sound, replace = Append(A, 1, "text/plain", raw_batch(b"x")), msgspec.structs.replace
    for command in (
        replace(sound, batch=replace(raw_batch(b"noise"), records=2, lengths=b"\1\0\0\0")),
        replace(sound, batch=replace(raw_batch(b"noise"), encoding=9)),
        replace(sound, producer=Producer("p", 0, 0, kind=7)),
        replace(sound, producer=Producer("p", 0, 5, 4)),
        replace(sound, incarnation=-1),
    ):
        with pytest.raises(InvalidMessage, match="refused to propose"):
            hear(head + log.encode_command(command), lambda answer: None, 2)
    for command in (NEGATIVE, MANY):
        with pytest.raises(msgspec.ValidationError):
            hear(head + log.encode_command(command), lambda answer: None, 2)
    await leader.append(A, b"1;")
    assert leader.core.replicas.term(group) == term and await leader.read(A) == b"1;"


@story
async def test_one_node_that_cannot_read_what_the_others_log_costs_them_nothing(
    world: World, leader: Node
) -> None:
    old = next(node for node in world.alive() if node is not leader)
    group = world.group_of(A)
    term = leader.core.replicas.term(group)
    real = old.core._validator.accept
    old.core._validator.accept = lambda message, now_ms: (
        message.group != group and real(message, now_ms)
    )  # type: ignore[method-assign]
    for number in range(20):
        await leader.append(A, b"%d;" % number)
        await asyncio.sleep(1)
    assert (
        leader.core.replicas.is_leader(group)
        and leader.core.replicas.term(group) == term
        and not old.faults
    )
    old.core._validator.accept = real  # type: ignore[method-assign]
