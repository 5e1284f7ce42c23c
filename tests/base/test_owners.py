"""Owners of streams: golden values, shared by all releases, and the moves caused by a change of
nodes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from polynya.base.owners import owner

NODES = st.sets(st.integers(1, 250), min_size=1, max_size=12)
GOLDEN = [2, 3, 1, 3, 2]
NAMES = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=30)


def test_owners_are_the_same_in_all_releases() -> None:
    names = ("kafka/orders/0", "kafka/orders/1", "kafka/orders/2", "default/a", "ü/漢")
    assert [owner(name, (1, 2, 3)) for name in names] == GOLDEN
    assert [owner(name, (3, 2, 1)) for name in names] == GOLDEN, "the order does not matter"
    assert owner("kafka/orders/0", ()) == 0


@given(NAMES, NODES, st.integers(1, 250))
def test_a_node_that_joins_takes_streams_and_moves_no_other(
    names: list[str], nodes: set[int], new: int
) -> None:
    for name in names:
        assert owner(name, nodes | {new}) in (owner(name, nodes), new)


@given(NAMES, NODES)
def test_a_node_that_leaves_moves_its_own_streams_only(names: list[str], nodes: set[int]) -> None:
    for gone in nodes:
        left = nodes - {gone}
        for name in names if left else ():
            before = owner(name, nodes)
            assert before == gone or owner(name, left) == before


def test_partitions_of_few_topics_are_spread_over_the_nodes() -> None:
    counts = Counter(
        owner(f"kafka/topic-{topic}/{number}", range(1, 6))
        for topic in range(10)
        for number in range(100)
    )
    assert len(counts) == 5 and max(counts.values()) < 1.25 * 200 < 1.6 * min(counts.values())
