"""Appends with a given producer epoch and sequence, for writers whose state is in Spark's
checkpoint instead of a process."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polynya.client.calls import call, stream_target
from polynya.client.errors import ProducerFenced
from polynya.client.messages import HttpRequest, Operation, Retry

__all__ = ["Once", "ProducerFenced", "append_once"]


class Once(msgspec.Struct, frozen=True):
    """The place of an append in a query: its batch is the producer's epoch."""

    producer: str
    epoch: int
    sequence: int


def append_once(
    stream: str, once: Once, records: Sequence[bytes], kind: str, retry: Retry
) -> Operation[None]:
    """Append encoded records of a media type: JSON values or whole records. A repeat succeeds and
    adds nothing. Raises ProducerFenced if a later epoch has begun."""
    headers = {
        "content-type": kind,
        "producer-id": once.producer,
        "producer-epoch": str(once.epoch),
        "producer-seq": str(once.sequence),
    }
    body = b"[" + b",".join(records) + b"]"
    request = HttpRequest("POST", stream_target(stream), headers, body)
    yield from call(request, retry, f"append to '{stream}'", lambda _: None, repeatable=True)
