"""OffsetCommit, OffsetFetch and OffsetDelete. The log keys offsets by topic id."""

from __future__ import annotations

from polynya.access.grants import Verb
from polynya.access.kafka_acls import Operation
from polynya.base.errors import PolynyaError
from polynya.front.kafka.call import Call, in_turns
from polynya.front.kafka.errors import Error
from polynya.front.kafka.groups.collected import CollectedOffsets
from polynya.front.kafka.groups.coordinators import ask
from polynya.stream.features.consumer_groups import calls
from polynya.stream.features.consumer_groups.calls import Offsets, Outcomes
from polynya.stream.features.consumer_groups.commands import OffsetEntry
from polynya.stream.features.topics.state import Topic
from polynya.wire.kafka.generated import offset_commit as commit
from polynya.wire.kafka.generated import offset_delete as delete
from polynya.wire.kafka.generated import offset_fetch as fetch
from polynya.wire.kafka.primitives import NO_UUID

_COMMIT_BY_ID_SINCE = 10
_FETCH_BY_ID_SINCE = 10
_FETCH_BATCHED_SINCE = 8
_NO_OFFSET = -1


# --- commit ---------------------------------------------------------------------------------------


async def offset_commit(
    call: Call, request: commit.OffsetCommitRequest
) -> commit.OffsetCommitResponse:
    """Commit offsets: those of known partitions, together, in one log entry."""
    by_id = call.version >= _COMMIT_BY_ID_SINCE
    response = commit.OffsetCommitResponse()
    offsets = CollectedOffsets[commit.OffsetCommitResponsePartition]()
    async for asked in in_turns(call, request.topics):
        answers = commit.OffsetCommitResponseTopic(asked.name, asked.topic_id)
        response.topics.append(answers)
        topic, error = await topic_of_offsets(call, asked.name, asked.topic_id, by_id=by_id)
        for part in asked.partitions:
            answer = commit.OffsetCommitResponsePartition(part.partition_index, error)
            answers.partitions.append(answer)
            offsets.collect(topic, part, answer)
    if offsets.entries:
        errors = await _commit(call, request, offsets.entries)
        for answer, error_code in zip(offsets.answers, errors, strict=True):
            answer.error_code = error_code
    return response


async def _commit(
    call: Call, request: commit.OffsetCommitRequest, entries: list[OffsetEntry]
) -> list[int]:
    """Commit; return the error of each offset."""
    generation = request.generation_id_or_member_epoch
    made = calls.Commit(
        request.group_id, max(generation, -1), request.member_id, request.group_instance_id, entries
    )
    answer = await ask(call, made)
    assert isinstance(answer, Outcomes)
    errors = answer.errors  # one for all, or one for each
    return errors if len(errors) == len(entries) else errors[:1] * len(entries)


async def topic_of_offsets(
    call: Call, name: str, id_: bytes, *, by_id: bool, operation: Operation = Operation.READ
) -> tuple[Topic | None, Error]:
    """Return a topic that the caller may read (or that an ACL allows the operation on), by its id
    or its name, or the error."""
    topics = call.context.topics
    try:
        topic = await (topics.find_id(id_) if by_id else topics.find(name))
    except PolynyaError:
        return None, Error.COORDINATOR_NOT_AVAILABLE
    if not call.caller.may(Verb.READ, name if topic is None else topic.name, operation):
        return None, Error.TOPIC_AUTHORIZATION_FAILED
    missing = Error.UNKNOWN_TOPIC_ID if by_id else Error.UNKNOWN_TOPIC_OR_PARTITION
    return topic, Error.NONE if topic is not None else missing


# --- fetch ----------------------------------------------------------------------------------------


async def offset_fetch(call: Call, request: fetch.OffsetFetchRequest) -> fetch.OffsetFetchResponse:
    """Return committed offsets, of several groups since version 8."""
    response = fetch.OffsetFetchResponse()
    if call.version < _FETCH_BATCHED_SINCE:
        found = await _fetched(
            call, request.group_id, _as_group(request), stable=request.require_stable
        )
        response.error_code = found.error_code
        for each in found.topics:
            parts = [
                fetch.OffsetFetchResponsePartition(
                    part.partition_index,
                    part.committed_offset,
                    part.committed_leader_epoch,
                    part.metadata,
                    part.error_code,
                )
                for part in each.partitions
            ]
            response.topics.append(fetch.OffsetFetchResponseTopic(each.name, parts))
        return response
    async for asked in in_turns(call, request.groups):
        member = (asked.member_id or "", asked.member_epoch)
        found = await _fetched(
            call, asked.group_id, asked.topics, member, stable=request.require_stable
        )
        response.groups.append(found)
    return response


