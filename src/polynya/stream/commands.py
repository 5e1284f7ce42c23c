"""The commands of a group's log, which are also its wire and journal types.

msgspec structs, array-like, integer tags; fields are only appended, and with defaults; golden bytes
are in the tests. Tags in use: 1-19 streams, 20-29 across groups, 30-39 object tier, 40-59
subscriptions, 60-79 tables, 80-92 cluster, 99 the log itself, 100-109 topics, 120-129 diskless
streams, 130-139 consumer groups.
"""

from __future__ import annotations

import msgspec

from polynya.base.limits import KIB, MIB
from polynya.stream.parts import (
    Batch,
    ColdSlice,
    Encoding,
    Fork,
    Producer,
    Retention,
    SegmentLimits,
)

# parts of the commands below
__all__ = [
    "Batch",
    "ColdSlice",
    "Encoding",
    "Fork",
    "Producer",
    "Retention",
    "SegmentLimits",
]


class Command(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The common base of all commands."""


BUNDLE_BYTES = 64 * KIB  # of the appends in one entry: reading back one batch reads them all
# of an entry with Kafka batches, which are larger: fewer entries cost less
PRODUCE_BUNDLE_BYTES = 1 * MIB
# fewer than the bytes of any journal entry, so places within one entry never reach the next entry
BUNDLE_COMMANDS_MAX = 64


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


class Append(Command, tag=2, frozen=True):
    """Append a batch, close the stream, or both. `batch` None with `close` True only closes."""

    name: str
    now_ms: int
    content_type: str  # "" on close-only
    batch: Batch | None
    producer: Producer | None = None
    stream_seq: str | None = None
    close: bool = False
    incarnation: int = 0  # precondition: the stream's uid; 0: none


class AppendIf(Append, tag=15, frozen=True):
    """An append that is refused (PRECONDITION) unless the tail is at `record`. Level 4."""

    record: int = -1  # the number of the next record; -1 is never the tail


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


class Trim(Command, tag=6, frozen=True, gc=False):
    """Delete the records of some streams before a record boundary: `cuts` of (uid, record, byte). A
    boundary never moves back.

    The reply's detail has, for each cut, (first kept record, its byte, records and bytes deleted
    now). It has None if the stream or the boundary does not exist. `names` lists the streams whose
    state may be in the object store."""

    cuts: list[tuple[int, int, int]]
    now_ms: int
    names: list[str] = []


class SetRetention(Command, tag=7, frozen=True, gc=False):
    """Set or (None) clear a stream's own retention policy. `uid` limits the command to one
    incarnation of the name; 0 matches any."""

    name: str
    retention: Retention | None
    now_ms: int
    uid: int = 0


KAFKA_CONTENT_TYPE = (
    "application/vnd.apache.kafka.recordbatch"  # of the streams that are partitions
)


class Produce(Command, tag=8, frozen=True):
    """Append one Kafka record batch to a stream, by Kafka's rules for producers. Level 3."""

    name: str
    now_ms: int
    batch: Batch
    producer: Producer | None = None  # of kind 1; None: not idempotent
    uid: int = 0  # precondition: the stream's uid; 0: none


class ProducerIds(Command, tag=9, frozen=True):
    """Allot `count` Kafka producer ids that were never allotted before. Detail: the first. Level
    3."""

    count: int
    now_ms: int


class Rollover(Command, tag=10, frozen=True, gc=False):
    """Close the open segment of a leased stream, which has this epoch, and open the next one for a
    writer. Detail: epoch and writer of the segment that is open afterwards. Level 3."""

    name: str
    uid: int
    epoch: int  # of the segment to close; refused if another one is open
    writer: int  # the node that leads the group while it appends
    now_ms: int


class TrimTo(Command, tag=11, frozen=True, gc=False):
    """Delete the records of a stream before `record`, of which a Kafka batch may hold some: the
    batch stays stored, and readers leave out its records before `record`. Level 4.

    `byte`: where the batch of `record` begins; used only if the machine does not know it. The
    reply's detail is that of a `Trim` with one cut."""

    name: str
    uid: int
    record: int
    byte: int
    now_ms: int


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


