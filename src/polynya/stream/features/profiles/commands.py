"""Commands of diskless streams, and of the profile of a stream (docs/decisions/0027): tags
120-122."""

from __future__ import annotations

import msgspec

from polynya.base.levels import COMPRESSION_LEVEL
from polynya.base.limits import COMMIT_APPENDS_MAX
from polynya.stream.command import Command, command, its_name, level_of
from polynya.stream.command_validation import (
    COUNTER,
    GROUP,
    TIME,
    WIDE,
    WORD,
    bounded,
    describe_fault,
    first_fault,
    out_of_span,
)
from polynya.stream.features.appends.commands import (
    AnyAppend,
    Append,
    Produce,
    TxnProduce,
    fault_in_transaction,
    is_common_append,
    sequences_match,
)
from polynya.stream.parts import ENCODING, Count, Encoding, Natural


class Profile:
    """The position in which the records of a stream are stored first."""

    REPLICATED = 0  # in the journals of the group's nodes
    DISKLESS = 1  # in the object store
    # of a `Create` alone: REPLICATED by name, where 0 leaves the profile open
    NAMED_REPLICATED = 2
    NAMES = ("replicated", "diskless")


IS_COMPRESSED = 16  # added to the encoding of a `PackedSlice`
_WRITER_BYTES_MAX = 64  # of a name; today's have 32


def _packed(packed: PackedAppend) -> str:
    """Return the fault of an append without its payload, or ""."""
    command = packed.command
    batch, producer = command.batch, command.producer
    if batch is None:
        is_close = isinstance(command, Append) and command.close and not packed.length
        return out_of_span(command) if is_close else "an append of the commit adds nothing"
    is_bare = not batch.payload and not batch.lengths
    if is_bare and type(command) is Append and is_common_append(command):  # the usual case
        return ""
    if not is_bare:
        return "a batch of the commit has a payload or record lengths: they belong in the pack"
    if isinstance(command, Produce):
        if batch.encoding != Encoding.KAFKA:
            return f"a Produce has encoding {batch.encoding}; expected {Encoding.KAFKA}"
        if producer is not None and not sequences_match(producer, batch.records):
            return f"the Kafka producer {producer} does not fit {batch.records} records"
        if isinstance(command, TxnProduce) and (fault := fault_in_transaction(command)):
            return fault
    fault = out_of_span(command) or out_of_span(batch)
    return fault or ("" if producer is None else describe_fault(producer))


@bounded({"length": WORD}, check=_packed)
class PackedAppend(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One append whose payload is in a pack: the next batch of its slice. Without a batch it only
    closes the stream.

    The batch of `command` has the payload's CRC, an empty payload and no record lengths: the slice
    has them. `command.now_ms` is the append time that the slice has. The append is judged at the
    time of the commit."""

    command: AnyAppend
    length: Count = 0  # bytes of the payload


def _packed_slice(part: PackedSlice) -> str:
    if not part.appends:
        return "a slice of the commit has no appends"
    name, records, length = part.appends[0].command.name, 0, 0
    encoding = part.of_batches
    if not ENCODING[0] <= encoding <= ENCODING[1]:
        return f"a slice has the encoding {part.encoding}"
    for packed in part.appends:
        batch = packed.command.batch
        if packed.command.name != name:
            return f"a slice has appends to {name[:100]} and to {packed.command.name[:100]}"
        if batch is not None and batch.encoding != encoding:
            return f"a batch of encoding {batch.encoding} is in a slice of encoding {encoding}"
        records += 0 if batch is None else batch.records
        length += packed.length
    if max(records, length) > WORD[1]:
        return f"a slice has {records} records and {length} bytes; at most {WORD[1]} are allowed"
    if (records > 0) != (part.stored > 0):
        return f"a slice of {records} records has {part.stored} stored bytes"
    return first_fault(part.appends)


@bounded(
    {
        "offset": WORD,
        "stored": WORD,
        "crc": WORD,
        "encoding": (ENCODING[0], IS_COMPRESSED + ENCODING[1]),
    },
    check=_packed_slice,
)
class PackedSlice(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The appends to one stream that lie in one slice of a pack, in order. Closes without a batch
    are between them; with `stored` 0 there is nothing else."""

    offset: Natural  # of the slice in the object
    stored: Natural  # bytes of the slice in the object, header included
    crc: Count  # CRC-32C of those bytes
    encoding: int  # of the batches; 16 more if the payload is compressed, which needs level 4
    appends: list[PackedAppend]  # at least one; all name the same stream

    @property
    def is_compressed(self) -> bool:
        return self.encoding >= IS_COMPRESSED

    @property
    def of_batches(self) -> int:
        """Return the encoding of its batches."""
        return self.encoding % IS_COMPRESSED


def _commit(command: CommitSlices) -> str:
    appends = sum(len(part.appends) for part in command.slices)
    if not 1 <= appends <= COMMIT_APPENDS_MAX:
        return f"the commit has {appends} appends; expected 1 to {COMMIT_APPENDS_MAX}"
    if not 0 < len(command.writer) <= _WRITER_BYTES_MAX:
        return (
            f"the name of the writer has {len(command.writer)} characters; expected 1 to "
            f"{_WRITER_BYTES_MAX}"
        )
    return first_fault(command.slices)


def _commit_level(command: CommitSlices) -> int:
    if any(part.is_compressed for part in command.slices):
        return COMPRESSION_LEVEL
    kinds = {type(packed.command) for part in command.slices for packed in part.appends}
    return max(level_of(CommitSlices), *map(level_of, kinds))


@command(
    since=3,
    bounds={
        "owner_group": GROUP,
        "sequence": (1, COUNTER[1]),
        "intent_ms": TIME,
        "now_ms": TIME,
    },
    check=_commit,
    level=_commit_level,
    names=lambda command: [part.appends[0].command.name for part in command.slices],
)
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


@command(
    since=3,
    bounds={
        "profile": (Profile.REPLICATED, Profile.DISKLESS),
        "now_ms": TIME,
        "uid": WIDE,
        "epoch": COUNTER,
    },
    names=its_name,
)
class SetProfile(Command, tag=121, frozen=True, gc=False):
    """Begin to change the profile of a stream, or take such a change back. Level 3.

    To `DISKLESS`, appends are refused (NOT_YET) until `SealProfileEpoch`; if nothing is hot, the
    new profile epoch begins at once. To `REPLICATED` it always does. Detail of both commands:
    (profile, epoch, whether it changes)."""

    name: str
    profile: int
    now_ms: int
    uid: int = 0  # precondition: the stream's uid; 0: none
    epoch: int = 0  # precondition: that of the open profile epoch; 0: none


@command(
    since=3,
    bounds={"uid": WIDE, "epoch": (1, COUNTER[1]), "now_ms": TIME},
    names=its_name,
    needs_state=False,
)
class SealProfileEpoch(Command, tag=122, frozen=True, gc=False):
    """End the profile epoch of a stream whose profile changes, if nothing of it is hot; else
    NOT_YET. Level 3."""

    name: str
    uid: int
    epoch: int  # of the profile epoch to end; refused if another one is open
    now_ms: int
