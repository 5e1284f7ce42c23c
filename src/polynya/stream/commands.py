"""The commands of a group's log. The command type is the wire and journal type (F10).

msgspec structs, array-like, integer tags; fields are only appended, and with defaults; golden bytes are in the tests. Numbers in
use: 1-19 streams, 20-29 across groups, 30-39 object tier, 40-59 subscriptions, 60-79 tables, 80-90 cluster, 99 the log itself.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class Command(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The common shape."""


BUNDLE_COMMANDS_MAX = 64  # fewer than any entry has bytes in the journal: so a place in one entry is never another entry's
BUNDLE_BYTES = 64 * 1024  # of the commands in one entry: a batch of it is read back with all of them


class Encoding:
    """How the payload of a batch is laid out (F8). A stream has one encoding in this version."""

    BYTES = 0  # the payload is one record: the POST body
    JSON = 1  # the payload is each record's exact bytes followed by one comma, so that a record's length includes its separator (F2)
    KAFKA = 2  # a Kafka record batch v2; reserved


class Batch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What came in one append, as it is kept (F8). `lengths` is empty when there is one record, else packed little-endian u32."""

    encoding: int
    records: Count
    payload: bytes
    crc: int  # CRC-32C of the payload
    lengths: bytes = b""  # byte length of each record, separator included
    compression: int = 0
    flags: int = 0  # 1 transactional, 2 control
    record_time_ms_max: int = 0  # 0: the append time


class Producer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Who appends, for exactly-once (F16). `kind` 0 is HTTP, 1 Kafka."""

    id: str
    epoch: Natural
    sequence: Natural
    sequence_last: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] = -1  # -1: the same as `sequence`
    kind: int = 0


