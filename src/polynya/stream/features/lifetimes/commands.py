"""Commands that create and end streams: tags 1 and 3-5."""

from __future__ import annotations

from polynya.stream.command import Command
from polynya.stream.parts import (
    Batch,
    Fork,
    Producer,
    Retention,
    SegmentLimits,
)


class Create(Command, tag=1, frozen=True):
    """Create a stream, optionally with an initial batch, closed at once, or as a fork."""

    name: str
    now_ms: int
    content_type: str
    encoding: int
    ttl_seconds: int | None = None
    expires_at_ms: int | None = None
    closed: bool = False
    batch: Batch | None = None
    producer: Producer | None = None
    stream_seq: str | None = None
    fork: Fork | None = None
    retention: Retention | None = None
    segments: SegmentLimits | None = None  # of a leased stream; level 3
    profile: int = 0  # `diskless_commands.Profile`; DISKLESS needs level 3
    # of a partition: Kafka producers with ids up to this one are older than the stream; level 3
    producer_id_max: int = -1


class Delete(Command, tag=3, frozen=True):
    """Delete a stream. `incarnation`: the expected uid; 0: any."""

    name: str
    now_ms: int
    incarnation: int = 0


class Expire(Command, tag=4, frozen=True):
    """Expire a stream. Refused if the stream saw activity after `activity_ms`."""

    name: str
    uid: int
    activity_ms: int
    now_ms: int


class Touch(Command, tag=5, frozen=True):
    """Record reads that extend sliding TTLs: (uid, time of the read)."""

    touches: list[tuple[int, int]]
    now_ms: int
