"""Commands of diskless streams, and of the profile of a stream (docs/decisions/0027): tags
120-122."""

from __future__ import annotations

import msgspec

from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append, AppendIf, Produce
from polynya.stream.parts import Count, Natural


class Profile:
    """The place in which the records of a stream are stored first."""

    REPLICATED = 0  # in the journals of the group's nodes
    DISKLESS = 1  # in the object store
    # of a `Create` alone: REPLICATED by name, where 0 leaves the profile open
    NAMED_REPLICATED = 2
    NAMES = ("replicated", "diskless")


class PackedAppend(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One append whose payload is in a pack: the next batch of its slice. Without a batch it only
    closes the stream.

    The batch of `command` has the payload's CRC, an empty payload and no record lengths: the slice
    has them. `command.now_ms` is the append time that the slice has. The append is judged at the
    time of the commit."""

    command: Append | AppendIf | Produce
    length: Count = 0  # bytes of the payload


class PackedSlice(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The appends to one stream that lie in one slice of a pack, in order. Closes without a batch
    are between them; with `stored` 0 there is nothing else."""

    offset: Natural  # of the slice in the object
    stored: Natural  # bytes of the slice in the object, header included
    crc: Count  # CRC-32C of those bytes
    encoding: int
    appends: list[PackedAppend]  # at least one; all name the same stream


class CommitSlices(Command, tag=120, frozen=True, gc=False):
    """Judge the appends of a pack to streams of one group, and add the accepted ones to their
    indexes. Level 3.

    Each append is judged and answered as if it were alone, in order. The reply's detail is the
    list of the replies of all appends, slice by slice. A repeat of a writer's last commit gets the
    same detail. Refusals of the whole, which then applied nothing: FENCED (a lower number than the
    writer's last), GONE (see below), MEMORY_PRESSURE (the group remembers too many writers).

    GONE: the group has released the pack. Or the time of its intent is more than `WRITE_MS_MAX`
    from the log time of the group, which then is the detail.

    NOT_YET and EVICTED of an append: the writer proposes it again, from the same pack, in its next
    commit. The group keeps such a pack from being released until then, or until the collector
    settles it."""

    pack: str
    owner_group: int
    writer: str  # a start of a core: 16 random bytes in hex
    sequence: Natural  # of the writer's commits to this group, from 1
    intent_ms: int  # log time of the pack's `PackWritten`
    slices: list[PackedSlice]
    now_ms: int


class SetProfile(Command, tag=121, frozen=True, gc=False):
    """Begin to change the profile of a stream, or take such a change back. Level 3.

    To `DISKLESS`, appends are refused (NOT_YET) until `SealProfileEpoch`; if nothing is hot, the new
    regime begins at once. To `REPLICATED` it always does. Detail of both commands: (profile, epoch,
    whether it changes)."""

    name: str
    profile: int
    now_ms: int
    uid: int = 0  # precondition: the stream's uid; 0: none
    epoch: int = 0  # precondition: that of the open regime; 0: none


class SealProfileEpoch(Command, tag=122, frozen=True, gc=False):
    """End the regime of a stream whose profile changes, if nothing of it is hot; else NOT_YET.
    Level 3."""

    name: str
    uid: int
    epoch: int  # of the regime to end; refused if another one is open
    now_ms: int
