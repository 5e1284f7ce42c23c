"""Blocks of Avro files: against a stranger's encoder, and damaged."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.base.errors import CorruptData
from polynya.wire.avro import blocks

SYNC = b"0123456789abcdef"


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def text(data: bytes) -> bytes:
    return varint(len(data)) + data


def container(codec: str, *found: bytes, sized: bool = False) -> bytes:
    fields = (
        text(b"avro.schema")
        + text(json.dumps("bytes").encode())
        + text(b"avro.codec")
        + text(codec.encode())
    )
    header = varint(-2) + varint(len(fields)) + fields if sized else varint(2) + fields
    packed = [zlib.compress(each, wbits=-15) if codec == "deflate" else each for each in found]
    return (
        b"Obj\x01"
        + header
        + varint(0)
        + SYNC
        + b"".join(varint(1) + text(each) + SYNC for each in packed)
    )


@given(
    st.lists(st.binary(max_size=300), max_size=5),
    st.sampled_from(["null", "deflate"]),
    st.booleans(),
)
def test_blocks_come_back(found: list[bytes], codec: str, sized: bool) -> None:
    assert list(blocks(container(codec, *found, sized=sized))) == found


@given(st.data())
def test_what_is_damaged_is_told_and_never_hangs(data: st.DataObject) -> None:
    whole = container("deflate", b"abc" * 100, b"x")
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    for each in (damaged, whole[:at]):
        try:
            assert all(len(block) <= 300 for block in blocks(each))
        except CorruptData:
            continue


@pytest.mark.parametrize("codec", ["zstandard", "snappy", ""])
def test_other_codecs_are_refused(codec: str) -> None:
    with pytest.raises(CorruptData, match="codec"):
        list(blocks(container(codec, b"x")))


def test_a_file_without_its_end_is_refused() -> None:
    whole = container("deflate", b"abc" * 100)
    for size in range(len(whole)):
        if size == len(whole) - len(
            varint(1) + text(zlib.compress(b"abc" * 100, wbits=-15)) + SYNC
        ):
            continue  # a file without blocks is whole
        with pytest.raises(CorruptData):
            list(blocks(whole[:size]))
