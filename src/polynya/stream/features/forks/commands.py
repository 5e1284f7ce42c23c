"""Commands of forks, which go from group to group: tags 20-24."""

from __future__ import annotations

from polynya.stream.command import Command


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


class ConfirmPin(Command, tag=21, frozen=True):
    """Confirm a pin in the source's group: the fork exists."""

    source_uid: int
    attempt: str


class Unpin(Command, tag=22, frozen=True):
    """Remove a pin; an unknown pin is no error (idempotent). Removing the last pin of a
    soft-deleted source deletes the source."""

    source_uid: int
    attempt: str
    now_ms: int


class RefuseAttempt(Command, tag=23, frozen=True):
    """Refuse a fork attempt for good, in the target's group. The reply reports whether it had
    already succeeded."""

    name: str
    attempt: str
    now_ms: int


class Acknowledge(Command, tag=24, frozen=True):
    """Drop an outbox message whose target group has applied it."""

    message: int
