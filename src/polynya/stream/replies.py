"""Replies: what applying a command answers. Refusals are values with a code; the HTTP front maps codes to statuses."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import msgspec


class Code(enum.IntEnum):
    """What became of a command. Below 20: applied or already so. From 20: refused, nothing changed."""

    OK = 0  # applied
    DUPLICATE = 1  # a producer's repeat: applied before
    EXISTS = 2  # create: the same configuration is there
    CREATED = 3
    ALREADY_CLOSED = 4  # close-only on a closed stream
    NOT_FOUND = 20
    GONE = 21  # soft-deleted: forks still need it
    EXISTS_DIFFERENT = 22
    CLOSED = 23
    CONTENT_TYPE = 24
    SEQ_REGRESSION = 25
    PRODUCER_STALE = 26  # epoch below the known one
    PRODUCER_GAP = 27
    PRODUCER_EPOCH_START = 28  # a new epoch must start at sequence 0
    PRODUCER_LIMIT = 29
    INCARNATION = 30
    OFFSET_BEYOND_TAIL = 31
    SUB_OFFSET = 32
    FORK_DEPTH = 33
    ATTEMPT_REFUSED = 34
    ATTEMPT_PENDING = 35  # another fork of the deleted name is unconfirmed: wait for its outcome
    TRIMMED = 36  # before the first kept record
    HOT_LIMIT = 37  # too much not yet flushed: retry later; `detail`: whether the object store has no room
    ACTIVE = 38  # expire: there was newer activity
    NOT_YET = 39  # the precondition of an internal step is not there yet
    DISK_FULL = 40  # the journal's disk has no room; reads go on
    FENCED = 41  # a subscription's wake of an earlier generation, or a step that its state does not take
    HELD = 42  # another worker has the lease
    TOO_MANY = 43  # the limit of subscriptions, or of their streams
    OVER_HOT_BOUND = 44  # more than may ever be hot at once: `byte` of the reply is that bound
    REFUSED = 45  # what would not fit the map of the cluster: `detail` says why
    EVICTED = 46  # the state of a stream that this needs is in the object store: `Return` it, then again
    TOO_LARGE = 47  # more bytes than one append may have
    STREAM_FAULTED = 48  # the stream's data is damaged: it is set aside


class Reply(msgspec.Struct, array_like=True, gc=False):
    """The answer to one command, and the facts that a front puts into headers."""

    code: int
    uid: int = 0
    record: int = 0  # the tail after the command: next record number …
    byte: int = 0  # … and byte position
    closed: bool = False
    producer_epoch: int = -1
    producer_sequence: int = -1  # highest accepted
    expected_sequence: int = -1
    received_sequence: int = -1
    first_record: int = -1  # of the batch appended (receipt); -1 when unknown
    detail: Any = None  # what some commands return beside: documented with the command


Done = Callable[[Reply | BaseException], None]
"""Who is told, once, what became of a command: of one that was not applied, or whose outcome is unknown, the fault."""
