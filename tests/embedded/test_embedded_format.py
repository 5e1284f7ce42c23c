"""The files of an embedded log, read by docs/formats/embedded.md and compared with golden bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec
from google_crc32c import value
from worlds.fake_disk import FakeDisk

from polynya.embedded import Log

FOLDER = Path("/log")
GOLDEN = Path(__file__).with_name("golden_log.hex")


def written() -> dict[str, bytes]:
    """The files of a small log with a frame of each kind, without what follows the last frame."""
    disk = FakeDisk()
    log = Log(FOLDER, segment_bytes=4096, files=disk)
    log.append("a", b"one")
    log.append_batch("a", [b"two", b"", b"four"])
    log.commit("a", "reader", 2)
    log.commit("a", "other", 1)
    log.drop_cursor("a", "other")
    log.trim("a", 2)
    log.append("b", b"x")
    log.delete("b")
    log.append("a", bytes(4000))
    return {path.name: bytes(inode.cached).rstrip(b"\0") for path, inode in disk.files.items()}


def frames(segment: bytes) -> list[tuple[int, int, int, bytes]]:
    """(kind, term, index, payload) of each frame that is no mark."""
    found, at = [], 64
    while at + 32 <= len(segment):
        length, crc, group, kind, zero, term, index = struct.unpack_from("<IIHBBQQ", segment, at)
        payload = segment[at + 32 : at + 32 + length].ljust(length, b"\0")
        assert (crc, group, zero) == (value(payload), 0, 0)
        at += 32 + length
        if kind:
            found.append((kind, term, index, payload))
    return found


def test_frames_are_as_the_page_says() -> None:
    files = written()
    batch = struct.pack("<IIII", 3, 3, 0, 4) + b"twofour"
    assert frames(files["0000000001.journal"]) == [
        (23, 0, 0, msgspec.msgpack.encode([1, 1, [], []])),
        (18, 1, 0, b"a"),
        (16, 1, 0, b"one"),
        (17, 1, 1, batch),
        (21, 1, 2, b"reader"),
        (21, 1, 1, b"other"),
        (22, 1, 0, b"other"),
        (20, 1, 2, struct.pack("<Q", 6)),
        (18, 2, 0, b"b"),
        (16, 2, 0, b"x"),
        (19, 2, 0, b""),
    ]
    state = [1, 3, [[1, "a", 2, 4, 6, 10]], [[1, "reader", 2]]]
    assert frames(files["0000000002.journal"]) == [
        (23, 0, 0, msgspec.msgpack.encode(state)),
        (16, 1, 4, bytes(4000)),
    ]


def test_an_index_is_as_the_page_says() -> None:
    index = written()["0000000001.index"]
    magic, version, length, _, directory_crc, arrays_crc = struct.unpack_from("<8sIIQII", index)
    directory, arrays = index[32 : 32 + length], index[32 + length :].ljust(36, b"\0")
    assert (magic, version) == (b"POLYNYAX", 1)
    assert (directory_crc, arrays_crc) == (value(directory), value(arrays))
    assert msgspec.msgpack.decode(directory) == [[1, 0, 0, 2], [2, 0, 0, 1]]
    numbers, offsets, ends = (struct.unpack_from("<2I", arrays, at) for at in (0, 8, 16))
    assert (numbers, ends) == ((0, 1), (3, 10)) and offsets[0] < offsets[1]


def test_the_bytes_are_those_of_the_first_release() -> None:
    """A change here is a new format version."""
    golden = dict(line.split() for line in GOLDEN.read_text().splitlines())
    assert {name: data.hex() for name, data in written().items()} == golden
