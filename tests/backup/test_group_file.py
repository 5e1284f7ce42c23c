"""The bytes of a group file and of a manifest are what the page says, and no flipped bit in them is
believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds.backup import file_of
from worlds.stream import World, raw_batch

from polynya.backup import manifest as manifests
from polynya.backup.group_file import Header, machine_of, pack_header, parse
from polynya.backup.manifest import CopiedObject, FileEntry, ListEntry, Manifest
from polynya.base.errors import ConfigError, CorruptData
from polynya.base.names import group_of
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding
from polynya.stream.snapshots.encode import snapshot_of

HEADER = Header(
    group=3, term=2, index=9, log_ms=1_700_000_000_000, state_bytes=5, state_crc=7, hot=1
)


def a_world(records: int = 3) -> tuple[World, int]:
    world = World()
    group = group_of("docs/a", 4)
    world.apply(group, Create("docs/a", 5, "text/plain", Encoding.BYTES))
    for number in range(records):
        world.apply(group, Append("docs/a", 6, "text/plain", raw_batch(b"record %d" % number)))
    return world, group


def a_manifest() -> Manifest:
    entry = FileEntry(
        group=0,
        name="n",
        size=1,
        crc=2,
        term=1,
        index=9,
        log_ms=3,
        streams=4,
        records=5,
        hot_bytes=6,
    )
    objects = ListEntry(name="o", size=0, crc=0, count=0, bytes=0)
    return Manifest(
        id="i",
        release="r",
        cluster="c",
        history=1,
        groups=0,
        began_ms=1,
        ended_ms=2,
        files=[entry],
        objects=objects,
    )


def test_golden_header() -> None:
    assert pack_header(HEADER).hex() == (
        "504f4c594e5941470100000003000000020000000000000009000000000000000068e5cf8b01000005000000000000000700000001000000"
        "0000000032445566"
    )  # fmt: skip


def test_golden_manifest() -> None:
    assert manifests.encode(a_manifest()) == (
        b'{"format":2,"id":"i","release":"r","cluster":"c","history":1,"groups":0,"began_ms":1,"ended_ms":2,"files":[{"group":0,"name":"n",'
        b'"size":1,"crc":2,"term":1,"index":9,"log_ms":3,"streams":4,"records":5,"hot_bytes":6}],"objects":{"name":"o","size":0,"crc":0,'
        b'"count":0,"bytes":0}}\ncrc32c 9d22670d\n'
    )
    assert manifests.decode(manifests.encode(a_manifest())) == a_manifest()


def test_golden_rows() -> None:
    rows = [CopiedObject("c/packs/h/1-a", 5, 6)]
    assert manifests.encode_rows(rows) == bytes.fromhex("9193ad") + b"c/packs/h/1-a" + bytes([5, 6])
    assert manifests.decode_rows(manifests.encode_rows(rows)) == rows


@pytest.mark.parametrize("damaged", [b"\x91\x93\xa1\xff\x05\x06", b"\x91" * 10_000, b"\xc1", b""])
def test_damaged_rows_are_refused(damaged: bytes) -> None:
    with pytest.raises(CorruptData, match="the list of objects cannot be read"):
        manifests.decode_rows(damaged)


def test_a_machine_comes_back_with_its_payload() -> None:
    world, group = a_world()
    machine = world.machines[group]
    file = parse(file_of(group, machine, (1, 4), 99), group)
    assert (file.header.term, file.header.index, file.header.log_ms, file.header.hot) == (
        1,
        4,
        99,
        3,
    )
    again = machine_of(file)
    assert snapshot_of(again) == snapshot_of(machine)
    assert [batch.payload for batch in again.directory.streams["docs/a"].hot or ()] == [
        b"record 0",
        b"record 1",
        b"record 2",
    ]


@given(st.data())
def test_no_flipped_bit_is_believed(data: st.DataObject) -> None:
    world, group = a_world(2)
    whole = file_of(group, world.machines[group], (1, 4), 99)
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((CorruptData, ConfigError)):
        machine_of(parse(bytes(flipped), group))


@given(st.integers(0, 400))
def test_nothing_that_is_cut_short_is_believed(length: int) -> None:
    world, group = a_world(2)
    whole = file_of(group, world.machines[group], (1, 4), 99)
    with pytest.raises(CorruptData):
        machine_of(parse(whole[: min(length, len(whole) - 1)], group))


def test_another_format_is_said() -> None:
    data = manifests.encode(a_manifest()).split(b"\n")[0].replace(b'"format":2', b'"format":3')
    from google_crc32c import value

    with pytest.raises(ConfigError, match="format 3"):
        manifests.decode(data + f"\ncrc32c {value(data):08x}\n".encode())


def test_ids_order_as_their_times() -> None:
    ids = [
        manifests.new_id(now_ms, random)
        for now_ms, random in ((1_795_287_738_199, b"\xff" * 4), (1_795_287_738_200, bytes(4)))
    ]
    assert ids == sorted(ids) == ["20261121T190218199Z-ffffffff", "20261121T190218200Z-00000000"]
    assert all(map(manifests.is_id, ids))
