"""Commands that create and end streams: tags 1, 3-5 and 16."""

from __future__ import annotations

from polynya.base.levels import ATTRIBUTES_LEVEL, INTERNAL_LEVEL
from polynya.base.limits import PATH_BYTES_MAX
from polynya.base.names import is_internal, owner_of
from polynya.stream.command import Command, command, its_name
from polynya.stream.command_validation import AMOUNT, DATE, TIME, WIDE, first_fault
from polynya.stream.features.attributes.commands import fault_of_value
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.features.retention.commands import level_of_retention
from polynya.stream.parts import (
    ENCODING,
    Batch,
    Encoding,
    Fork,
    Producer,
    Retention,
    SegmentLimits,
)


def _check(command: Create) -> str:
    if command.profile != Profile.REPLICATED and command.segments is not None:
        return "a leased stream has segments, which a diskless one has not: choose one profile"
    if command.batch is not None and command.batch.encoding != command.encoding:
        return (
            f"the stream has encoding {command.encoding}, but its first batch has encoding "
            f"{command.batch.encoding}"
        )
    name = owner_of(command.name) or command.name
    if not 0 < len(name.encode("utf-8", "surrogatepass")) <= PATH_BYTES_MAX:
        return f"the stream name has {len(name)} characters; a name has 1 to {PATH_BYTES_MAX} bytes"
    return first_fault(
        (command.batch, command.producer, command.fork, command.retention, command.segments)
    )


def _names(command: Create) -> tuple[str, ...]:
    """Return the streams that a creation names: that of a companion also its owner."""
    owner = owner_of(command.name)
    return (command.name, owner) if owner else (command.name,)


def _level(command: Create) -> int:
    if is_internal(command.name):
        return INTERNAL_LEVEL
    needs_level_3 = (
        command.encoding == Encoding.KAFKA
        or command.producer_id_max >= 0
        or command.segments is not None
        or command.profile == Profile.DISKLESS
    )
    of_retention = 1 if command.retention is None else level_of_retention(command.retention)
    return max(of_retention, 3 if needs_level_3 else 1)


_BOUNDS = {
    "now_ms": TIME,
    "encoding": ENCODING,
    "ttl_seconds": AMOUNT,
    "expires_at_ms": DATE,
    "profile": (Profile.REPLICATED, Profile.NAMED_REPLICATED),
    "producer_id_max": (-1, 2**63 - 1),
}


@command(
    since=1,
    bounds=_BOUNDS,
    check=_check,
    level=_level,
    names=_names,
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
    profile: int = 0  # `Profile`; DISKLESS needs level 3
    # of a partition: Kafka producers with ids up to this one are older than the stream; level 3
    producer_id_max: int = -1


@command(
    since=ATTRIBUTES_LEVEL,
    bounds=_BOUNDS,
    check=lambda command: _check(command) or fault_of_value(command.attributes),
    names=its_name,
)
class CreateWithAttributes(Create, tag=16, frozen=True):
    """Create a stream with attributes. Level 4."""

    attributes: bytes | None = None  # as `SetAttributes.value`


@command(since=1, bounds={"now_ms": TIME, "incarnation": WIDE}, names=its_name)
class Delete(Command, tag=3, frozen=True):
    """Delete a stream. `incarnation`: the expected uid; 0: any."""

    name: str
    now_ms: int
    incarnation: int = 0


@command(since=1, bounds={"uid": WIDE, "activity_ms": TIME, "now_ms": TIME}, names=its_name)
class Expire(Command, tag=4, frozen=True):
    """Expire a stream. Refused if the stream saw activity after `activity_ms`."""

    name: str
    uid: int
    activity_ms: int
    now_ms: int


@command(since=1, bounds={"now_ms": TIME}, rows=("touches", (WIDE, TIME)))
class Touch(Command, tag=5, frozen=True):
    """Record reads that extend sliding TTLs: (uid, time of the read)."""

    touches: list[tuple[int, int]]
    now_ms: int
