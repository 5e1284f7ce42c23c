"""The table of message keys: which versions are served, and by which handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from polynya.base.limits import KAFKA_ELEMENTS_PER_TURN, KIB
from polynya.base.spans import within
from polynya.front.kafka import fetch, metadata, offsets, produce
from polynya.front.kafka.admin import (
    cluster,
    partitions,
    placement,
    quorum,
    refused,
    settings,
    topics,
)
from polynya.front.kafka.admin.features import add_features
from polynya.front.kafka.auth import acls, quotas, users
from polynya.front.kafka.auth.caller import ADMINISTRATIVE, TokenCaller
from polynya.front.kafka.auth.handlers import (
    admit,
    charge_elements,
    sasl_authenticate,
    sasl_handshake,
)
from polynya.front.kafka.auth.user_admin import ACTS
from polynya.front.kafka.call import FETCH, PRODUCE, Call, RepeatedRequest, in_thread
from polynya.front.kafka.errors import Error
from polynya.front.kafka.groups import admin as group_admin
from polynya.front.kafka.groups import consumer_protocol, coordinators, membership
from polynya.front.kafka.groups import offsets as group_offsets
from polynya.front.kafka.telemetry import requests as telemetry
from polynya.front.kafka.transactions import admin as transaction_admin
from polynya.front.kafka.transactions import requests as transactions
from polynya.front.kafka.transactions.offsets import txn_offset_commit
from polynya.wire.kafka.generated import api_versions
from polynya.wire.kafka.messages import (
    API_VERSIONS,
    APIS,
    Api,
    decode_request,
    encode_response,
)
from polynya.wire.kafka.primitives import Bytes, Malformed

_DECODED_AT_ONCE_BYTES = 64 * KIB  # beyond it a request without records is decoded in a thread
# A client of before librdkafka 2.3 turns compression off if it sees no version 0 of Produce.
ADVERTISED = {PRODUCE: range(14)}
Handler = Callable[["Call", Any], Awaitable[Any]]
_HANDLERS: dict[int, Handler] = {
    FETCH: fetch.fetch,
    2: offsets.list_offsets,
    3: metadata.metadata,
    8: group_offsets.offset_commit,
    9: group_offsets.offset_fetch,
    10: coordinators.find_coordinator,
    11: membership.join_group,
    12: membership.heartbeat,
    13: membership.leave_group,
    14: membership.sync_group,
    15: group_admin.describe_groups,
    16: group_admin.list_groups,
    17: sasl_handshake,
    19: topics.create_topics,
    20: topics.delete_topics,
    21: partitions.delete_records,
    22: transactions.init_producer_id,
    23: partitions.offset_for_leader_epoch,
    24: transactions.add_partitions_to_txn,
    25: transactions.add_offsets_to_txn,
    26: transactions.end_txn,
    27: transaction_admin.write_txn_markers,
    28: txn_offset_commit,
    29: acls.describe_acls,
    30: acls.create_acls,
    31: acls.delete_acls,
    32: settings.describe_configs,
    33: settings.alter_configs,
    34: placement.alter_log_dirs,
    35: cluster.log_dirs,
    36: sasl_authenticate,
    37: topics.create_partitions,
    42: group_admin.delete_groups,
    44: settings.incremental_alter_configs,
    45: placement.alter_reassignments,
    47: group_offsets.offset_delete,
    48: quotas.describe_quotas,
    49: quotas.alter_quotas,
    50: users.describe_users,
    51: users.alter_users,
    55: quorum.describe_quorum,
    60: cluster.cluster,
    61: transaction_admin.describe_producers,
    65: transaction_admin.describe_transactions,
    66: transaction_admin.list_transactions,
    68: consumer_protocol.heartbeat,
    69: consumer_protocol.describe_groups,
    71: telemetry.get_subscriptions,
    72: telemetry.push,
    74: settings.list_config_resources,
    75: partitions.describe_topic_partitions,
    **dict.fromkeys(refused.REFUSED, refused.refuse),
}


def dispatch(call: Call) -> None:
    """Answer a request, now or later. Raises Malformed."""
    api, header = call.api, call.header
    tracer = call.context.tracer
    if tracer is not None and call.span is None and (span := tracer.begin("Kafka")) is not None:
        call.span = span
        span.name = f"Kafka {'key' if api is None else api.name}"
        span.attributes["messaging.system"] = "kafka"
        span.attributes["polynya.kafka.key"] = header.key
        span.attributes["polynya.kafka.version"] = header.version
        span.attributes["messaging.client.id"] = header.client_id
        within(span, partial(dispatch, call))
        return
    call.context.counters.requests += 1
    if isinstance(call.caller, TokenCaller) and not admit(call, call.caller):
        return
    if header.key == API_VERSIONS:
        call.send(_api_versions(call))
        return
    if api is None or header.version not in api.versions:
        name = f"key {header.key}" if api is None else api.name
        raise Malformed(f"{name} version {header.version} is not served")
    repeated = call.session.repeated if header.key == FETCH else None
    if repeated is not None and repeated.is_same(call):
        call.context.spawn(_repeat(call, repeated))
        return
    if header.key != PRODUCE and len(call.data) > _DECODED_AT_ONCE_BYTES:
        call.connection.hold()
        call.context.spawn(_decode_and_run(call, api))
        return
    request, count = decode_request(api, call.data, call.header)
    if count >= KAFKA_ELEMENTS_PER_TURN:
        charge_elements(call, count)
    if header.key == PRODUCE:
        produce.start(call, request, in_slices=count >= KAFKA_ELEMENTS_PER_TURN)
        return
    call.worked = count
    call.context.spawn(_run(call, request))


async def _decode_and_run(call: Call, api: Api) -> None:
    """Decode a large request in a thread. The connection takes no further one meanwhile, so that
    they begin in their order."""
    try:
        decode = partial(decode_request, api, call.data, call.header)
        request, count = await in_thread(call.context.turns.coding, decode)
    except BaseException as error:
        call.drop()
        call.connection.go_on_after(error)
        if isinstance(error, Malformed):
            return
        raise
    charge_elements(call, count)
    call.worked = count
    call.connection.go_on_after(None)
    await _run(call, request)


async def _repeat(call: Call, repeated: RepeatedRequest) -> None:
    """Answer a Fetch that was sent before, from scratch if there is more by now."""
    try:
        left_seconds = await repeated.answered(call)
    except BaseException:
        call.drop()
        call.connection.close()
        raise
    if left_seconds >= 0:
        assert call.api is not None
        request, _ = decode_request(call.api, call.data, call.header)
        request.max_wait_ms = int(left_seconds * 1000)
        await _run(call, request)


async def _run(call: Call, request: Any) -> None:
    try:
        wanted = ADMINISTRATIVE.get(call.header.key)
        if wanted is not None and not call.caller.may_administer(wanted):
            message = refused.denied(call.header.key, request)
            _note_denied(call)
        else:
            message = await _HANDLERS[call.header.key](call, request)
    except BaseException:
        call.drop()
        call.connection.close()
        raise
    if isinstance(message, list):
        call.send(message)
    elif call.worked >= KAFKA_ELEMENTS_PER_TURN:
        call.send(await in_thread(call.context.turns.coding, partial(call.encoded, message)))
    else:
        call.send(call.encoded(message))


def _note_denied(call: Call) -> None:
    """Audit an attempt to change users or ACLs."""
    admin, act = call.context.user_admin, ACTS.get(call.header.key)
    if admin is not None and act is not None:
        by = (call.caller, call.connection.remote)
        admin.record(act, "", by, Error.CLUSTER_AUTHORIZATION_FAILED)


def _api_versions(call: Call) -> list[Bytes]:
    """Return the served keys. A version that is not served gets the list in version 0 and an
    error."""
    api, header = APIS[API_VERSIONS], call.header
    listed = [
        api_versions.ApiVersion(each.key, versions[0], versions[-1])
        for each in APIS.values()
        for versions in (ADVERTISED.get(each.key, each.versions),)
    ]
    response = api_versions.ApiVersionsResponse(Error.NONE, listed)
    add_features(response, header.version, call.context.service.level)
    encode = partial(encode_response, api)
    if header.version not in api.versions:
        response.error_code = Error.UNSUPPORTED_VERSION
        return encode(0, header.correlation, response)
    request, _ = decode_request(api, call.data, header)
    call.session.software = (request.client_software_name, request.client_software_version)
    return encode(header.version, header.correlation, response)