def _as_group(request: fetch.OffsetFetchRequest) -> list[fetch.OffsetFetchRequestTopics] | None:
    if request.topics is None:
        return None
    return [
        fetch.OffsetFetchRequestTopics(each.name, NO_UUID, each.partition_indexes)
        for each in request.topics
    ]


async def _fetched(
    call: Call,
    group_id: str,
    asked: list[fetch.OffsetFetchRequestTopics] | None,
    member: tuple[str, int] = ("", -1),
    *,
    stable: bool,
) -> fetch.OffsetFetchResponseGroup:
    """Return the offsets of one group: of the named partitions, or all that it has. `stable`:
    refuse those that an open transaction may change, and the client asks again."""
    response = fetch.OffsetFetchResponseGroup(group_id)
    answer = await ask(call, calls.FetchOffsets(group_id, *member))
    if isinstance(answer, Outcomes):
        response.error_code = answer.errors[0]
        for each in asked or []:
            parts = [_none(number, answer.errors[0]) for number in each.partition_indexes]
            response.topics.append(fetch.OffsetFetchResponseTopics(each.name, each.topic_id, parts))
        return response
    assert isinstance(answer, Offsets)
    entries = {(each.topic, each.partition): each for each in answer.entries}
    unstable = set(answer.unstable) if stable else set()
    by_id = call.version >= _FETCH_BY_ID_SINCE
    if asked is None:
        response.topics = await _all(call, entries, unstable)
        return response
    async for each in in_turns(call, asked):
        topic, error = await topic_of_offsets(
            call, each.name, each.topic_id, by_id=by_id, operation=Operation.DESCRIBE
        )
        if error == Error.UNKNOWN_TOPIC_OR_PARTITION:
            error = Error.NONE  # as in Kafka: no offset
        parts = [
            _none(number, error)
            if topic is None
            else _found(number, entries.get((topic.id, number)), (topic.id, number) in unstable)
            for number in each.partition_indexes
        ]
        response.topics.append(fetch.OffsetFetchResponseTopics(each.name, each.topic_id, parts))
    return response


async def _all(
    call: Call, entries: dict[tuple[bytes, int], OffsetEntry], unstable: set[tuple[bytes, int]]
) -> list[fetch.OffsetFetchResponseTopics]:
    """Return all offsets; those of topics that are being deleted are left out."""
    found: dict[bytes, fetch.OffsetFetchResponseTopics] = {}
    for partition in [*entries, *sorted(unstable - entries.keys())]:
        id_, number = partition
        if id_ not in found:
            topic, _error = await topic_of_offsets(
                call, "", id_, by_id=True, operation=Operation.DESCRIBE
            )
            if topic is None:
                continue
            found[id_] = fetch.OffsetFetchResponseTopics(topic.name, id_)
        found[id_].partitions.append(_found(number, entries.get(partition), partition in unstable))
    return list(found.values())


def _found(
    number: int, entry: OffsetEntry | None, is_unstable: bool
) -> fetch.OffsetFetchResponsePartitions:
    if is_unstable:
        return _none(number, Error.UNSTABLE_OFFSET_COMMIT)
    if entry is None:
        return _none(number, Error.NONE)
    return fetch.OffsetFetchResponsePartitions(
        entry.partition, entry.offset, entry.leader_epoch, entry.metadata, Error.NONE
    )


def _none(number: int, error: int) -> fetch.OffsetFetchResponsePartitions:
    return fetch.OffsetFetchResponsePartitions(number, _NO_OFFSET, -1, "", error)


# --- delete ---------------------------------------------------------------------------------------


async def offset_delete(
    call: Call, request: delete.OffsetDeleteRequest
) -> delete.OffsetDeleteResponse:
    """Delete committed offsets of partitions that no member of the group reads."""
    partitions: list[tuple[str, bytes, int]] = []
    waiting: list[delete.OffsetDeleteResponsePartition] = []
    response = delete.OffsetDeleteResponse()
    async for asked in in_turns(call, request.topics):
        answers = delete.OffsetDeleteResponseTopic(asked.name)
        response.topics.append(answers)
        topic, error = await topic_of_offsets(call, asked.name, NO_UUID, by_id=False)
        for part in asked.partitions:
            answer = delete.OffsetDeleteResponsePartition(part.partition_index, error)
            answers.partitions.append(answer)
            if topic is not None and 0 <= part.partition_index < topic.partitions:
                waiting.append(answer)
                partitions.append((asked.name, topic.id, part.partition_index))
            elif topic is not None:
                answer.error_code = Error.UNKNOWN_TOPIC_OR_PARTITION
    answer_ = await ask(call, calls.DropPartitionOffsets(request.group_id, partitions))
    assert isinstance(answer_, Outcomes)
    response.error_code = answer_.errors[0]
    if not response.error_code:
        for answer, code in zip(waiting, answer_.errors[1:], strict=True):
            answer.error_code = code
    return response
