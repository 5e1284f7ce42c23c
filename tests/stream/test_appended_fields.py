"""A field that is appended to the state is in all that is written of it, and an eviction does not lose
its change."""

from __future__ import annotations

from struct import pack
from typing import Any

import msgspec
import pytest
from msgspec import Raw, structs

from polynya.stream.features.pages.eviction import as_written, is_evictable, mark_of
from polynya.stream.parts import Mark
from polynya.stream.snapshots import deltas
from polynya.stream.snapshots.deltas import DeltaHead, Gone, SnapshotPart, merge
from polynya.stream.snapshots.encode import VERSION, Image, encode_image
from polynya.stream.state import entries
from polynya.stream.state.model import (
    Compaction,
    KafkaState,
    ProfileEpoch,
    Stream,
    StreamExtras,
    TableClaim,
)

SET = 9  # the value of a field that is no default; what is written is not decoded by its type
FIELDS = Image.__struct_fields__
IMAGE = Image(VERSION, 1, 1, 0, 0, [], [], {}, {}, [], [], entry_bytes=entries.V1_BYTES)
KEYED = {*deltas._ONE_BY_ONE}  # a merge of deltas decodes their keys


def image_with(field: str) -> bytes:
    return encode_image(structs.replace(IMAGE, **{field: SET}))


@pytest.mark.parametrize("field", FIELDS)
def test_a_snapshot_has_each_field_alone(field: str) -> None:
    assert msgspec.msgpack.decode(image_with(field))[FIELDS.index(field)] == SET


@pytest.mark.parametrize("field", sorted({*FIELDS} - KEYED - {"entry_bytes"}))
def test_a_merged_delta_has_each_field_alone(field: str) -> None:
    head = msgspec.msgpack.encode(
        DeltaHead(deltas.VERSION, Raw(image_with(field)), Gone(), False, 0)
    )
    delta = SnapshotPart(pack("<I", len(head)) + head, delta=True, root=False)
    merged = merge([SnapshotPart(encode_image(IMAGE)), delta])
    assert msgspec.msgpack.decode(merged)[FIELDS.index(field)] == SET


@pytest.mark.parametrize("field", sorted({*StreamExtras.__struct_fields__} - {"past"}))
def test_the_written_extras_have_each_field_alone(field: str) -> None:
    extras = StreamExtras(**{field: SET})  # type: ignore[arg-type]
    written = msgspec.msgpack.encode(as_written(stream_with(extras=extras)).extras)
    assert msgspec.msgpack.decode(written)[StreamExtras.__struct_fields__.index(field)] == SET


def stream_with(**fields: Any) -> Stream:
    plain = Stream(1, "a", "text/plain", 0, 1, 1)
    return structs.replace(plain, **fields)


PARTS: dict[str, Any] = {  # fields whose value is looked into
    "cold": bytes(entries.ENTRY_BYTES),
    "tables": {7: TableClaim(1, 1, 1)},
    "extras": StreamExtras(compaction=Compaction(SET)),
    "kafka": KafkaState(ended={1: (1, 2, 3)}),
}
EXTRAS: dict[str, Any] = {
    "profile_epoch": ProfileEpoch(0, 1, 0, 0, 1),
    "compaction": Compaction(SET),
    "marks": [Mark(1, 1, (), 0, b"", "", 1)],
}
OF_ITS_CREATION = {"name", "content_type", "encoding", "created_ms"}


@pytest.mark.parametrize("field", sorted({*Stream.__struct_fields__} - OF_ITS_CREATION))
def test_a_change_of_a_stream_is_noticed_by_its_eviction(field: str) -> None:
    changed = stream_with(**{field: PARTS.get(field, SET)})
    assert not is_evictable(changed) or mark_of(changed) != mark_of(stream_with())


@pytest.mark.parametrize("field", StreamExtras.__struct_fields__)
def test_a_change_of_the_extras_is_noticed_by_an_eviction(field: str) -> None:
    changed = stream_with(extras=StreamExtras(**{field: EXTRAS.get(field, SET)}))
    assert not is_evictable(changed) or mark_of(changed) != mark_of(stream_with())
