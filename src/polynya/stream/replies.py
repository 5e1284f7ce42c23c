"""Replies to commands. Refusals are values with a code; the HTTP front end maps codes to
statuses."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Annotated, Any

import msgspec


class Code(enum.IntEnum):
    """The outcome of a command. Below 20: applied now or before. From 20: refused, and nothing
    changed."""

    OK = 0  # applied
    DUPLICATE = 1  # a producer's retry: applied before
    EXISTS = 2  # create: the stream exists with the same configuration
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
    # too much unflushed data: retry later; `detail`: True if the object store is full
    MEMORY_PRESSURE = 37
    ACTIVE = 38  # expire: the stream saw newer activity
    NOT_YET = 39  # the precondition of an internal step does not hold yet
    DISK_FULL = 40  # the journal's disk is full; reads continue
    # a wake of an earlier generation, or an event that the subscription's state does not allow
    FENCED = 41
    HELD = 42  # another worker holds the lease
    TOO_MANY = 43  # the limit of subscriptions, of their streams, or of open transactions
    # more than may ever be hot at once; the reply's `byte` is that bound
    APPEND_EXCEEDS_MEMORY_LIMIT = 44
    # the change does not fit the cluster map, or others need what it ends: `detail` says why
    REFUSED = 45
    EVICTED = 46  # the state of a stream is in the object store: `Return` it, then retry
    TOO_LARGE = 47  # more bytes than one append may have
    # a Kafka batch older than the kept receipts: applied before, at a record that is not known
    DUPLICATE_SEQUENCE = 49
    STREAM_FAULTED = 48  # the stream's data is damaged, and the stream is quarantined
    # an append with a payload to a diskless stream, or a commit of a pack to a replicated one: send
    # it the other way
    WRONG_PROFILE = 50
    PRECONDITION = 51  # the tail is not where the append demands it
    # a transaction is open at that tail: its records may yet come before the append
    UNSTABLE = 52
    PRODUCER_CONFLICT = 53  # a producer's sequence that was applied with another body
    ATTRS_FULL = 54  # the attributes of the group's streams have all of their memory
    SNAPSHOT_OLDER = 55  # the origin has a newer snapshot; `detail`: its (record, byte)
    SNAPSHOT_CONFLICT = 56  # the origin's snapshot at that record is another one; likewise
    SNAPSHOT_NEEDED = 57  # the records before it are gone, and no other snapshot covers them
    SNAPSHOT_ORIGINS = 58  # the stream has snapshots of as many origins as it may
    SNAPSHOT_TOO_SOON = 59  # too many superseded snapshots; `detail`: ms until one of them is gone
    PARTS_GONE = 60  # a part of the body is none of the companion's records
    NO_SNAPSHOT = 61
    NOT_A_BOUNDARY = 62  # no record begins there
    TXN_ENDED = 63  # the stream has ended the transaction of this number, or a later one
    TXN_STATE = 64  # the state of the transaction, or of its producer, does not allow it
    TXN_CONCURRENT = 65  # the transaction is about to end: wait for it, then repeat
    TXN_LATE = 66  # its client has replaced the request: a newer one came first, or another leader
    TXN_HELD = 72  # a backup holds commits for a moment: repeat
    BACKUP_HOLDS = 73  # another backup holds commits; `detail`: its round
    # one of many appends is refused, so none was applied; `detail`: its number, and its reply
    NONE_APPENDED = 75


KnownCode = Annotated[int, msgspec.Meta(ge=0, le=int(max(Code)))]
"""A code as other nodes send it: one that only a later release knows cannot be decoded."""


class Reply(msgspec.Struct, array_like=True, gc=False):
    """The reply to one command, with the facts that front ends put into headers."""

    code: KnownCode
    uid: int = 0
    record: int = 0  # the tail after the command: next record number …
    byte: int = 0  # … and byte position
    closed: bool = False
    producer_epoch: int = -1
    producer_sequence: int = -1  # highest accepted
    expected_sequence: int = -1
    received_sequence: int = -1
    first_record: int = -1  # of the appended batch (receipt); -1 when unknown
    detail: Any = None  # additional result of some commands; documented with the command


Done = Callable[[Reply | BaseException], None]
"""Called once with a command's outcome: the reply, or the error if the command failed or its
outcome is unknown."""
