"""Repeats: appends that committed state shows to add nothing."""

from __future__ import annotations

from polynya.stream.features.appends.commands import Append, MirrorBatch, Produce
from polynya.stream.features.appends.kafka import judge
from polynya.stream.features.appends.mirror import judge_mirrored
from polynya.stream.features.appends.producers import judge_producer
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code
from polynya.stream.state.model import Stream


def adds_nothing(stream: Stream | None, command: Append | Produce) -> bool:
    """Report whether an append adds no bytes: a duplicate, or an append to a closed stream."""
    if stream is None or stream.closed:
        return stream is not None
    if isinstance(command, MirrorBatch):
        reply = judge_mirrored(stream, command)
        return reply is not None and reply.code == Code.DUPLICATE
    if isinstance(command, Produce):
        reply = judge(stream, command)
        return reply is not None and reply.code in (Code.DUPLICATE, Code.DUPLICATE_SEQUENCE)
    producer = command.producer
    batch = command.batch
    crc = 0 if batch is None or batch.encoding == Encoding.KAFKA else batch.crc
    reply = None if producer is None else judge_producer(stream, producer, command.now_ms, crc)
    return reply is not None and reply.code in (Code.DUPLICATE, Code.PRODUCER_CONFLICT)
