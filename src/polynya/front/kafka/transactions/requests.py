"""The requests of a transaction's producer to its coordinator: InitProducerId, AddPartitionsToTxn,
AddOffsetsToTxn and EndTxn."""

from __future__ import annotations

import asyncio

from polynya.access.grants import Verb
from polynya.base.errors import PolynyaError
from polynya.base.limits import TRANSACTION_TIMEOUT_MS_MAX
from polynya.front.kafka.call import Call, in_turns
from polynya.front.kafka.errors import Error, error_of_fault
from polynya.front.kafka.groups.coordinators import is_group_id
from polynya.front.kafka.topics.catalog import OpenTopic
from polynya.front.kafka.transactions.connection_ages import (
    judge_connection,
    note_connection,
    use_of,
)
from polynya.front.kafka.transactions.known import Key
from polynya.front.kafka.transactions.numbers import add, added_streams
from polynya.front.kafka.transactions.refusals import (
    INIT_WAIT_SECONDS,
    NotAnswered,
    fenced,
    patiently,
    refusal_here,
)
from polynya.routing.handle import StreamHandle
from polynya.wire.kafka.generated import add_partitions_to_txn as partitions
from polynya.wire.kafka.generated.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from polynya.wire.kafka.generated.end_txn import EndTxnRequest, EndTxnResponse
from polynya.wire.kafka.generated.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

_NO_PAIR = (-1, -1)
# the first versions whose clients know the error of a fenced producer
_INIT_FENCED_SINCE, _FENCED_SINCE = 4, 2
_NEW_END_SINCE = 5  # ends a transaction with a new epoch


