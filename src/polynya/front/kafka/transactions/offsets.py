"""TxnOffsetCommit: offsets that a transaction commits with its records."""

from __future__ import annotations

import contextlib

from polynya.base.errors import PolynyaError
from polynya.front.kafka.call import Call, in_turns
from polynya.front.kafka.errors import Error
from polynya.front.kafka.groups.collected import CollectedOffsets
from polynya.front.kafka.groups.coordinators import ask, is_group_id
from polynya.front.kafka.groups.offsets import topic_of_offsets
from polynya.front.kafka.leaders import is_elsewhere_led
from polynya.front.kafka.transactions.known import Key
from polynya.front.kafka.transactions.numbers import number_of_group
from polynya.front.kafka.transactions.refusals import NotAnswered, refusal_of_id
from polynya.stream.features.consumer_groups.calls import CommitInTransaction, Outcomes
from polynya.stream.features.consumer_groups.commands import OffsetEntry
from polynya.wire.kafka.generated import txn_offset_commit as wire
from polynya.wire.kafka.primitives import NO_UUID

_ADDS_SINCE = 5  # adds the group to the transaction
_OF_EPOCH = {Error.PRODUCER_FENCED: Error.INVALID_PRODUCER_EPOCH}


async def txn_offset_commit(
    call: Call, request: wire.TxnOffsetCommitRequest
) -> wire.TxnOffsetCommitResponse:
    """Keep offsets until the end of the transaction: those of known partitions, in one log entry."""
    refused = _refusal(call, request)
    response = wire.TxnOffsetCommitResponse()
    offsets = CollectedOffsets[wire.TxnOffsetCommitResponsePartition]()
    async for asked in in_turns(call, request.topics):
        answers = wire.TxnOffsetCommitResponseTopic(asked.name)
        response.topics.append(answers)
        topic, error = None, refused
        if not refused:
            topic, error = await topic_of_offsets(call, asked.name, NO_UUID, by_id=False)
        for part in asked.partitions:
            answer = wire.TxnOffsetCommitResponsePartition(part.partition_index, error)
            answers.partitions.append(answer)
            offsets.collect(topic, part, answer)
    if offsets.entries:
        error_code = await _commit(call, request, offsets.entries)
        for answer in offsets.answers:
            answer.error_code = error_code
    return response


def _refusal(call: Call, request: wire.TxnOffsetCommitRequest) -> Error:
    """Return why nothing of a request is looked at."""
    refused = refusal_of_id(call, request.transactional_id)
    if refused:
        return refused
    if not is_group_id(request.group_id):
        return Error.INVALID_GROUP_ID
    if not call.caller.may_use_group(request.group_id):
        return Error.GROUP_AUTHORIZATION_FAILED
    context = call.context
    if is_elsewhere_led(context.brokers, context.groups.group_of(request.group_id)):
        return Error.NOT_COORDINATOR  # before the group is added to the transaction
    return Error.NONE


async def _commit(
    call: Call, request: wire.TxnOffsetCommitRequest, entries: list[OffsetEntry]
) -> int:
    """Log the offsets with the transaction's number. A known number may be stale: ask once more."""
    key: Key = (request.transactional_id, request.producer_id, request.producer_epoch)
    is_new = call.version >= _ADDS_SINCE
    numbers = call.context.numbers
    for is_last in (False, True):
        known = numbers.find(key)
        is_fresh = known is None or request.group_id not in known.groups
        try:
            number = (await number_of_group(call, key, request.group_id, is_new=is_new)).number
        except NotAnswered as refused:
            return _OF_EPOCH.get(refused.error, refused.error)
        made = CommitInTransaction(
            request.group_id,
            request.producer_id,
            request.producer_epoch,
            number,
            max(request.generation_id, -1),
            request.member_id,
            request.group_instance_id,
            entries,
        )
        answer = await ask(call, made)
        assert isinstance(answer, Outcomes)
        error, *in_the_way = answer.errors
        if in_the_way:  # its end was lost
            group = call.context.groups.group_of(request.group_id)
            jobs = call.context.transaction_parts.jobs
            with contextlib.suppress(PolynyaError):
                await jobs.ask_soon(group, request.producer_id, in_the_way[0])
        if error != Error.INVALID_TXN_STATE or is_fresh or is_last or call.connection.is_ending:
            return error
        numbers.forget(key)
    raise AssertionError("the last round returns")
