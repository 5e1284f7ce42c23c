"""Canonical names: which first segment is a bucket, and which names stay in the bucket `default`."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.base.names import (
    RESERVED_FIRST,
    RESERVED_LATER,
    BadName,
    bucket_of,
    canonical_name,
    canonical_prefix,
    canonical_prefixes,
    group_of,
    is_bucket,
    partition_name,
    spelled_name,
)


@pytest.mark.parametrize(
    "segment", ["a", "eu", "iot", "app", "1", "-", "a_b-9", "x" * 64, "orders", "default"]
)
def test_one_to_64_characters_are_a_bucket(segment: str) -> None:
    assert is_bucket(segment)
    assert canonical_name(f"{segment}/x") == f"{segment}/x"
    assert canonical_prefix(f"{segment}/") == f"{segment}/"


@pytest.mark.parametrize(
    "segment",
    ["", "x" * 65, "Orders", "a.b", "ä", "a b", "_a", "_", "__ds", *sorted(RESERVED_FIRST)],
)
def test_other_segments_are_none(segment: str) -> None:
    assert not is_bucket(segment)


@pytest.mark.parametrize("path", ["Orders/x", "a.b/c/d", "ä/x", "x" * 65 + "/y", "single"])
def test_a_first_segment_that_is_no_bucket_stays_in_default(path: str) -> None:
    assert canonical_name(path) == canonical_name(f"default/{path}") == f"default/{path}"
    assert spelled_name(f"default/{path}") == path
    assert bucket_of(canonical_name(path)) == "default"


@pytest.mark.parametrize("reserved", [*sorted(RESERVED_FIRST), "_a"])
def test_a_reserved_first_segment_begins_no_name_however_it_is_spelled(reserved: str) -> None:
    for path in (reserved, f"{reserved}/x", f"default/{reserved}", f"default/{reserved}/x"):
        with pytest.raises(BadName, match="reserved"):
            canonical_name(path)


def test_a_bucket_below_default_is_written_out() -> None:
    assert canonical_name("default/iot/x") == "default/iot/x" != canonical_name("iot/x")
    assert spelled_name("default/iot/x") == "default/iot/x"


@pytest.mark.parametrize("prefix", ["a//b", "logs//", "logs/../x", "iot/a/./b"])
def test_a_prefix_that_no_name_can_have_is_refused_in_every_bucket(prefix: str) -> None:
    with pytest.raises(BadName, match="segments"):
        canonical_prefix(prefix)


_SEGMENT = st.text(st.sampled_from("ab9_-.$Zä"), min_size=1, max_size=5)
_PATH = st.lists(
    st.sampled_from(["default", "v1", "iot", "snapshot"]) | _SEGMENT, min_size=1, max_size=4
).map("/".join)


@given(_PATH)
def test_a_name_is_found_again_by_its_spelling(path: str) -> None:
    try:
        name = canonical_name(path)
    except BadName:
        return
    assert is_bucket(bucket_of(name))
    assert canonical_name(name) == canonical_name(spelled_name(name)) == name


def test_the_partitions_of_a_topic_lie_in_consecutive_groups() -> None:
    """Compare with golden values: the groups of existing data must not change."""
    assert [group_of(partition_name("orders", number), 16) for number in range(6)] == [
        15,
        16,
        1,
        2,
        3,
        4,
    ]
    assert [group_of(partition_name("a.b_c-D", number), 3) for number in range(4)] == [3, 1, 2, 3]
    assert len({group_of(partition_name("x", number), 64) for number in range(64)}) == 64
    for other in (
        "kafka/orders",
        "kafka/orders/01",
        "kafka/orders/x",
        "kafka/a/b/1",
        "kafka//1",
        "kafkas/orders/1",
    ):
        assert group_of(other, 16) == 1 + crc32(other.encode()) % 16


def test_a_topic_named_as_a_reserved_segment_has_a_stream() -> None:
    for reserved in RESERVED_LATER:
        assert canonical_name(partition_name(reserved, 0)) == f"kafka/~{reserved}/0"
    for free in ("__consumer_offsets", "_schemas", "v1", "a.b", "orders"):
        assert canonical_name(partition_name(free, 12)) == f"kafka/{free}/12"


@pytest.mark.parametrize(
    ("typed", "canonical"),
    [
        ("", [""]),
        ("trust", ["default/trust", "trust/"]),
        ("trust/", ["trust/"]),
        ("trust/b", ["trust/b"]),
        ("Trust", ["default/Trust"]),
        ("Trust/", ["default/Trust/"]),
        ("default", ["default/"]),
        ("default/a/b", ["default/a/b"]),
    ],
)
def test_a_word_is_also_the_bucket_of_that_name(typed: str, canonical: list[str]) -> None:
    assert canonical_prefixes(typed) == canonical
