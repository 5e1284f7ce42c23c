"""CRCs of joined bytes from those of their parts, against passes over the bytes."""

from __future__ import annotations

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.base import crc32c

SIZES = (0, 1, 2, 255, 256, 65_535, 1_000_003)


@given(st.binary(max_size=100), st.binary(max_size=3000))
def test_joined_crcs_are_those_of_the_joined_bytes(first: bytes, second: bytes) -> None:
    crcs = google_crc32c.value(first), google_crc32c.value(second)
    assert crc32c.joined(*crcs, len(second)) == google_crc32c.value(first + second)


@pytest.mark.parametrize("size", SIZES)
def test_parts_of_any_size_are_joined(size: int) -> None:
    first, second = b"head of a batch", b"\x5a" * size
    crcs = google_crc32c.value(first), google_crc32c.value(second)
    assert crc32c.joined(*crcs, size) == google_crc32c.value(first + second)
    assert crc32c.joined(crcs[0] ^ 1, crcs[1], size) != google_crc32c.value(first + second)
