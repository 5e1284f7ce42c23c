"""The generated codecs: equal to kio byte for byte in each version, golden frames, and nonsense."""

from __future__ import annotations

import contextlib
import io
import random
import typing
from pathlib import Path

import pytest
from kio.serial import entity_writer
from wire.kafka.kio_values import as_ours, kio_class, random_kio

from polynya.wire.kafka import messages
from polynya.wire.kafka.generated import api_versions, index, metadata, produce
from polynya.wire.kafka.messages import APIS, Api, Header, decode_request, encode_response
from polynya.wire.kafka.primitives import Malformed

SAMPLES = 5
VERSIONS = [
    pytest.param(api, version, id=f"{api.name}-{version}")
    for api in APIS.values()
    for version in api.versions
]


def kio_bytes(message: object) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_requests_of_kio_decode_to_the_same_values(api: Api, version: int) -> None:
    rng = random.Random(version)
    kind = typing.get_type_hints(api.read)["return"].__args__[0]
    for _ in range(SAMPLES):
        theirs = random_kio(kio_class(api, version, "request"), rng)
        header = Header(api.key, version, 1, "", 0)
        found, _ = decode_request(api, memoryview(kio_bytes(theirs)), header)
        assert found == as_ours(theirs, kind, request=True)


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_responses_are_those_of_kio_byte_for_byte(api: Api, version: int) -> None:
    rng = random.Random(version)
    kind = typing.get_type_hints(api.write)["it"]
    for _ in range(SAMPLES):
        theirs = random_kio(kio_class(api, version, "response"), rng)
        pieces: list[bytes | memoryview] = []
        api.write(pieces.append, as_ours(theirs, kind, request=False), version)
        assert b"".join(pieces) == kio_bytes(theirs)


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_cut_and_changed_requests_are_malformed_or_decoded(api: Api, version: int) -> None:
    rng = random.Random(version)
    header = Header(api.key, version, 1, "", 0)
    whole = kio_bytes(random_kio(kio_class(api, version, "request"), rng))
    for end in range(0, len(whole), 1 + len(whole) // 50):
        with pytest.raises(Malformed):
            decode_request(api, memoryview(whole)[:end], header)
    for _ in range(50 if whole else 0):
        changed = bytearray(whole)
        changed[rng.randrange(len(changed))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        with contextlib.suppress(Malformed):  # any other error would break the connection's loop
            assert decode_request(api, memoryview(changed), header)[0] is not None


def test_the_index_lists_each_generated_module() -> None:
    modules = {path.stem for path in Path(index.__file__).parent.glob("*.py")}
    listed = [module.__name__.rpartition(".")[2] for module in index.MODULES]
    assert listed == sorted(modules - {"__init__", "index"})


def test_a_header_has_tags_only_in_flexible_versions() -> None:
    classic = bytes.fromhex("0012 0002 00000007 0003") + b"abc"
    assert messages.read_header(memoryview(classic)) == Header(18, 2, 7, "abc", 13)
    flexible = bytes.fromhex("0012 0003 00000007 ffff 01 05 02 aabb")
    assert messages.read_header(memoryview(flexible)) == Header(18, 3, 7, "", 15)
    unknown = bytes.fromhex("0012 0063 00000007 ffff")  # a version of the future: no tags are read
    assert messages.read_header(memoryview(unknown)) == Header(18, 99, 7, "", 10)
    with pytest.raises(Malformed):
        messages.read_header(memoryview(b"\0\x12\0"))


def test_golden_frames() -> None:
    """Compare with bytes that must not change, written down by hand from the protocol's guide."""
    response = api_versions.ApiVersionsResponse(35, [api_versions.ApiVersion(18, 0, 4)])
    frame = b"".join(encode_response(APIS[18], 0, 5, response))
    assert frame.hex(" ", 2) == "0000 0010 0000 0005 0023 0000 0001 0012 0000 0004"
    frame = b"".join(encode_response(APIS[18], 3, 5, response))
    assert (
        frame.hex()
        == "00000013" + "00000005" + "0023" + "02" + "001200000004" + "00" + "00000000" + "00"
    )
    brokers = [metadata.MetadataResponseBroker(1, "h", 9092)]
    frame = b"".join(encode_response(APIS[3], 0, 5, metadata.MetadataResponse(brokers=brokers)))
    assert (
        frame.hex()
        == "00000017" + "00000005" + "00000001" + "00000001" + "000168" + "00002384" + "00000000"
    )
    body = "ffff ffff 000005dc 00000001 000174 00000001 00000000 00000003 616263"
    found, _ = decode_request(APIS[0], memoryview(bytes.fromhex(body)), Header(0, 3, 1, "", 0))
    data = produce.PartitionProduceData(0, memoryview(b"abc"))
    assert found == produce.ProduceRequest(
        None, -1, 1500, [produce.TopicProduceData("t", partition_data=[data])]
    )


@pytest.mark.parametrize(
    ("version", "body", "reason"),
    [
        (3, "ffff ffff 000005dc ffffffff", "array"),
        (3, "ffff ffff 000005dc 00000001 ffff 00000000", "field"),
        (3, "ffff ffff 000005dc 00000001 000174 ffffffff", "array"),
        (9, "00 ffff 000005dc 00", "array"),
        (9, "00 ffff 000005dc 02 00 01 00 00", "field"),
        (9, "00 ffff 000005dc 02 0274 00 00 00", "array"),
    ],
)
def test_null_is_refused_where_a_version_allows_none(version: int, body: str, reason: str) -> None:
    with pytest.raises(Malformed, match=f"null in an? {reason} that cannot be null"):
        decode_request(APIS[0], memoryview(bytes.fromhex(body)), Header(0, version, 1, "", 0))


def test_a_decoded_request_comes_with_its_elements() -> None:
    """An array of one is free."""
    classic = bytes.fromhex("ffff ffff 000005dc 00000003") + 3 * bytes.fromhex("000174 00000000")
    request, elements = decode_request(APIS[0], memoryview(classic), Header(0, 3, 1, "", 0))
    assert (len(request.topic_data), elements) == (3, 3)
    compact = bytes.fromhex("00 ffff 000005dc 02 0274 01 00 00")
    request, elements = decode_request(APIS[0], memoryview(compact), Header(0, 9, 1, "", 0))
    assert (request.transactional_id, len(request.topic_data), elements) == (None, 1, 0)


def test_records_are_views_and_pieces() -> None:
    body = bytes.fromhex("ffff ffff 000005dc 00000001 000174 00000001 00000000 00000003") + b"abc"
    request, _ = decode_request(APIS[0], memoryview(body), Header(0, 3, 1, "", 0))
    assert request.topic_data[0].partition_data[0].records.obj is body
