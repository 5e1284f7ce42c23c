"""`POST /v1/topics/NAME/records`: records for one partition of a Kafka topic, from clients that speak
HTTP alone, such as the web console."""

from __future__ import annotations

import base64
from functools import partial
from typing import Any

import msgspec

from polynya.front.http.protocol.errors import REFUSALS, Failure
from polynya.front.http.protocol.extension import Request, read_json
from polynya.front.kafka.configs import rules_of
from polynya.front.kafka.topics.steps import TopicService
from polynya.local.api import Refusal, StreamInfo
from polynya.routing.proposals import reply_to
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.topics.state import Topic
from polynya.stream.parts import Batch
from polynya.stream.replies import Code, Reply
from polynya.wire.json_records import BadJson, TooManyRecords
from polynya.wire.kafka.partitioner import partition_of_key
from polynya.wire.record_fields import BatchTooLarge, parse_batch


class _Posted(msgspec.Struct, forbid_unknown_fields=True):
    """Records of one partition. Without `partition`, the key of the first one chooses it."""

    records: msgspec.Raw
    partition: int | None = None


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    """A record as `parse_batch` reads it; its time is the server's."""

    value: str | dict[str, str] | None
    key: str | dict[str, str] | None = None
    headers: list[Any] = []


async def produce(service: TopicService, topic: Topic, request: Request) -> dict[str, int]:
    """Append the records of the body, and return the partition and the first offset. Raises
    `Failure`."""
    posted = read_json(request.body, _Posted)
    records = read_json(bytes(posted.records), list[_Record])
    if not records:
        raise Failure("INVALID_REQUEST", "'records' is empty; expected at least one record")
    batch = _batch(bytes(posted.records), service.now_ms())
    rules = rules_of(topic.configs)
    if len(batch.payload) > rules.batch_bytes_max:
        raise Failure(
            "BODY_TOO_LARGE",
            f"the records have {len(batch.payload):,} bytes, and max.message.bytes of topic "
            f"'{topic.name}' is {rules.batch_bytes_max:,}",
        )
    if rules.needs_keys and any(each.key is None for each in records):
        raise Failure(
            "INVALID_REQUEST",
            f"a record has no key; topic '{topic.name}' is compacted (cleanup.policy), so each record "
            "needs one",
        )
    partition = _partition(topic, posted.partition, records)
    name = topic.stream(partition)
    if rules.diskless:
        service.expect_diskless(name)
    reply = await _appended(service, name, batch)
    if reply.code != Code.OK:
        raise Failure(REFUSALS.get(reply.code, "INTERNAL"))
    return {"partition": partition, "offset": reply.first_record}


def _batch(body: bytes, now_ms: int) -> Batch:
    try:
        batch = parse_batch(body, now_ms, is_json=False)
    except (BadJson, TooManyRecords) as bad:
        raise Failure("INVALID_REQUEST", str(bad)) from None
    except BatchTooLarge as bad:
        raise Failure("BODY_TOO_LARGE", str(bad)) from None
    assert batch is not None
    return batch


def _partition(topic: Topic, wanted: int | None, records: list[_Record]) -> int:
    if wanted is not None:
        if not 0 <= wanted < topic.partitions:
            raise Failure(
                "INVALID_REQUEST",
                f"topic '{topic.name}' has the partitions 0 to {topic.partitions - 1}; {wanted} was "
                "requested",
            )
        return wanted
    keys = [each.key for each in records]
    if any(key != keys[0] for key in keys):
        raise Failure("INVALID_REQUEST", "the records have several keys: name their 'partition'")
    key = keys[0]
    if key is None:
        return 0
    data = key.encode() if isinstance(key, str) else base64.b64decode(key["$base64"])
    return partition_of_key(data, topic.partitions)


async def _appended(service: TopicService, name: str, batch: Batch) -> Reply:
    """Append to a partition, and wait for the outcome. Raises `Failure` and faults."""
    stream = service.open(name)
    info = await stream.info()
    if isinstance(info, Refusal):
        raise Failure(REFUSALS.get(info.code, "INTERNAL"))
    assert isinstance(info, StreamInfo)
    command = Produce(name, service.now_ms(), batch, None)
    return await reply_to(partial(stream.append, command))
