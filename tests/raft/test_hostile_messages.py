"""Impossible messages of another node: they are refused, stop no member and leave nothing in its
log."""

from __future__ import annotations

import random
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from worlds.raft import World

from polynya.base.errors import InvalidMessage
from polynya.raft import Configuration, Effects, Entry, EntryKind, Raft, decode_message
from polynya.raft.configuration import encode_configuration
from polynya.raft.messages import TERM_STEP_MAX

TYPES = range(1, 14)
FRAME = struct.Struct("<HBQQ")  # what the journal keeps of an entry: group, kind, term, index
encode = msgspec.msgpack.encode


def group_of_three() -> tuple[World, Raft, Raft]:
    """Build a group with a leader and some entries; return the leader and a follower."""
    world = World(Configuration((1, 2, 3)))
    for node in (1, 2, 3):
        world.add(node)
    world.pass_time(2000)
    found = world.leader()
    assert found is not None
    leader = found.live
    for number in range(5):
        assert leader.propose([Entry(b"%d" % number)], found.now_ms) is None
        world.run_quiet()
    return world, leader, world.members[leader.node % 3 + 1].live


def state_of(raft: Raft) -> tuple[Any, ...]:
    return (
        raft.term,
        raft.vote,
        raft.role,
        raft.leader,
        raft.commit,
        raft.log.last,
        raft.log.last_term,
        raft.configuration,
    )


@settings(max_examples=examples(300))
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    for start in (
        b"",
        b"\x95\x01",
        b"\x99\x01\x01\x01\x01\x01\x01\x01\x01",
        bytes([0x95, 10, 1, 1, 1, 1]),
    ):
        try:
            decode_message(start + data)
        except InvalidMessage:
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff\x01",  # an array of 4 Gi items
        encode([10, 1, 2, 1, 1, [1, 1, [[1]], 9, 1], 0])[:-1]
        + b"\xc6\xff\xff\xff\xff",  # … and as many bytes
        b"\x99\x01\x01\x02\x01\x01\x00\x00\x00"
        + b"\x91" * 100_000,  # so deep that the decoder would not come back
        encode([1, 1, 2, 1, 2**63, 0, 0, 0, []]),
        encode([1, 1, 2, 1, -1, 0, 0, 0, []]),
        encode([1, 1, 2, 1, 3, -1, 0, 0, []]),
        encode([1, 1, 2, 1, 3, 2**63, 0, 0, []]),
        encode([1, 1, 2, 1, 3, 4, 4, 0, []]),  # follows what is later
        encode([1, 1, 2, 1, 3, 4, 3, 0, [2, EntryKind.COMMAND, b""]]),  # terms fall
        encode([1, 1, 2, 1, 3, 4, 3, 0, [2, EntryKind.COMMAND, b"", 3, EntryKind.COMMAND, b""]]),
        encode(
            [1, 1, 2, 1, 3, 4, 2, 0, [3, EntryKind.RESET, b""]]
        ),  # would void the log at the next start
        encode([1, 1, 2, 1, 3, 4, 2, 0, [3, EntryKind.DROPPED, b""]]),
        encode([1, 1, 2, 1, 3, 4, 2, 0, [3, 2**40, b""]]),
        encode([1, 1, 2, 1, 3, 4, 2, 0, [-3, EntryKind.COMMAND, b""]]),
        encode([1, 1, 2, 1, 3, 4, 2, 0, [3, EntryKind.CONFIGURATION, b"\x91"]]),
        encode(
            [
                1,
                1,
                2,
                1,
                3,
                4,
                2,
                0,
                [3, EntryKind.CONFIGURATION, encode_configuration(Configuration(()))],
            ]
        ),
        encode([10, 1, 2, 1, 3, [9, 4, [[1]], 9, 1], 0, b"x"]),  # a snapshot of a later term
        encode([10, 1, 2, 1, 3, [9, 3, [[]], 9, 1], 0, b"x"]),
        encode([10, 1, 2, 1, 3, [9, 3, [[1]], 0, 1], 0, b""]),
        encode([10, 1, 2, 1, 3, [9, 3, [[1]], 9, 1], 9, b"x"]),
        encode([2, 1, 0, 1, 3, 1]),  # of no leader
    ],
)
def test_what_no_member_can_say_is_refused_before_it_is_a_message(data: bytes) -> None:
    with pytest.raises(InvalidMessage):
        decode_message(data)