class Retention(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What of a stream is kept: what is younger than `age_seconds`, and the newest `bytes`. None: no bound; both None: everything."""

    age_seconds: int | None = None
    bytes: int | None = None


class Fork(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where a fork begins: the source's records before `record` are its own past. Part of `Create`, as the coordinator resolved it."""

    attempt: str  # 128 random bits in hex, the idempotency key of this fork's two-group dance (F17)
    source_name: str
    source_uid: int
    record: int
    byte: int
    requested_offset: str = ""  # as the client spelled them, normalised: what "same configuration" compares
    requested_sub_offset: int = 0
    depth: int = 1
    first_record: int = 0  # the source's first kept boundary when it was pinned, at most the fork point
    first_byte: int = 0


class ColdSlice(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A contiguous run of batches in a pack: an entry of the stream's index (F18)."""

    record: int
    byte: int
    records: int
    length: int  # bytes of payload: the span in stream positions
    pack: str  # object key
    offset: int  # of the slice in the object
    stored: int  # bytes of the slice in the object, header included
    crc: int  # CRC-32C of those bytes
    time_ms: int = 0  # append time of the first batch; 0: unknown


class Create(Command, tag=1, frozen=True):
    """Create a stream, with an initial batch, closed at once, or as a fork."""

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


class Append(Command, tag=2, frozen=True):
    """Append a batch and/or close. `batch` None and `close` True is close-only."""

    name: str
    now_ms: int
    content_type: str  # "" on close-only
    batch: Batch | None
    producer: Producer | None = None
    stream_seq: str | None = None
    close: bool = False
    incarnation: int = 0  # precondition: the stream's uid; 0 none


class Delete(Command, tag=3, frozen=True):
    name: str
    now_ms: int
    incarnation: int = 0


class Expire(Command, tag=4, frozen=True):
    """Refused when the stream has seen activity after `activity_ms` (F14)."""

    name: str
    uid: int
    activity_ms: int
    now_ms: int


class Touch(Command, tag=5, frozen=True):
    """Reads that extend sliding TTLs: (uid, time of the read)."""

    touches: list[tuple[int, int]]
    now_ms: int


class Trim(Command, tag=6, frozen=True, gc=False):
    """Forget the records of some streams before a record's boundary: `cuts` of (uid, record, byte). Never moves a boundary back.

    The reply's detail has for each cut (first record kept, its byte, records and bytes forgotten now), or None: there is no such
    stream, or no such boundary in it. `names`: of those of the streams whose states may be in the object store."""

    cuts: list[tuple[int, int, int]]
    now_ms: int
    names: list[str] = []


class SetRetention(Command, tag=7, frozen=True, gc=False):
    """Give a stream a retention of its own, or (None) take it away. `uid`: of that life of the name alone; 0 whichever."""

    name: str
    retention: Retention | None
    now_ms: int
    uid: int = 0


class PinSource(Command, tag=20, frozen=True):
    """First step of a fork, in the source's group: resolve the fork point and hold the records before it."""

    name: str
    attempt: str
    target_name: str
    now_ms: int
    record: int = -1  # -1: the tail
    byte: int = -1
    content_type: str = ""  # "" inherits; otherwise it must match
    sub_offset: int = 0
    resolved: bool = False  # (record, byte) is known to be a record's boundary: the coordinator looked where this machine cannot


class ConfirmPin(Command, tag=21, frozen=True):
    source_uid: int
    attempt: str


class Unpin(Command, tag=22, frozen=True):
    """Idempotent: an unknown pin is no error. The last pin of a soft-deleted source lets it go."""

    source_uid: int
    attempt: str
    now_ms: int


class RefuseAttempt(Command, tag=23, frozen=True):
    """In the target's group: a fork attempt that has not happened never will. The reply says whether it had."""

    name: str
    attempt: str
    now_ms: int


class Acknowledge(Command, tag=24, frozen=True):
    """An outbox message has been applied where it belongs; forget it."""

    message: int


class PublishSlices(Command, tag=30, frozen=True):
    """Move hot batches into the index: `slices` of (uid, slice) lie in `pack`. With no slices: release the pack unless it is held.

    `term` is the one under which the flush was planned. The reply's detail lists the positions in `slices` that the index now has."""

    pack: str
    home_group: int
    term: int
    slices: list[tuple[int, ColdSlice]]
    now_ms: int = 0


class PackWritten(Command, tag=31, frozen=True):
    """In the pack's home group, before any publish: the pack exists and these groups will hold or release it."""

    pack: str
    groups: list[int]
    now_ms: int


class ReleasePack(Command, tag=32, frozen=True):
    """In the home group: `group` needs the pack no more. Idempotent."""

    pack: str
    group: int
    now_ms: int


class PackDeleted(Command, tag=33, frozen=True):
    """In the home group: the condemned object is gone from the store."""

    pack: str


class ReplaceSlices(Command, tag=34, frozen=True):
    """Merge entries of the index: each slice of `replacements` (uid, slice) lies in `pack` and holds what some neighbours held.

    `term` is the one under which the merge was planned. The reply's detail lists the positions in `replacements` that the index now has."""

    pack: str
    home_group: int
    term: int
    replacements: list[tuple[int, ColdSlice]]
    now_ms: int = 0


class Evict(Command, tag=35, frozen=True, gc=False):
    """The states of idle streams are in the block `pack`, whose home group this is: `slots` of (uid, mark of the state, offset in the object,
    length, CRC-32C). Streams that are not as they were written there are left out: the reply's detail lists the positions in `slots` of the others."""

    pack: str
    now_ms: int
    slots: list[tuple[int, int, int, int, int]]


class Return(Command, tag=36, frozen=True, gc=False):
    """Evicted streams come back: `states` of (name, uid, state). The reply's detail lists the positions in `states` that were taken."""

    states: list[tuple[str, int, bytes]]
    now_ms: int


class SubscriptionConfig(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a PUT of a subscription says, normalised: repeating it compares this."""

    kind: int  # 0 webhook, 1 pull-wake
    pattern: str  # "": none
    streams: list[str]  # canonical, sorted, without repeats
    webhook_url: str
    wake_stream: str  # canonical
    lease_ttl_ms: int
    description: str | None = None


class SubscriptionPut(Command, tag=40, frozen=True, gc=False):
    """In the subscription's home group: create it, or confirm that it is the same."""

    id: str
    now_ms: int
    config: SubscriptionConfig
    base_url: str


class SubscriptionStreams(Command, tag=41, frozen=True, gc=False):
    """In the home group: change the explicit links."""

    id: str
    add: list[str]
    remove: list[str]
    now_ms: int


class SubscriptionDelete(Command, tag=42, frozen=True, gc=False):
    """In the home group: what comes for this life of the id from now on is refused."""

    id: str
    now_ms: int


class SubscriptionLinked(Command, tag=43, frozen=True, gc=False):
    """In the home group: every group has applied this revision of the links (or dropped those of a deleted subscription)."""

    id: str
    uid: int
    revision: int


class SubscriptionEvent(Command, tag=44, frozen=True, gc=False):
    """In the home group: something happened (`subscriptions.Event`); whether it may, the table of states says."""

    id: str
    uid: int
    event: int
    now_ms: int
    generation: int = 0
    wake_id: str = ""
    text: str = ""  # a stream's name (WAKE), the worker (CLAIM)
    until_ms: int = 0  # the next attempt (DELIVERED, FAILED)


class LinkSubscription(Command, tag=45, frozen=True, gc=False):
    """In a stream group: all that a subscription watches here. A newer revision replaces an older one."""

    id: str
    uid: int
    revision: int
    pattern: str
    without: str
    streams: list[str]


class UnlinkSubscription(Command, tag=46, frozen=True, gc=False):
    """In a stream group: this life of the subscription is over."""

    id: str
    uid: int


class AckLinks(Command, tag=47, frozen=True, gc=False):
    """In a stream group: (name, uid of the stream, record, byte) up to which a worker is done. Cursors never go back."""

    id: str
    uid: int
    acks: list[tuple[str, int, int, int]]


class TableCreate(Command, tag=60, frozen=True, gc=False):
    """In the meta group: a table of the streams whose canonical names begin with `prefix`."""

    name: str
    prefix: str
    now_ms: int


class TableOpen(Command, tag=61, frozen=True, gc=False):
    """In the meta group: the open job of a table, or its next one."""

    table: int
    now_ms: int


class TablePlanned(Command, tag=62, frozen=True, gc=False):
    """In the meta group: every group has applied the job's `ClaimRanges`."""

    table: int
    job: int


class TableCommit(Command, tag=63, frozen=True, gc=False):
    """In the meta group: move the pointers of table and DLQ, and the job number, by one compare-and-swap."""

    table: int
    job: int
    attempt: str
    base_main: str
    base_dlq: str
    main: str
    dlq: str
    rows: int
    dlq_rows: int
    now_ms: int
    result: str = ""  # key of the job's result object


class TableAbandon(Command, tag=64, frozen=True, gc=False):
    """In the meta group: the open job will never commit."""

    table: int
    job: int


class ClaimRanges(Command, tag=65, frozen=True, gc=False):
    """In a stream group: what the table's job takes. `committed` is the table's last committed job; `without` are longer prefixes of others."""

    table: int
    job: int
    committed: int
    prefix: str
    without: list[str]
    bytes_max: int
    fresh: bool


class MetaSet(Command, tag=80, frozen=True, gc=False):
    """In the meta group: give a key its value, unless it has one. The reply's detail is the value from now on."""

    key: str
    value: bytes


class BucketRetention(Command, tag=81, frozen=True, gc=False):
    """In the meta group: the retention of the streams of a bucket that have none of their own; None takes it away."""

    bucket: str
    retention: Retention | None
    now_ms: int


class NodeState:
    """What may be done with a node. Of those that are not removed each has part in the cluster."""

    ACTIVE = 0
    CORDONED = 1  # gets nothing new
    DRAINING = 2  # … and leads nothing
    EMPTYING = 3  # … and is to hold nothing
    LEAVING = 4  # … and is removed then
    REMOVED = 5
    NAMES = ("active", "cordoned", "draining", "emptying", "leaving", "removed")


class NodeRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A node of the cluster. `peer` is HOST:PORT of its peer port, `http` the URL at which clients reach it."""

    id: int
    peer: str
    http: str
    zone: str = ""
    cores: int = 0  # 0: it has not said
    state: int = NodeState.ACTIVE
    replaces: int = 0  # the node whose replicas it takes over
    reader: bool = False  # a read replica: it follows every group, and votes in none


class Placement(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Of one group: its voters, what they are to be (the same when nothing moves), who is to lead it, and the map's epoch at its last change."""

    voters: tuple[int, ...]
    goal: tuple[int, ...]
    first: int
    epoch: int = 0


class ClusterBorn(Command, tag=82, frozen=True, gc=False):
    """In the meta group: the first map, unless there is one. `placements` by the groups' numbers."""

    nodes: list[NodeRecord]
    placements: list[Placement]
    replicas: int


class NodeAdd(Command, tag=83, frozen=True, gc=False):
    """In the meta group: a node more. `balance`: and it gets its share."""

    node: NodeRecord
    balance: bool = False


class NodeSet(Command, tag=84, frozen=True, gc=False):
    """In the meta group: the state of a node (`NodeState`)."""

    node: int
    state: int


class NodeAnnounce(Command, tag=85, frozen=True, gc=False):
    """In the meta group: a node's addresses, zone and cores, as it says itself."""

    node: int
    peer: str
    http: str
    zone: str
    cores: int


class PlaceGroup(Command, tag=86, frozen=True, gc=False):
    """In the meta group: what the voters of a group are to be, and who is to lead it. `epoch`: of the placement that this is to follow; 0 any."""

    group: int
    goal: tuple[int, ...]
    first: int
    epoch: int = 0


class GroupPlaced(Command, tag=87, frozen=True, gc=False):
    """In the meta group: the group has committed these voters, on the way that its placement at `epoch` asked for."""

    group: int
    voters: tuple[int, ...]
    epoch: int


class SetBalancing(Command, tag=88, frozen=True, gc=False):
    """In the meta group: spread replicas and leads evenly, or be done with it. `replicas`: wanted of each group from now on; 0 as before."""

    on: bool
    replicas: int = 0


class MetaChange(Command, tag=89, frozen=True, gc=False):
    """In the meta group: change keys of a scope together (None: take away), if nobody has since its version was `version`. The reply's detail is
    the version from now on."""

    scope: str
    version: int
    changes: list[tuple[str, bytes | None]]


class SetLevel(Command, tag=90, frozen=True, gc=False):
    """The group applies its log by the rules of this level from here on (base/levels.py). Logged when all nodes of the cluster know it."""

    level: int


class ReaderAdd(Command, tag=91, frozen=True, gc=False):
    """In the meta group: a node more, which is a read replica."""

    node: NodeRecord


class NodePromote(Command, tag=92, frozen=True, gc=False):
    """In the meta group: a read replica is a node like the others from now on. `balance`: and it gets its share."""

    node: int
    balance: bool = False


class Bundle(Command, tag=99, frozen=True, gc=False):
    """Appends of one turn as one entry of the log, at most `BUNDLE_COMMANDS_MAX`: each is judged and answered as if it were alone, in order. The
    place of what one of them brings is the entry's, plus its number here. The reply's detail has their replies."""

    commands: list[Append]


AnyCommand = (
    Create
    | Append
    | Delete
    | Expire
    | Touch
    | Trim
    | SetRetention
    | PinSource
    | ConfirmPin
    | Unpin
    | RefuseAttempt
    | Acknowledge
    | PublishSlices
    | PackWritten
    | ReleasePack
    | PackDeleted
    | ReplaceSlices
    | Evict
    | Return
    | SubscriptionPut
    | SubscriptionStreams
    | SubscriptionDelete
    | SubscriptionLinked
    | SubscriptionEvent
    | LinkSubscription
    | UnlinkSubscription
    | AckLinks
    | TableCreate
    | TableOpen
    | TablePlanned
    | TableCommit
    | TableAbandon
    | ClaimRanges
    | MetaSet
    | BucketRetention
    | ClusterBorn
    | NodeAdd
    | NodeSet
    | NodeAnnounce
    | PlaceGroup
    | GroupPlaced
    | SetBalancing
    | MetaChange
    | SetLevel
    | ReaderAdd
    | NodePromote
    | Bundle
)
