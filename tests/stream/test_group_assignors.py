"""The assignors of the consumer protocol: each partition has one reader, the numbers are equal, few
move, and a second run moves none."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.stream.features.consumer_groups.assignors import (
    ASSIGNORS,
    TopicPartitions,
    Topics,
    ranges,
    uniform,
)

COUNTS = {b"t": 5, b"u": 3, b"v": 1}
NONE: Mapping[str, TopicPartitions] = {}
SUBSCRIPTIONS = st.sets(st.sampled_from(sorted(COUNTS))).map(frozenset)
WANTED = st.dictionaries(st.sampled_from("abcdef"), SUBSCRIPTIONS, min_size=1)


def sizes(found: Mapping[str, TopicPartitions]) -> list[int]:
    return sorted(map(len, found.values()))


@given(st.sampled_from(sorted(ASSIGNORS)), WANTED, WANTED)
def test_each_partition_has_one_reader_that_wants_it(
    name: str, before: dict[str, Topics], wanted: dict[str, Topics]
) -> None:
    assign = ASSIGNORS[name]
    found = assign(wanted, COUNTS, assign(before, COUNTS, NONE))
    assert found.keys() == wanted.keys()
    partitions = [partition for each in found.values() for partition in each]
    topics = {topic for each in wanted.values() for topic in each}
    assert sorted(partitions) == sorted((t, n) for t in topics for n in range(COUNTS[t]))
    for id_, some in found.items():
        assert {topic for topic, _ in some} <= wanted[id_]
    assert assign(wanted, COUNTS, found) == found, "a fixed point"


@given(WANTED)
def test_uniform_leaves_no_pair_that_a_move_would_even_out(wanted: dict[str, Topics]) -> None:
    found = uniform(wanted, COUNTS, NONE)
    for id_, partitions in found.items():
        for topic, _ in partitions:
            for other, topics in wanted.items():
                if topic in topics:
                    assert len(partitions) - len(found[other]) < 2, (id_, other)


def test_uniform_moves_few() -> None:
    counts = {b"t": 100}
    wanted = {f"m{number}": frozenset({b"t"}) for number in range(9)}
    before = uniform(wanted, counts, NONE)
    assert sizes(before) == [11] * 8 + [12]
    after = uniform({**wanted, "new": frozenset({b"t"})}, counts, before)
    assert sizes(after) == [10] * 10
    assert sum(len(before[id_] - after[id_]) for id_ in before) == 10
    less = uniform({id_: wanted[id_] for id_ in list(wanted)[1:]}, counts, after)
    assert all(after[id_] <= less[id_] for id_ in less)


def test_uniform_balances_different_subscriptions() -> None:
    wanted = {"a": frozenset({b"t"}), "b": frozenset({b"t", b"u"}), "c": frozenset({b"u"})}
    assert sizes(uniform(wanted, COUNTS, NONE)) == [2, 3, 3]
    skewed = {"b": frozenset((b"t", n) for n in range(5))}
    assert sizes(uniform(wanted, COUNTS, skewed)) == [2, 3, 3]


def test_ranges_of_equal_topics_are_equal() -> None:
    wanted = {id_: frozenset({b"t", b"w"}) for id_ in "abc"}
    found = ranges(wanted, {b"t": 5, b"w": 5}, NONE)
    assert [sorted({number for _, number in found[id_]}) for id_ in "abc"] == [[0, 1], [2, 3], [4]]
    assert [len(found[id_]) for id_ in "abc"] == [4, 4, 2]


@pytest.mark.parametrize("name", ASSIGNORS)
def test_no_topics_no_partitions(name: str) -> None:
    assert ASSIGNORS[name]({"a": frozenset()}, {}, NONE) == {"a": frozenset()}