class PublishSlices(Command, tag=30, frozen=True):
    """Move hot batches into the index: `slices` of (uid, slice) lie in `pack`. With no slices,
    release the pack unless it is held.

    `term` is the term of the flush plan. The reply's detail lists the positions in `slices` that
    the index now has."""

    pack: str
    owner_group: int
    term: int
    slices: list[tuple[int, ColdSlice]]
    now_ms: int = 0


class PackWritten(Command, tag=31, frozen=True):
    """Register a pack in its home group, before any publish. Each of `groups` will hold or release
    it."""

    pack: str
    groups: list[int]
    now_ms: int


class ReleasePack(Command, tag=32, frozen=True):
    """Record in the home group that `group` no longer needs the pack. Idempotent."""

    pack: str
    group: int
    now_ms: int


class PackDeleted(Command, tag=33, frozen=True):
    """Record in the home group that the condemned object is deleted from the store."""

    pack: str


class ReplaceSlices(Command, tag=34, frozen=True):
    """Merge index entries: each slice of `replacements` (uid, slice) lies in `pack` and holds the
    records of adjacent entries.

    `term` is the term of the merge plan. The reply's detail lists the positions in `replacements`
    that the index now has."""

    pack: str
    owner_group: int
    term: int
    replacements: list[tuple[int, ColdSlice]]
    now_ms: int = 0


class PageEntries(Command, tag=37, frozen=True, gc=False):
    """Put one entry for `page`, whose home group this is, in place of the entries of a stream from
    `record` to before `end`. Level 3.

    `mark` is the CRC-32C of these entries (`paging.mark_of`); others are left as they are. `stored` and `crc`
    are those of the object. The reply's detail is [0] if the index has the page now, else []."""

    page: str
    uid: int
    record: int
    end: int
    mark: int
    stored: int
    crc: int
    now_ms: int


class ReleasePaged(Command, tag=38, frozen=True, gc=False):
    """Release a page that no index names any more, and the packs of its entries. Level 3.

    `packs`: (key, entries of the page). NOT_FOUND: the page is not held. NOT_YET: an index names
    it."""

    page: str
    packs: list[tuple[str, int]]
    now_ms: int


class Evict(Command, tag=35, frozen=True, gc=False):
    """Evict idle streams whose states are in the block `pack`, whose home group this is. `slots`:
    (uid, mark of the state, offset in the object, length, CRC-32C). Streams that changed since are
    skipped. The reply's detail lists the evicted positions."""

    pack: str
    now_ms: int
    slots: list[tuple[int, int, int, int, int]]


class Return(Command, tag=36, frozen=True, gc=False):
    """Bring evicted streams back: `states` of (name, uid, state). The reply's detail lists the
    accepted positions in `states`."""

    states: list[tuple[str, int, bytes]]
    now_ms: int


