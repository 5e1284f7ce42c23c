"""The keys of administrators: DescribeTransactions, ListTransactions, DescribeProducers and
WriteTxnMarkers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from polynya.access.grants import Verb
from polynya.access.kafka_acls import Operation
from polynya.base.errors import PolynyaError
from polynya.base.limits import TRANSACTIONAL_ID_BYTES_MAX
from polynya.base.names import partition_of
from polynya.front.kafka.call import Call, in_turns
from polynya.front.kafka.errors import Error, error_of_fault
from polynya.front.kafka.leaders import is_elsewhere_led
from polynya.front.kafka.transactions.refusals import (
    error_of_coordinator,
    error_of_refusal,
    refusal_here,
)
from polynya.service.transactions.calls import TransactionDetails, TransactionRefused
from polynya.stream.features.transactions.state import TransactionState
from polynya.stream.replies import Code
from polynya.wire.kafka.generated import describe_producers as producers
from polynya.wire.kafka.generated import describe_transactions as described
from polynya.wire.kafka.generated import list_transactions as listed
from polynya.wire.kafka.generated import write_txn_markers as markers

# as Kafka spells them
STATES = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
}
_PIECE = re.compile(r"\.\*|\\[^A-Za-z0-9]|[^\\^$*+?{}\[\]|()]", re.ASCII | re.DOTALL)
_ANY, _MANY = "any", "many"  # tokens of more than one character are no literal
_BY_NAME = {name: state for state, name in STATES.items()}
_COMMITTED = (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


# --- transactions ---------------------------------------------------------------------------------


async def describe_transactions(
    call: Call, request: described.DescribeTransactionsRequest
) -> described.DescribeTransactionsResponse:
    """Return the state of transactional ids that this broker coordinates."""
    response = described.DescribeTransactionsResponse()
    wanted = []
    for id_ in request.transactional_ids:
        error = refusal_here(call, id_, Operation.DESCRIBE)
        if error:
            response.transaction_states.append(described.TransactionState(error, id_))
        else:
            wanted.append(id_)
    try:
        found = await call.context.transactions.describe(wanted) if wanted else {}
    except PolynyaError as fault:
        error = error_of_coordinator(fault)
        response.transaction_states += [described.TransactionState(error, id_) for id_ in wanted]
        return response
    for id_ in wanted:
        known = found.get(id_)
        response.transaction_states.append(
            described.TransactionState(Error.TRANSACTIONAL_ID_NOT_FOUND, id_)
            if known is None
            else _described(call, known)
        )
    return response


def _described(call: Call, known: TransactionDetails) -> described.TransactionState:
    topics = defaultdict[str, list[int]](list)
    for _, name in known.streams:
        partition = partition_of(name)
        if partition is not None and call.caller.may_describe(partition[0]):
            topics[partition[0]].append(partition[1])
    return described.TransactionState(
        Error.NONE,
        known.id,
        STATES[known.state],
        known.timeout_ms,
        known.since_ms,
        known.producer,
        known.epoch,
        [described.TopicData(topic, sorted(numbers)) for topic, numbers in sorted(topics.items())],
    )


async def list_transactions(
    call: Call, request: listed.ListTransactionsRequest
) -> listed.ListTransactionsResponse:
    """List the transactional ids that this broker coordinates."""
    context, response = call.context, listed.ListTransactionsResponse()
    if not context.transactions.is_ready:
        return response
    states = [_BY_NAME[name] for name in request.state_filters if name in _BY_NAME]
    response.unknown_state_filters = [
        name for name in request.state_filters if name not in _BY_NAME
    ]
    if request.state_filters and not states:
        return response
    pattern = request.transactional_id_pattern
    matches = matcher_of(pattern) if pattern else _any
    if matches is None:
        response.error_code = Error.INVALID_REGULAR_EXPRESSION
        return response
    try:
        found = await context.transactions.list_transactions(
            states=states,
            producers=request.producer_id_filters,
            open_ms=request.duration_filter,
        )
    except PolynyaError as fault:
        response.error_code = error_of_coordinator(fault)
        return response
    async for known in in_turns(call, found):
        if (
            not is_elsewhere_led(context.brokers, known.group)
            and matches(known.id)
            and call.caller.may_use_transaction(known.id, Operation.DESCRIBE)
        ):
            response.transaction_states.append(
                listed.TransactionState(known.id, known.producer, STATES[known.state])
            )
    return response


def _any(id_: str) -> bool:
    return True


def matcher_of(pattern: str) -> Callable[[str], bool] | None:
    """Return what a pattern of transactional ids matches; None: it has more than literal
    characters, '.' and '.*'. A whole regular expression of a client could take a core for hours."""
    pieces = _PIECE.findall(pattern)
    if "".join(pieces) != pattern or len(pattern) > TRANSACTIONAL_ID_BYTES_MAX:
        return None
    tokens = [_ANY if each == "." else _MANY if each == ".*" else each[-1] for each in pieces]
    return partial(_matches, tokens)


def _matches(tokens: list[str], id_: str) -> bool:
    """Match with one step back to the last '.*', so that the time is at most that of a product."""
    at = token = 0
    back = back_at = -1
    while at < len(id_):
        if token < len(tokens) and tokens[token] == _MANY:
            back, back_at, token = token, at, token + 1
        elif token < len(tokens) and tokens[token] in (_ANY, id_[at]):
            at, token = at + 1, token + 1
        elif back >= 0:
            back_at += 1
            at, token = back_at, back + 1
        else:
            return False
    return all(each == _MANY for each in tokens[token:])


# --- producers ------------------------------------------------------------------------------------


async def describe_producers(
    call: Call, request: producers.DescribeProducersRequest
) -> producers.DescribeProducersResponse:
    """Return the producers of partitions, and where their open transactions begin."""
    response = producers.DescribeProducersResponse()
    async for asked in in_turns(call, request.topics):
        made = producers.TopicResponse(asked.name)
        response.topics.append(made)
        allowed = call.caller.may(Verb.READ, asked.name)
        try:
            topic = await call.context.topics.open(asked.name) if allowed else None
        except PolynyaError as fault:
            error = error_of_fault(fault)
            made.partitions = [
                producers.PartitionResponse(number, error) for number in asked.partition_indexes
            ]
            continue
        for number in asked.partition_indexes:
            part = producers.PartitionResponse(number)
            made.partitions.append(part)
            handle = None if topic is None else topic.partition(number)
            if not allowed:
                part.error_code = Error.TOPIC_AUTHORIZATION_FAILED
            elif handle is None:
                part.error_code = Error.UNKNOWN_TOPIC_OR_PARTITION
            else:
                await _fill(call, part, handle.group, handle.name)
    return response


async def _fill(call: Call, part: producers.PartitionResponse, group: int, name: str) -> None:
    try:
        found = await call.context.transaction_parts.producers.of_stream(group, name)
    except PolynyaError as fault:
        part.error_code = error_of_fault(fault)
        return
    part.active_producers = [
        producers.ProducerState(
            each.producer, each.epoch, each.sequence, each.active_ms, 0, each.first_record
        )
        for each in found
    ]


# --- markers --------------------------------------------------------------------------------------


async def write_txn_markers(
    call: Call, request: markers.WriteTxnMarkersRequest
) -> markers.WriteTxnMarkersResponse:
    """Settle transactions for an administrator. No partition is settled alone: the coordinator
    decides, and its markers go to all. A commit is accepted only where it has committed."""
    response = markers.WriteTxnMarkersResponse()
    async for asked in in_turns(call, request.markers):
        error = await _settled(call, asked)
        response.markers.append(
            markers.WritableTxnMarkerResult(
                asked.producer_id,
                [
                    markers.WritableTxnMarkerTopicResult(
                        topic.name,
                        [
                            markers.WritableTxnMarkerPartitionResult(number, error)
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in asked.topics
                ],
            )
        )
    return response


async def _settled(call: Call, asked: markers.WritableTxnMarker) -> Error:
    """Return the outcome of the order to end a producer's transaction."""
    transactions = call.context.transactions
    if not transactions.is_ready:
        return Error.COORDINATOR_NOT_AVAILABLE
    try:
        found = await transactions.list_transactions(producers=[asked.producer_id])
        if not found:
            return Error.INVALID_PRODUCER_ID_MAPPING
        known = found[0]
        if known.epoch > asked.producer_epoch + 1:
            return Error.INVALID_PRODUCER_EPOCH
        if asked.transaction_result:
            return Error.NONE if known.state in _COMMITTED else Error.INVALID_TXN_STATE
        if known.state == TransactionState.ONGOING:
            await transactions.abort(known.id)
        elif known.state in _COMMITTED:
            return Error.INVALID_TXN_STATE
        return Error.NONE
    except TransactionRefused as refused:
        # another request has ended it meanwhile
        return Error.NONE if refused.code == Code.TXN_STATE else error_of_refusal(refused.code)
    except PolynyaError as fault:
        return error_of_coordinator(fault)
