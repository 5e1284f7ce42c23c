"""Kafka requests and responses as frames: their headers, and the codecs of every served key."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from polynya.base.limits import GROUP_OFFSETS_MAX, KAFKA_ELEMENTS_MAX
from polynya.wire.kafka import primitives as p
from polynya.wire.kafka.generated import (
    add_partitions_to_txn,
    api_versions,
    offset_commit,
    offset_fetch,
    txn_offset_commit,
)
from polynya.wire.kafka.generated.index import MODULES
from polynya.wire.kafka.primitives import Malformed

_HEAD = struct.Struct(">hhi")
_FRAME = struct.Struct(">ii")

Reader = Callable[[memoryview, int, int], tuple[Any, int]]
Writer = Callable[[p.Put, Any, int], None]


class Api(msgspec.Struct, frozen=True, gc=False):
    """The codecs of one message key."""

    key: int
    name: str
    versions: range
    flexible: int  # the first version with tagged fields
    read: Reader
    write: Writer


class Header(msgspec.Struct, frozen=True, gc=False):
    """The header of a request, and where its body begins."""

    key: int
    version: int
    correlation: int
    client_id: str
    body: int


_FOR_BROKERS = {add_partitions_to_txn.KEY: 4}  # from this version on it is between brokers


def _api(module: Any) -> Api:
    """Return the codecs of a generated module, which is named like its message."""
    name = module.__name__.rpartition(".")[2]
    versions = module.VERSIONS[: _FOR_BROKERS.get(module.KEY)]
    return Api(
        module.KEY,
        "".join(word.capitalize() for word in name.split("_")),
        versions,
        module.FLEXIBLE,
        getattr(module, f"read_{name}_request"),
        getattr(module, f"write_{name}_response"),
    )


APIS = {module.KEY: _api(module) for module in MODULES}
API_VERSIONS = api_versions.KEY
# a group may commit each of its offsets in a topic of its own
_ELEMENTS_MAX = {
    each.KEY: 2 * GROUP_OFFSETS_MAX for each in (offset_commit, offset_fetch, txn_offset_commit)
}


def read_header(data: memoryview) -> Header:
    """Decode the header of a request. Raises Malformed. A client's id may be any bytes.

    The tagged fields of a version that is not served stay unread, as nothing of it is decoded."""
    try:
        key, version, correlation = _HEAD.unpack_from(data)
        client_id, at = p.lenient_string(data, _HEAD.size)
        api = APIS.get(key)
        if api is not None and version in api.versions and version >= api.flexible:
            at = p.skip_header_tags(data, at) if data[at] else at + 1
    except (struct.error, IndexError) as error:
        raise Malformed(f"the header of a request: {error}") from None
    return Header(key, version, correlation, client_id or "", at)


def decode_request(api: Api, data: memoryview, header: Header) -> tuple[Any, int]:
    """Decode the body of a request; its byte fields are views of `data`. Return it with the number
    of its array elements and tagged fields. Raises Malformed.

    Bytes behind the body are ignored, as Kafka does: librdkafka 2.16 sends some."""
    elements = p.allow_elements(_ELEMENTS_MAX.get(api.key, KAFKA_ELEMENTS_MAX))
    try:
        message, _ = api.read(data, header.body, header.version)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"the body of {api.name} version {header.version}: {error}") from None
    return message, elements.most - elements.left


def encode_response(api: Api, version: int, correlation: int, message: Any) -> list[p.Bytes]:
    """Encode a response as a whole frame in pieces. The header of ApiVersions has no tags."""
    pieces: list[p.Bytes] = []
    api.write(pieces.append, message, version)
    return frame_of(api, version, correlation, pieces)


def frame_of(api: Api, version: int, correlation: int, body: list[p.Bytes]) -> list[p.Bytes]:
    """Return the frame of a response whose body is encoded."""
    tags = [b"\0"] if version >= api.flexible and api.key != API_VERSIONS else []
    size = 4 + len(tags) + sum(map(len, body))
    return [_FRAME.pack(size, correlation), *tags, *body]
