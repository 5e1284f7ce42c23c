"""Commands of forks, which go from group to group: tags 20-24."""

from __future__ import annotations

from polynya.base.levels import TRANSACTION_LEVEL
from polynya.stream.command import Command, command, its_name
from polynya.stream.command_validation import COUNTER, FROM_TAIL, NONE, TIME, WIDE


@command(
    since=1,
    bounds={"now_ms": TIME, "record": FROM_TAIL, "byte": FROM_TAIL, "sub_offset": COUNTER},
    names=its_name,
)
class PinSource(Command, tag=20, frozen=True):
    """Resolve the fork point and hold the records before it. First step of a fork, in the source's
    group."""

    name: str
    attempt: str
    target_name: str
    now_ms: int
    record: int = -1  # -1: the tail
    byte: int = -1
    content_type: str = ""  # "" inherits; otherwise it must match
    sub_offset: int = 0
    # the coordinator read (record, byte) as a record boundary; this machine cannot
    resolved: bool = False


@command(since=1, bounds={"source_uid": WIDE})
class ConfirmPin(Command, tag=21, frozen=True):
    """Confirm a pin in the source's group: the fork exists."""

    source_uid: int
    attempt: str


@command(since=1, bounds={"source_uid": WIDE, "now_ms": TIME})
class Unpin(Command, tag=22, frozen=True):
    """Remove a pin; an unknown pin is no error (idempotent). Removing the last pin of a
    soft-deleted source deletes the source."""

    source_uid: int
    attempt: str
    now_ms: int


@command(since=1, bounds={"now_ms": TIME}, names=its_name, needs_state=False)
class RefuseAttempt(Command, tag=23, frozen=True):
    """Refuse a fork attempt for good, in the target's group. The reply reports whether it had
    already succeeded."""

    name: str
    attempt: str
    now_ms: int


@command(since=1, bounds={"message": WIDE})
class Acknowledge(Command, tag=24, frozen=True):
    """Drop an outbox message whose target group has applied it."""

    message: int


def _acknowledged(command: AcknowledgeAll) -> str:
    strange = [message for message in command.messages if not WIDE[0] <= message <= WIDE[1]]
    return f"{strange[0]} is no number of a message" if strange else ""


@command(since=TRANSACTION_LEVEL, bounds=NONE, check=_acknowledged)
class AcknowledgeAll(Command, tag=25, frozen=True, gc=False):
    """Drop several outbox messages whose target groups have applied them. Level 4."""

    messages: list[int]