class SubscriptionConfig(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The normalized settings of a subscription's PUT; a repeated PUT is compared with it."""

    kind: int  # 0 webhook, 1 pull-wake
    pattern: str  # "": none
    streams: list[str]  # canonical, sorted, without repeats
    webhook_url: str
    wake_stream: str  # canonical
    lease_ttl_ms: int
    description: str | None = None


class SubscriptionPut(Command, tag=40, frozen=True, gc=False):
    """Create a subscription in its home group, or confirm that it has the same configuration."""

    id: str
    now_ms: int
    config: SubscriptionConfig
    base_url: str


class SubscriptionStreams(Command, tag=41, frozen=True, gc=False):
    """Change the explicit links, in the home group."""

    id: str
    add: list[str]
    remove: list[str]
    now_ms: int


class SubscriptionDelete(Command, tag=42, frozen=True, gc=False):
    """Delete a subscription in its home group. Later commands for this incarnation are refused."""

    id: str
    now_ms: int


class SubscriptionLinked(Command, tag=43, frozen=True, gc=False):
    """Record in the home group that every group applied this link revision, or dropped the links of
    a deleted subscription."""

    id: str
    uid: int
    revision: int


class SubscriptionEvent(Command, tag=44, frozen=True, gc=False):
    """Record an event of a subscription (`subscriptions.state.Event`) in its home group, if its
    state allows it."""

    id: str
    uid: int
    event: int
    now_ms: int
    generation: int = 0
    wake_id: str = ""
    text: str = ""  # a stream's name (WAKE), the worker (CLAIM)
    until_ms: int = 0  # the next attempt (DELIVERED, FAILED)


class LinkSubscription(Command, tag=45, frozen=True, gc=False):
    """Set everything that a subscription watches in a stream group. A newer revision replaces an
    older one."""

    id: str
    uid: int
    revision: int
    pattern: str
    without: str
    streams: list[str]


class UnlinkSubscription(Command, tag=46, frozen=True, gc=False):
    """End this incarnation of the subscription in a stream group."""

    id: str
    uid: int


class AckLinks(Command, tag=47, frozen=True, gc=False):
    """Advance a worker's cursors in a stream group: (name, uid of the stream, record, byte).
    Cursors never go back."""

    id: str
    uid: int
    acks: list[tuple[str, int, int, int]]


class TableCreate(Command, tag=60, frozen=True, gc=False):
    """Create, in the meta group, a table of the streams whose canonical names begin with
    `prefix`."""

    name: str
    prefix: str
    now_ms: int


class TableOpen(Command, tag=61, frozen=True, gc=False):
    """Return the open job of a table or open its next one, in the meta group."""

    table: int
    now_ms: int


class TablePlanned(Command, tag=62, frozen=True, gc=False):
    """Record in the meta group that every group has applied the job's `ClaimRanges`."""

    table: int
    job: int


class TableCommit(Command, tag=63, frozen=True, gc=False):
    """Move the table and DLQ pointers and the job number in the meta group, by one
    compare-and-swap."""

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
    """Abandon the open job in the meta group; it will never commit."""

    table: int
    job: int


class ClaimRanges(Command, tag=65, frozen=True, gc=False):
    """Claim records for a table's job, in a stream group. `committed`: last committed job.
    `without`: prefixes of other tables."""

    table: int
    job: int
    committed: int
    prefix: str
    without: list[str]
    bytes_max: int
    fresh: bool
    again: list[
        tuple[str, int, int, int]
    ] = []  # (name, uid, record, end): set aside, to be read again


class MetaSet(Command, tag=80, frozen=True, gc=False):
    """Set a key in the meta group unless it has a value. The reply's detail is the resulting
    value."""

    key: str
    value: bytes


class BucketRetention(Command, tag=81, frozen=True, gc=False):
    """Set (None: clear) in the meta group the default retention of a bucket's streams."""

    bucket: str
    retention: Retention | None
    now_ms: int


class NodeState:
    """The administrative state of a node. Each node that is not removed is a member of the
    cluster."""

    ACTIVE = 0
    CORDONED = 1  # gets no new replicas
    DRAINING = 2  # … and leads no group
    EMPTYING = 3  # … and is to hold no replica
    LEAVING = 4  # … and is removed afterwards
    REMOVED = 5
    NAMES = ("active", "cordoned", "draining", "emptying", "leaving", "removed")


class NodeRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A node of the cluster. `peer` is HOST:PORT of its peer port; `http` is its URL for
    clients."""

    id: int
    peer: str
    http: str
    zone: str = ""
    cores: int = 0  # 0: not reported yet
    state: int = NodeState.ACTIVE
    replaces: int = 0  # the node whose replicas it takes over
    reader: bool = False  # a read replica: it follows every group and votes in none
    kafka: str = ""  # HOST:PORT for Kafka clients; "": it serves none
    kafka_ports: tuple[int, ...] = ()  # of its cores, on that host; empty: the node is one broker


class Placement(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The placement of one group: voters, goal voters (equal when nothing moves), preferred leader,
    map epoch of its last change."""

    voters: tuple[int, ...]
    goal: tuple[int, ...]
    first: int
    epoch: int = 0


class ClusterBorn(Command, tag=82, frozen=True, gc=False):
    """Set the first cluster map in the meta group, unless one exists. `placements` are ordered by
    group number."""

    nodes: list[NodeRecord]
    placements: list[Placement]
    replicas: int


class NodeAdd(Command, tag=83, frozen=True, gc=False):
    """Add a node, in the meta group. `balance`: move its share of replicas to it."""

    node: NodeRecord
    balance: bool = False


class NodeSet(Command, tag=84, frozen=True, gc=False):
    """Set the state of a node (`NodeState`), in the meta group."""

    node: int
    state: int


class NodeAnnounce(Command, tag=85, frozen=True, gc=False):
    """Update a node's addresses, zone and cores in the meta group, as the node reports them."""

    node: int
    peer: str
    http: str
    zone: str
    cores: int
    kafka: str = ""  # level 3
    kafka_ports: tuple[int, ...] = ()  # level 3


class PlaceGroup(Command, tag=86, frozen=True, gc=False):
    """Set a group's goal voters and preferred leader, in the meta group. `epoch`: the expected
    current placement epoch; 0: any."""

    group: int
    goal: tuple[int, ...]
    first: int
    epoch: int = 0


class GroupPlaced(Command, tag=87, frozen=True, gc=False):
    """Record in the meta group that the group committed these voters, as its placement at `epoch`
    asked."""

    group: int
    voters: tuple[int, ...]
    epoch: int


class SetBalancing(Command, tag=88, frozen=True, gc=False):
    """Turn even spreading of replicas and leaders on or off, in the meta group. `replicas`: wanted
    per group from now on; 0: unchanged."""

    on: bool
    replicas: int = 0


class MetaChange(Command, tag=89, frozen=True, gc=False):
    """Change keys of a scope atomically (None deletes) in the meta group, if it is at `version`.
    Detail: the resulting version."""

    scope: str
    version: int
    changes: list[tuple[str, bytes | None]]


class SetLevel(Command, tag=90, frozen=True, gc=False):
    """Raise the group's feature level: later entries follow its rules (base/levels.py). Logged once
    all nodes support it."""

    level: int


class ReaderAdd(Command, tag=91, frozen=True, gc=False):
    """Add a read replica, in the meta group."""

    node: NodeRecord


class NodePromote(Command, tag=92, frozen=True, gc=False):
    """Turn a read replica into a regular node, in the meta group. `balance`: move its share of
    replicas to it."""

    node: int
    balance: bool = False


class TopicPut(Command, tag=100, frozen=True, gc=False):
    """Add a Kafka topic, in the meta group, unless its name is taken. Level 3.

    Detail: the topic, new or known. Its partitions' streams are created next; then comes
      `TopicReady`."""

    name: str
    id: bytes  # 16 random bytes: a topic of the same name that is created later has another
    partitions: int
    configs: list[tuple[str, str]]
    now_ms: int
    streams: list[str] = []  # of an adopted topic: the streams that are its first partitions


class TopicReady(Command, tag=101, frozen=True, gc=False):
    """Record in the meta group that the streams of all partitions exist. Level 3."""

    name: str
    id: bytes
    partitions: int = 0  # how many exist; 0: those of the creation


class TopicDrop(Command, tag=102, frozen=True, gc=False):
    """Begin to delete a topic, in the meta group. Its name stays taken until `TopicGone`. Level
    3."""

    name: str
    id: bytes


class TopicGone(Command, tag=103, frozen=True, gc=False):
    """Remove a dropped topic whose streams are deleted from the meta group. Level 3."""

    name: str
    id: bytes


class TopicChange(Command, tag=104, frozen=True, gc=False):
    """Set the configs of a topic and the number of its partitions, in the meta group, if it is at
    `revision`. Level 3.

    The streams of further partitions are created next; then comes `TopicReady`."""

    name: str
    id: bytes
    revision: int  # the topic's own; another one is refused
    partitions: int
    configs: list[tuple[str, str]]


class Bundle(Command, tag=99, frozen=True, gc=False):
    """Appends of one turn in one log entry, at most `BUNDLE_COMMANDS_MAX`. Each is judged and
    answered as if it were alone, in order. A batch's place is the entry's place plus its number
    here. The reply's detail has the replies. Level 3 with a `Produce`, 4 with an `AppendIf`."""

    commands: list[Append | AppendIf | Produce]