async def init_producer_id(call: Call, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Give a producer its id, and a transactional one its epoch, which fences former instances. Each
    call of a producer without transactions gives another id, so its epoch never grows."""
    if request.transactional_id is not None:
        return await _init(call, request, request.transactional_id)
    if not call.caller.may_somewhere(Verb.APPEND):
        return InitProducerIdResponse(error_code=Error.CLUSTER_AUTHORIZATION_FAILED)
    try:
        return InitProducerIdResponse(0, Error.NONE, await call.context.producer_ids.take(), 0)
    except PolynyaError as fault:
        return InitProducerIdResponse(error_code=error_of_fault(fault))


async def _init(call: Call, request: InitProducerIdRequest, id_: str) -> InitProducerIdResponse:
    pair = (request.producer_id, request.producer_epoch)
    came = asyncio.get_running_loop().time()
    error = refusal_here(call, id_)
    if not error and (pair[0] < 0) != (pair[1] < 0):
        error = Error.INVALID_REQUEST
    if not error and not 0 < request.transaction_timeout_ms <= TRANSACTION_TIMEOUT_MS_MAX:
        error = Error.INVALID_TRANSACTION_TIMEOUT
    transactions = call.context.transactions
    try:
        if error:
            raise NotAnswered(error)
        asked = pair if pair[0] >= 0 else _NO_PAIR
        if asked != _NO_PAIR:
            await judge_connection(call, (id_, *asked))
        owner, use = call.caller.owner, use_of(call, (id_, *asked), came)
        given = await patiently(
            call,
            id_,
            lambda: transactions.init(
                id_, request.transaction_timeout_ms, asked, owner=owner, use=use
            ),
            INIT_WAIT_SECONDS,
        )
        await note_connection(call, id_)
    except NotAnswered as refused:
        error = fenced(refused.error, known=call.version >= _INIT_FENCED_SINCE)
        return InitProducerIdResponse(error_code=error)
    return InitProducerIdResponse(0, Error.NONE, *given)


async def add_partitions_to_txn(
    call: Call, request: partitions.AddPartitionsToTxnRequest
) -> partitions.AddPartitionsToTxnResponse:
    """Add partitions to the open transaction, all or none."""
    key = (
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
    )
    error = refusal_here(call, key[0])
    response = partitions.AddPartitionsToTxnResponse()
    handles: list[StreamHandle] = []
    answers: list[partitions.AddPartitionsToTxnPartitionResult] = []
    async for asked in in_turns(call, request.v3_and_below_topics):
        found, topic_error = (None, error) if error else await _topic(call, asked.name)
        made = partitions.AddPartitionsToTxnTopicResult(asked.name)
        response.results_by_topic_v3_and_below.append(made)
        for number in asked.partitions:
            answer = partitions.AddPartitionsToTxnPartitionResult(number, topic_error)
            made.results_by_partition.append(answer)
            answers.append(answer)
            handle = None if found is None else found.partition(number)
            if handle is not None:
                handles.append(handle)
            elif not topic_error:
                answer.partition_error_code = Error.UNKNOWN_TOPIC_OR_PARTITION
    if error:
        return response
    if any(answer.partition_error_code for answer in answers):
        for answer in answers:
            answer.partition_error_code = (
                answer.partition_error_code or Error.OPERATION_NOT_ATTEMPTED
            )
        return response
    error = await _added(call, key, handles, [])
    for answer in answers:
        answer.partition_error_code = error
    return response


async def _topic(call: Call, name: str) -> tuple[OpenTopic | None, Error]:
    """Return a topic that the caller may write, or the error."""
    if not call.caller.may(Verb.APPEND, name):
        return None, Error.TOPIC_AUTHORIZATION_FAILED
    try:
        found = await call.context.topics.open(name)
    except PolynyaError:
        return None, Error.COORDINATOR_NOT_AVAILABLE
    return found, Error.NONE if found is not None else Error.UNKNOWN_TOPIC_OR_PARTITION


async def _added(call: Call, key: Key, handles: list[StreamHandle], groups: list[str]) -> Error:
    """Add participants; return the error for the client."""
    try:
        await judge_connection(call, key)
        await add(call, key, await added_streams(handles), groups, version=1)
    except NotAnswered as refused:
        return fenced(refused.error, known=call.version >= _FENCED_SINCE)
    return Error.NONE


async def add_offsets_to_txn(
    call: Call, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add a consumer group to the open transaction."""
    key = (request.transactional_id, request.producer_id, request.producer_epoch)
    error = refusal_here(call, key[0])
    if not error and not is_group_id(request.group_id):
        error = Error.INVALID_GROUP_ID
    if not error and not call.caller.may_use_group(request.group_id):
        error = Error.GROUP_AUTHORIZATION_FAILED
    if not error:
        error = await _added(call, key, [], [request.group_id])
    return AddOffsetsToTxnResponse(0, error)


async def end_txn(call: Call, request: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort the open transaction. The answer is that of the decision; the markers follow."""
    key = (request.transactional_id, request.producer_id, request.producer_epoch)
    error = refusal_here(call, key[0])
    version = 2 if call.version >= _NEW_END_SINCE else 1
    transactions = call.context.transactions
    try:
        if error:
            raise NotAnswered(error)
        await judge_connection(call, key)
        use = use_of(call, key)
        given = await patiently(
            call,
            key[0],
            lambda: transactions.end(
                key[0], (key[1], key[2]), commit=request.committed, version=version, use=use
            ),
        )
    except NotAnswered as refused:
        if refused.error == Error.INVALID_TXN_STATE and _is_early(call, request, key):
            return EndTxnResponse(0, Error.CONCURRENT_TRANSACTIONS)
        return EndTxnResponse(0, fenced(refused.error, known=call.version >= _FENCED_SINCE))
    finally:
        call.context.numbers.forget(key)
    return EndTxnResponse(0, Error.NONE, *given)


def _is_early(call: Call, request: EndTxnRequest, key: Key) -> bool:
    """Report whether a commit without a transaction may have overtaken the batches that begin it.

    Java's client (seen with 4.3) reads whether it has unsent batches before it takes the lock of its
    transaction (`Sender.maybeSendAndPollTransactionalRequest`). The application may write and commit
    between the two; then EndTxn is sent first, and INVALID_TXN_STATE would end the producer. A
    retriable error lets the client send the batches, and repeat the commit. The second commit of a
    connection that finds no transaction has none."""
    if not request.committed or call.version < _NEW_END_SINCE or call.session.early_commit == key:
        return False
    call.session.early_commit = key
    return True
