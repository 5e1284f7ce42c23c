"""Kafka requests and responses as frames: their headers, and the codecs of every served key."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from polynya.wire.kafka import primitives as p
from polynya.wire.kafka.generated import (
    api_versions,
    create_topics,
    delete_groups,
    delete_topics,
    describe_groups,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
)
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


def _api(module: Any, name: str, read: Reader, write: Writer) -> Api:
    return Api(module.KEY, name, module.VERSIONS, module.FLEXIBLE, read, write)


def _named(module: Any) -> Api:
    """Return the codecs of a module, whose functions have its name."""
    name: str = module.__name__.rpartition(".")[2]
    read, write = getattr(module, f"read_{name}_request"), getattr(module, f"write_{name}_response")
    return _api(module, name.title().replace("_", ""), read, write)


_GROUPS = (
    offset_commit,
    offset_fetch,
    find_coordinator,
    join_group,
    heartbeat,
    leave_group,
    sync_group,
    describe_groups,
    list_groups,
    delete_groups,
    offset_delete,
)
_API_LIST = (
    _api(produce, "Produce", produce.read_produce_request, produce.write_produce_response),
    _api(fetch, "Fetch", fetch.read_fetch_request, fetch.write_fetch_response),
    _api(
        list_offsets,
        "ListOffsets",
        list_offsets.read_list_offsets_request,
        list_offsets.write_list_offsets_response,
    ),
    _api(metadata, "Metadata", metadata.read_metadata_request, metadata.write_metadata_response),
    _api(
        api_versions,
        "ApiVersions",
        api_versions.read_api_versions_request,
        api_versions.write_api_versions_response,
    ),
    _api(
        create_topics,
        "CreateTopics",
        create_topics.read_create_topics_request,
        create_topics.write_create_topics_response,
    ),
    _api(
        delete_topics,
        "DeleteTopics",
        delete_topics.read_delete_topics_request,
        delete_topics.write_delete_topics_response,
    ),
    _api(
        init_producer_id,
        "InitProducerId",
        init_producer_id.read_init_producer_id_request,
        init_producer_id.write_init_producer_id_response,
    ),
    _api(
        sasl_handshake,
        "SaslHandshake",
        sasl_handshake.read_sasl_handshake_request,
        sasl_handshake.write_sasl_handshake_response,
    ),
    _api(
        sasl_authenticate,
        "SaslAuthenticate",
        sasl_authenticate.read_sasl_authenticate_request,
        sasl_authenticate.write_sasl_authenticate_response,
    ),
    *map(_named, _GROUPS),
)
APIS = {api.key: api for api in _API_LIST}
API_VERSIONS = api_versions.KEY


def read_header(data: memoryview) -> Header:
    """Decode the header of a request. Raises Malformed.

    The tagged fields of a version that is not served stay unread, as nothing of it is decoded."""
    try:
        key, version, correlation = _HEAD.unpack_from(data)
        client_id, at = p.string(data, _HEAD.size)
        api = APIS.get(key)
        if api is not None and version in api.versions and version >= api.flexible:
            at = p.skip_tags(data, at)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"the header of a request: {error}") from None
    return Header(key, version, correlation, client_id or "", at)


def decode_request(api: Api, data: memoryview, header: Header) -> Any:
    """Decode the body of a request; its byte fields are views of `data`. Raises Malformed.

    Bytes behind the body are ignored, as Kafka does: librdkafka 2.16 sends some."""
    try:
        message, _ = api.read(data, header.body, header.version)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise Malformed(f"the body of {api.name} version {header.version}: {error}") from None
    return message


def encode_response(api: Api, version: int, correlation: int, message: Any) -> list[p.Bytes]:
    """Encode a response as a whole frame in pieces. The header of ApiVersions has no tags."""
    pieces: list[p.Bytes] = [b""]
    if version >= api.flexible and api.key != API_VERSIONS:
        pieces.append(b"\0")
    api.write(pieces.append, message, version)
    pieces[0] = _FRAME.pack(4 + sum(map(len, pieces)), correlation)
    return pieces