def test_what_cannot_be_at_this_moment_changes_nothing() -> None:
    world, leader, follower = group_of_three()
    term, last, to, by = leader.term, leader.log.last, leader.node, follower.node
    for raft, message in [
        (leader, [1, to, by, 1, term, last, term, last, []]),  # it leads, too
        (leader, [3, to, by, 1, term, last]),
        (leader, [10, to, by, 1, term, [99, term, [[1, 2, 3]], 9, 1], 0, b"x"]),
        (leader, [2, to, by, 1, term, last + 1]),  # has entries that no member has
        (leader, [4, to, by, 1, term, 0, 0, last + 1]),
        (
            leader,
            [4, to, by, 1, term, leader.lead.context + 1, last, last],
        ),  # would be an endless lease
        (follower, [1, by, to, 1, term + TERM_STEP_MAX + 1, 0, 0, 0, []]),
        (follower, [5, by, to, 1, term + TERM_STEP_MAX + 1, last, term]),
        (follower, [2, by, to, 1, 2**62, 0]),
        (follower, [3, to, by, 1, term, 0]),  # for another member
        (follower, [3, by, to, 7, term, 0]),  # of another group
    ]:
        before = state_of(raft)
        with pytest.raises(InvalidMessage):
            raft.step(decode_message(encode(message)), world.members[raft.node].now_ms)
        assert state_of(raft) == before
    assert leader.propose([Entry(b"on")], world.members[to].now_ms) is None
    world.run_quiet()
    assert follower.log.last == last + 1


def test_no_numbers_of_whatever_message_end_a_member() -> None:
    for seed in range(40):
        chance = random.Random(seed)
        raft = group_of_three()[1 + chance.randrange(2)]
        for _ in range(60):
            try:
                raft.step(decode_message(encode(any_message(chance, raft))), raft.now_ms + 1)
            except InvalidMessage:
                pass
            raft.tick(raft.now_ms + chance.choice((0, 50, 1000)))
            live_through(raft)


def any_message(chance: random.Random, raft: Raft) -> list[Any]:
    around = [raft.term, raft.commit, raft.log.last, raft.lead.context, raft.durable]
    numbers = [
        0,
        0,
        1,
        *(near + by for near in around for by in (-1, 0, 1)),
        2**32,
        2**53,
        2**62,
        2**63,
        2**64 - 1,
        -1,
        -(2**63),
    ]
    number = lambda: chance.choice(numbers)  # noqa: E731
    type_, term = chance.choice(TYPES), raft.term + chance.choice((0, 0, 0, 1, 1, 2, TERM_STEP_MAX))
    head = [type_, raft.node, chance.choice((1, 2, 3, 3, 9)), 1, term]
    if type_ == 1:
        block = [
            item
            for _ in range(chance.randrange(3))
            for item in (
                chance.choice((term, raft.term, number())),
                chance.choice((1, 3, 4, 5)),
                b"",
            )
        ]
        voters = encode_configuration(
            Configuration(tuple(chance.sample((1, 2, 3, 9), chance.randrange(4))))
        )
        return [
            *head,
            number(),
            chance.choice((raft.log.last_term, number())),
            number(),
            [voters if item == b"" else item for item in block],
        ]
    if type_ == 10:
        voters = [chance.sample((1, 2, 3, 9), chance.randrange(3))]
        return [
            *head,
            [number(), raft.term, voters, chance.choice((1, 5, number())), number()],
            chance.choice((0, number())),
            b"12345"[: chance.randrange(6)],
        ]
    flags = type_ in (6, 12)
    return [
        *head,
        *(chance.choice((True, False)) if flags else number() for _ in range(chance.randrange(5))),
    ]


def live_through(raft: Raft) -> None:
    """Drive the member as its core would: write, sync, apply. Snapshots install at once, and none
    is sent."""
    while raft.queued:
        raft.ready.clear()
        effects: Effects = raft.take()
        for entry in effects.entries:
            FRAME.pack(entry.group, entry.kind, entry.term, entry.index)
        if effects.hard_state is not None:
            FRAME.pack(1, EntryKind.HARD_STATE, effects.hard_state.term, effects.hard_state.vote)
        if effects.committed:
            raft.applied_to(effects.committed[-1].index)
        if effects.install is not None:
            raft.snapshots.installed(effects.install.identity, raft.now_ms)
        if effects.load is not None:
            raft.loaded(effects.load.begin, [], raft.now_ms)
        if effects.ticket:
            raft.persisted(effects.ticket, raft.now_ms)
