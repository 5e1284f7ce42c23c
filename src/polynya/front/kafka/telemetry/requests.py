"""GetTelemetrySubscriptions and PushTelemetry. As in Kafka, each client may use them."""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from functools import partial
from time import monotonic

from polynya.base.errors import CorruptData
from polynya.base.limits import CLIENT_POINTS_PER_PUSH_MAX, CLIENT_TELEMETRY_BYTES_MAX, KIB
from polynya.front.kafka.call import Call, in_thread
from polynya.front.kafka.errors import Error
from polynya.front.kafka.telemetry.instances import Instance
from polynya.front.kafka.telemetry.subscriptions import Client, shortened
from polynya.wire.kafka import codecs
from polynya.wire.kafka.generated.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from polynya.wire.kafka.generated.push_telemetry import (
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from polynya.wire.kafka.otlp_points import points_of
from polynya.wire.kafka.primitives import NO_UUID

# of the best compression first, as Kafka lists them
ACCEPTED = (codecs.ZSTD, codecs.LZ4, codecs.GZIP, codecs.SNAPPY)
_DECODED_AT_ONCE_BYTES = 16 * KIB  # beyond it a push is decoded in a thread


async def get_subscriptions(
    call: Call, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Return the metrics that a client shall push, and its new id if it has none."""
    id_ = request.client_instance_id
    instance = await _heard(call, secrets.token_bytes(16) if id_ == NO_UUID else id_)
    if not instance.may_get(monotonic()):
        call.context.telemetry.clients.refused += 1
        return GetTelemetrySubscriptionsResponse(error_code=Error.THROTTLING_QUOTA_EXCEEDED)
    instance.last_error = Error.NONE
    wanted = instance.wanted
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance.id,
        subscription_id=wanted.id_for(instance.id),
        accepted_compression_types=list(ACCEPTED),
        push_interval_ms=wanted.interval_ms,
        telemetry_max_bytes=CLIENT_TELEMETRY_BYTES_MAX,
        delta_temporality=True,
        requested_metrics=list(wanted.metrics),
    )


async def push(call: Call, request: PushTelemetryRequest) -> PushTelemetryResponse:
    """Keep the metrics of a client."""
    if request.client_instance_id == NO_UUID:
        return _refused(call, Error.INVALID_REQUEST)
    instance = await _heard(call, request.client_instance_id)
    error = _error_of(instance, request)
    if error == Error.NONE:
        error = await _take(call, instance, request)
    instance.last_error = error
    return PushTelemetryResponse() if error == Error.NONE else _refused(call, error)


def _error_of(instance: Instance, request: PushTelemetryRequest) -> Error:
    """Return the error of a push before it is decoded."""
    if instance.is_terminating:
        return Error.INVALID_REQUEST
    if not instance.may_push(monotonic()) and not request.terminating:
        return Error.THROTTLING_QUOTA_EXCEEDED
    instance.is_terminating = request.terminating
    if request.subscription_id != instance.wanted.id_for(instance.id):
        return Error.UNKNOWN_SUBSCRIPTION_ID
    if request.compression_type not in (codecs.NONE, *ACCEPTED):
        return Error.UNSUPPORTED_COMPRESSION_TYPE
    is_large = len(request.metrics) > CLIENT_TELEMETRY_BYTES_MAX
    return Error.TELEMETRY_TOO_LARGE if is_large else Error.NONE


async def _take(call: Call, instance: Instance, request: PushTelemetryRequest) -> Error:
    try:
        plain = _decompressed(request)
        decode = partial(points_of, plain, CLIENT_POINTS_PER_PUSH_MAX)
        if len(plain) > _DECODED_AT_ONCE_BYTES:
            points = await in_thread(call.context.turns.coding, decode)
        else:
            points = decode()
    except codecs.TooLarge:
        return Error.TELEMETRY_TOO_LARGE
    except CorruptData:
        return Error.INVALID_RECORD
    call.context.telemetry.clients.take(instance, points)
    return Error.NONE


def _decompressed(request: PushTelemetryRequest) -> bytes | memoryview:
    """Return the metrics of a push. Raises CorruptData."""
    codec, metrics = request.compression_type, request.metrics
    return codecs.decompressed(codec, metrics, CLIENT_TELEMETRY_BYTES_MAX) if metrics else b""


async def _heard(call: Call, id_: bytes) -> Instance:
    """Return the client of a request, with its present subscription."""
    subscriptions = call.context.telemetry.subscriptions
    await subscriptions.refresh()
    name, version = call.session.software
    client = Client(
        shortened(call.header.client_id),
        urlsafe_b64encode(id_).decode().rstrip("="),  # as Java's clients print it
        shortened(name),
        shortened(version),
        call.connection.remote,
        _port_of(call),
    )
    instance = call.context.telemetry.clients.heard(id_, client, monotonic())
    if instance.version != subscriptions.version:
        instance.wanted = subscriptions.wanted(client)
        instance.version = subscriptions.version
    return instance


def _port_of(call: Call) -> str:
    transport = call.connection.responses.transport
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[1]) if isinstance(peer, tuple) else ""


def _refused(call: Call, error: Error) -> PushTelemetryResponse:
    call.context.telemetry.clients.refused += 1
    return PushTelemetryResponse(error_code=error)
