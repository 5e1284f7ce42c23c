"""Validation of commands that decode but carry impossible values: numbers out of range, or lengths
that do not match the payload. Pure.

The leader rejects such a command before it proposes it, and a follower before it accepts the entry
(docs/decisions/0022). Once committed, it would crash every member that applies it. The bounds are
wide: they admit every command that any release has proposed, including client requests that a rule
then refused. Entries of a member's own journal are not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polynya.base import levels
from polynya.base.limits import (
    COMMIT_APPENDS_MAX,
    FORK_DEPTH_MAX,
    GROUP_ID_BYTES_MAX,
    GROUPS_MAX,
    PARTITIONS_MAX,
    PATH_BYTES_MAX,
    TIME_MS_MAX,
)
from polynya.stream.command import Command
from polynya.stream.common_forms import (
    is_common_append,
    is_common_produce,
    lengths_match,
    sequences_match,
)
from polynya.stream.features.appends.commands import (
    BUNDLE_COMMANDS_MAX,
    Append,
    AppendIf,
    Bundle,
    Produce,
    ProducerIds,
)
from polynya.stream.features.consumer_groups.commands import (
    CommitOffsets,
    ConsumerGroupDrop,
    ConsumerGroupMember,
    ConsumerGroupPut,
    DropOffsets,
    ExpireOffsets,
    ForgetTopic,
    OffsetEntry,
)
from polynya.stream.features.forks.commands import (
    Acknowledge,
    ConfirmPin,
    PinSource,
    RefuseAttempt,
    Unpin,
)
from polynya.stream.features.lifetimes.commands import Create, Delete, Expire, Touch
from polynya.stream.features.packs.commands import (
    PackWritten,
    PublishSlices,
    ReleasePack,
    ReplaceSlices,
)
from polynya.stream.features.pages.commands import Evict, PageEntries, ReleasePaged, Return
from polynya.stream.features.placement.cluster_map import NODE_NUMBER_MAX, REPLICAS_MAX
from polynya.stream.features.placement.commands import (
    ClusterBorn,
    GroupPlaced,
    NodeAdd,
    NodeAnnounce,
    NodePromote,
    NodeRecord,
    NodeSet,
    NodeState,
    PlaceGroup,
    Placement,
    ReaderAdd,
    SetBalancing,
)
from polynya.stream.features.profiles.commands import (
    CommitSlices,
    PackedAppend,
    PackedSlice,
    Profile,
    SealProfileEpoch,
    SetProfile,
)
from polynya.stream.features.retention.commands import BucketRetention, SetRetention, Trim, TrimTo
from polynya.stream.features.segments.commands import Rollover
from polynya.stream.features.settings.commands import MetaChange, MetaSet, SetLevel
from polynya.stream.features.subscriptions.commands import (
    AckLinks,
    LinkSubscription,
    SubscriptionConfig,
    SubscriptionDelete,
    SubscriptionEvent,
    SubscriptionLinked,
    SubscriptionPut,
    SubscriptionStreams,
    UnlinkSubscription,
)
from polynya.stream.features.tables.commands import (
    ClaimRanges,
    ForgetTable,
    TableAbandon,
    TableAlter,
    TableCommit,
    TableCreate,
    TableDrop,
    TableFail,
    TableFault,
    TableMake,
    TableMove,
    TableOpen,
    TablePlanned,
    TableRetry,
    WatchStreams,
)
from polynya.stream.features.topics.commands import (
    TopicChange,
    TopicDrop,
    TopicGone,
    TopicPut,
    TopicReady,
)
from polynya.stream.parts import (
    Batch,
    ColdSlice,
    Encoding,
    Fork,
    Producer,
    Retention,
    SegmentLimits,
)

Span = tuple[int, int]
_COUNTER: Span = (0, 2**62)  # records, bytes, terms: the sum of two fits in 63 bits
_WORD: Span = (0, 2**32 - 1)
_ID_OR_NONE: Span = (-1, 2**63 - 1)
_WIDE: Span = (0, 2**63 - 1)  # uids, which are never added to
_ANY: Span = (-(2**63), 2**64 - 1)  # values that are only compared; a client may have sent them
_FROM_TAIL: Span = (-3, 2**62)  # positions; special values are below 0
PRODUCER_IDS_MAX = 1 << 20  # of one block
_CORES_MAX = 256  # of a node
_TIME: Span = (0, TIME_MS_MAX)
_DATE: Span = (-(2**53), 2**53)  # dates, including those before 1970
_AMOUNT: Span = (0, 2**53)  # amounts that the state sums up
_DIFFERENCE: Span = (-(2**53), 2**53)
_GROUP: Span = (0, GROUPS_MAX)
_NODE: Span = (0, 2**31)  # the cluster map's rules decide which numbers exist
_REPLICAS: Span = (0, REPLICAS_MAX)
_FLAGS: Span = (0, 7)  # a slice has those of its batches, so a batch may not have others
_ENCODING: Span = (Encoding.BYTES, Encoding.KAFKA)
_PROFILE: Span = (Profile.REPLICATED, Profile.DISKLESS)
_WRITER_BYTES_MAX = 64  # of a name; today's have 32

# Allowed range of each integer field, by struct.
SPANS: dict[type, dict[str, Span]] = {
    Batch: {
        "encoding": _ENCODING,
        "records": (1, 2**32 - 1),
        "crc": _WORD,
        "compression": _WORD,
        "flags": _FLAGS,
        "record_time_ms_max": _TIME,
    },
    Producer: {"epoch": _WIDE, "sequence": _WIDE, "sequence_last": (-1, 2**63 - 1), "kind": (0, 1)},
    Retention: {"age_seconds": _AMOUNT, "bytes": _AMOUNT},
    SegmentLimits: {"records": _AMOUNT, "bytes": _AMOUNT, "writer": _NODE},
    Fork: {
        "source_uid": (
            0,
            (GROUPS_MAX + 1 << 48) - 1,
        ),  # its upper bits name the group that receives a message
        "record": _COUNTER,
        "byte": _COUNTER,
        "requested_sub_offset": _WIDE,
        "depth": (0, FORK_DEPTH_MAX),
        "first_record": _COUNTER,
        "first_byte": _COUNTER,
    },
    ColdSlice: {
        "record": _COUNTER,
        "byte": _COUNTER,
        "records": (1, 2**32 - 1),
        "length": _WORD,
        "offset": _WORD,
        "stored": _WORD,
        "crc": _WORD,
        "time_ms": _TIME,
        "encoding": (-1, Encoding.KAFKA),
        "record_time_ms_max": _TIME,
        "missing_records": _WORD,
        "missing_bytes": _WORD,
        "flags": _FLAGS,
        "first_batch": _WORD,
        "batches": _WORD,
    },
    Create: {
        "now_ms": _TIME,
        "encoding": _ENCODING,
        "ttl_seconds": _AMOUNT,
        "expires_at_ms": _DATE,
        "profile": (Profile.REPLICATED, Profile.NAMED_REPLICATED),
        "producer_id_max": _ID_OR_NONE,
    },
    Append: {"now_ms": _TIME, "incarnation": _WIDE},
    AppendIf: {"now_ms": _TIME, "incarnation": _WIDE, "record": (-1, _COUNTER[1])},
    Produce: {"now_ms": _TIME, "uid": _WIDE},
    ProducerIds: {"count": (1, PRODUCER_IDS_MAX), "now_ms": _TIME},
    Delete: {"now_ms": _TIME, "incarnation": _WIDE},
    Expire: {"uid": _WIDE, "activity_ms": _TIME, "now_ms": _TIME},
    Touch: {"now_ms": _TIME},
    Trim: {"now_ms": _TIME},
    TrimTo: {"uid": _WIDE, "record": _COUNTER, "byte": _COUNTER, "now_ms": _TIME},
    SetRetention: {"now_ms": _TIME, "uid": _WIDE},
    Rollover: {"uid": _WIDE, "epoch": (1, _COUNTER[1]), "writer": _NODE, "now_ms": _TIME},
    PinSource: {"now_ms": _TIME, "record": _FROM_TAIL, "byte": _FROM_TAIL, "sub_offset": _COUNTER},
    ConfirmPin: {"source_uid": _WIDE},
    Unpin: {"source_uid": _WIDE, "now_ms": _TIME},
    RefuseAttempt: {"now_ms": _TIME},
    Acknowledge: {"message": _WIDE},
    PublishSlices: {"owner_group": _GROUP, "term": _WIDE, "now_ms": _TIME},
    PackWritten: {"now_ms": _TIME},
    ReleasePack: {"group": _GROUP, "now_ms": _TIME},
    ReplaceSlices: {"owner_group": _GROUP, "term": _WIDE, "now_ms": _TIME},
    PageEntries: {
        "uid": _WIDE,
        "record": _COUNTER,
        "end": _COUNTER,
        "mark": _WORD,
        "stored": _WORD,
        "crc": _WORD,
        "now_ms": _TIME,
    },
    ReleasePaged: {"now_ms": _TIME},
    Evict: {"now_ms": _TIME},
    Return: {"now_ms": _TIME},
    SubscriptionConfig: {"kind": (0, 1), "lease_ttl_ms": _TIME},
    SubscriptionPut: {"now_ms": _TIME},
    SubscriptionStreams: {"now_ms": _TIME},
    SubscriptionDelete: {"now_ms": _TIME},
    SubscriptionLinked: {"uid": _WIDE, "revision": _COUNTER},
    SubscriptionEvent: {
        "uid": _WIDE,
        "event": (0, 255),
        "now_ms": _TIME,
        "generation": _ANY,
        "until_ms": _TIME,
    },
    LinkSubscription: {"uid": _WIDE, "revision": _COUNTER},
    UnlinkSubscription: {"uid": _WIDE},
    AckLinks: {"uid": _WIDE},
    TableCreate: {"now_ms": _TIME},
    TableOpen: {"table": _ANY, "now_ms": _TIME},
    TablePlanned: {"table": _ANY, "job": _ANY},
    TableCommit: {
        "table": _ANY,
        "job": _ANY,
        "rows": _AMOUNT,
        "dlq_rows": _DIFFERENCE,
        "now_ms": _TIME,
    },
    TableAbandon: {"table": _ANY, "job": _ANY},
    ClaimRanges: {"table": _WIDE, "job": _COUNTER, "committed": _COUNTER, "bytes_max": _ANY},
    TableMake: {"now_ms": _TIME},
    TableAlter: {"table": _ANY, "now_ms": _TIME},
    TableDrop: {"table": _ANY, "now_ms": _TIME},
    TableMove: {"table": _ANY, "job": _ANY, "dlq_rows": _DIFFERENCE, "now_ms": _TIME},
    ForgetTable: {"table": _ANY},
    TableFail: {"table": _ANY, "job": _ANY, "now_ms": _TIME},
    TableFault: {"table": _ANY, "job": _ANY, "now_ms": _TIME},
    TableRetry: {"table": _ANY, "now_ms": _TIME},
    WatchStreams: {"table": _WIDE, "now_ms": _TIME},
    BucketRetention: {"now_ms": _TIME},
    NodeRecord: {
        "id": (1, NODE_NUMBER_MAX),
        "cores": _NODE,
        "state": (NodeState.ACTIVE, NodeState.REMOVED),
        "replaces": _NODE,
    },
    Placement: {"first": (1, NODE_NUMBER_MAX), "epoch": _COUNTER},
    ClusterBorn: {"replicas": _REPLICAS},
    NodeSet: {"node": _NODE, "state": (NodeState.ACTIVE, NodeState.REMOVED)},
    NodeAnnounce: {"node": _NODE, "cores": _NODE},
    PlaceGroup: {"group": _NODE, "first": _NODE, "epoch": _COUNTER},
    GroupPlaced: {"group": _NODE, "epoch": _COUNTER},
    SetBalancing: {"replicas": _REPLICAS},
    MetaChange: {"version": _COUNTER},
    NodePromote: {"node": _NODE},
    TopicPut: {"partitions": (1, PARTITIONS_MAX), "now_ms": _TIME},
    ConsumerGroupPut: {"now_ms": _TIME, "generation": (0, 2**31 - 1)},
    ConsumerGroupMember: {"session_timeout_ms": _WORD, "rebalance_timeout_ms": _WORD},
    CommitOffsets: {"now_ms": _TIME, "generation": (-1, 2**31 - 1)},
    OffsetEntry: {
        "partition": (0, PARTITIONS_MAX),
        "offset": (-(2**63), 2**63 - 1),
        "leader_epoch": (-(2**31), 2**31 - 1),
    },
    ExpireOffsets: {"before_ms": _DATE},
    TopicReady: {"partitions": (0, PARTITIONS_MAX)},
    TopicChange: {"partitions": (1, PARTITIONS_MAX), "revision": _COUNTER},
    PackedAppend: {"length": _WORD},
    PackedSlice: {"offset": _WORD, "stored": _WORD, "crc": _WORD, "encoding": _ENCODING},
    CommitSlices: {
        "owner_group": _GROUP,
        "sequence": (1, _COUNTER[1]),
        "intent_ms": _TIME,
        "now_ms": _TIME,
    },
    SetProfile: {"profile": _PROFILE, "now_ms": _TIME, "uid": _WIDE, "epoch": _COUNTER},
    SealProfileEpoch: {"uid": _WIDE, "epoch": (1, _COUNTER[1]), "now_ms": _TIME},
}
# Allowed ranges of the numbers in each tuple of a list field.
ROWS: dict[type, tuple[str, tuple[Span | None, ...]]] = {
    Touch: ("touches", (_WIDE, _TIME)),
    Trim: ("cuts", (_WIDE, _FROM_TAIL, _FROM_TAIL)),
    Evict: ("slots", (_WIDE, _WORD, _WORD, _WORD, _WORD)),
    Return: ("states", (None, _WIDE, None)),
    ReleasePaged: ("packs", (None, (1, 2**32 - 1))),
    PublishSlices: ("slices", (_WIDE, None)),
    ReplaceSlices: ("replacements", (_WIDE, None)),
    AckLinks: ("acks", (None, _WIDE, _FROM_TAIL, _FROM_TAIL)),
    ClaimRanges: ("again", (None, _WIDE, _COUNTER, _COUNTER)),
    TableFail: ("ranges", (_WIDE, None, _COUNTER, _COUNTER, None, _COUNTER, None)),
}


def fault_of(command: Command) -> str:
    """Return why the command is invalid, or "" if it is valid."""
    if type(command) is Append:
        return "" if is_common_append(command) else _told(command)
    if type(command) is Produce:
        return "" if is_common_produce(command) else _told(command)
    if type(command) is Bundle:
        if not 1 <= len(command.commands) <= BUNDLE_COMMANDS_MAX:
            return (
                f"the bundle has {len(command.commands)} commands; expected 1 to "
                f"{BUNDLE_COMMANDS_MAX}"
            )
        return next((fault for fault in map(fault_of, command.commands) if fault), "")
    return _told(command)


def _told(value: Any) -> str:
    """Return the fault of a command or of a nested struct, or ""."""
    kind = type(value)
    fault = _out_of_span(value)
    if fault:
        return fault
    if kind in ROWS:
        fault = _rows(kind, getattr(value, ROWS[kind][0]))
        if fault:
            return fault
    rule = _RULES.get(kind)
    return "" if rule is None else rule(value)


def _out_of_span(value: Any) -> str:
    """Return the fault of a struct's own numbers, or ""."""
    kind = type(value)
    for field, (low, high) in SPANS.get(kind, {}).items():
        number = getattr(value, field)
        if number is not None and not low <= number <= high:
            return f"{kind.__name__}.{field} is {number}; expected {low} to {high}"
    return ""


def _rows(kind: type, rows: list[tuple[Any, ...]]) -> str:
    field, spans = ROWS[kind]
    for row in rows:
        for number, span in zip(row, spans, strict=True):
            if span is not None and not span[0] <= number <= span[1]:
                return f"{kind.__name__}.{field} has {number}; expected {span[0]} to {span[1]}"
    return ""


def _first(values: Any) -> str:
    """Return the first fault of several structs; None values are skipped."""
    return next(
        (fault for fault in (_told(value) for value in values if value is not None) if fault), ""
    )


def _batch(batch: Batch) -> str:
    if batch.encoding == Encoding.KAFKA:
        return (
            "a Kafka batch has record lengths or no payload"
            if batch.lengths or not batch.payload
            else ""
        )
    if (batch.records == 1 and not batch.lengths) or lengths_match(batch):
        return ""
    return (
        f"the record lengths of a batch do not match its {batch.records} records and "
        f"{len(batch.payload)} bytes of payload"
    )


def _append(command: Append) -> str:
    return _first((command.batch, command.producer))


def _produce(command: Produce) -> str:
    batch, producer = command.batch, command.producer
    if batch.encoding != Encoding.KAFKA:
        return f"a Produce has a batch of encoding {batch.encoding}; expected {Encoding.KAFKA}"
    if producer is not None and not sequences_match(producer, batch.records):
        return f"the Kafka producer {producer} does not match a batch of {batch.records} records"
    return _first((batch, producer))


def _producer(producer: Producer) -> str:
    if producer.kind == 0 and -1 < producer.sequence_last < producer.sequence:
        return (
            f"the last producer sequence {producer.sequence_last} is below the first, "
            f"{producer.sequence}"
        )
    return ""


def _create(command: Create) -> str:
    if command.profile != Profile.REPLICATED and command.segments is not None:
        return "a leased stream has segments, which a diskless one has not: choose one profile"
    if command.batch is not None and command.batch.encoding != command.encoding:
        return (
            f"the stream has encoding {command.encoding}, but its first batch has encoding "
            f"{command.batch.encoding}"
        )
    if not 0 < len(command.name.encode("utf-8", "surrogatepass")) <= PATH_BYTES_MAX:
        return (
            f"the stream name has {len(command.name)} characters; a name has 1 to "
            f"{PATH_BYTES_MAX} bytes"
        )
    return _first(
        (command.batch, command.producer, command.fork, command.retention, command.segments)
    )


def _commit(command: CommitSlices) -> str:
    appends = sum(len(part.appends) for part in command.slices)
    if not 1 <= appends <= COMMIT_APPENDS_MAX:
        return f"the commit has {appends} appends; expected 1 to {COMMIT_APPENDS_MAX}"
    if not 0 < len(command.writer) <= _WRITER_BYTES_MAX:
        return (
            f"the name of the writer has {len(command.writer)} characters; expected 1 to "
            f"{_WRITER_BYTES_MAX}"
        )
    return _first(command.slices)


def _packed_slice(part: PackedSlice) -> str:
    if not part.appends:
        return "a slice of the commit has no appends"
    name, records, length = part.appends[0].command.name, 0, 0
    for packed in part.appends:
        batch = packed.command.batch
        if packed.command.name != name:
            return f"a slice has appends to {name[:100]} and to {packed.command.name[:100]}"
        if batch is not None and batch.encoding != part.encoding:
            return f"a batch of encoding {batch.encoding} is in a slice of encoding {part.encoding}"
        records += 0 if batch is None else batch.records
        length += packed.length
    if max(records, length) > _WORD[1]:
        return f"a slice has {records} records and {length} bytes; at most {_WORD[1]} are allowed"
    if (records > 0) != (part.stored > 0):
        return f"a slice of {records} records has {part.stored} stored bytes"
    return _first(part.appends)


def _packed(packed: PackedAppend) -> str:
    """Return the fault of an append without its payload, or ""."""
    command = packed.command
    batch, producer = command.batch, command.producer
    if batch is None:
        is_close = isinstance(command, Append) and command.close and not packed.length
        return _out_of_span(command) if is_close else "an append of the commit adds nothing"
    is_bare = not batch.payload and not batch.lengths
    if is_bare and type(command) is Append and is_common_append(command):  # the usual case
        return ""
    if not is_bare:
        return "a batch of the commit has a payload or record lengths: they belong in the pack"
    if type(command) is Produce:
        if batch.encoding != Encoding.KAFKA:
            return f"a Produce has encoding {batch.encoding}; expected {Encoding.KAFKA}"
        if producer is not None and not sequences_match(producer, batch.records):
            return f"the Kafka producer {producer} does not fit {batch.records} records"
    fault = _out_of_span(command) or _out_of_span(batch)
    return fault or ("" if producer is None else _told(producer))


def _fork(fork: Fork) -> str:
    if fork.first_record > fork.record:
        return (
            f"the fork point is record {fork.record}, but the first inherited record is "
            f"{fork.first_record}"
        )
    return ""


def _written(command: PackWritten) -> str:
    strange = [group for group in command.groups if not _GROUP[0] <= group <= _GROUP[1]]
    return (
        f"the pack names group {strange[0]}; group numbers go up to {GROUPS_MAX}" if strange else ""
    )


def _level(command: SetLevel) -> str:
    if not 1 <= command.level <= levels.LEVEL:
        return (
            f"the command sets level {command.level}; this release supports levels up to "
            f"{levels.LEVEL}"
        )
    return ""


def _record(node: NodeRecord) -> str:
    return _ports(node.kafka_ports) or _place_of(node.peer)


def _announced(command: NodeAnnounce) -> str:
    return _ports(command.kafka_ports) or _place_of(command.peer)


def _ports(ports: tuple[int, ...]) -> str:
    """Return the fault of the Kafka ports of a node's cores, or ""."""
    if len(ports) <= _CORES_MAX and all(0 < port < 1 << 16 for port in ports):
        return ""
    return f"the Kafka ports of a node's cores are {ports[:8]}; expected up to {_CORES_MAX} ports"


def _place_of(peer: str) -> str:
    """Return the fault of a node's peer address, or "". An empty address is valid: nodes do not
    connect to it."""
    if not peer:
        return ""
    host, _, port = peer.rpartition(":")
    if host and port.isascii() and port.isdigit() and len(port) <= 20 and 0 < int(port) < 1 << 16:
        return ""
    return f"the peer address of a node is '{peer[:100]}'; expected HOST:PORT"


def _placement(placement: Placement) -> str:
    if placement.first not in placement.goal:
        return f"node {placement.first} is the preferred leader of a group in which it has no vote"
    return _nodes(placement.voters) or _nodes(placement.goal)


def _nodes(voters: tuple[int, ...]) -> str:
    if (
        not voters
        or len(set(voters)) != len(voters)
        or not all(1 <= node <= NODE_NUMBER_MAX for node in voters)
    ):
        return (
            f"{voters} is not a valid voter set: it needs distinct node ids from 1 to "
            f"{NODE_NUMBER_MAX}"
        )
    return ""


def _born(command: ClusterBorn) -> str:
    numbers = [node.id for node in command.nodes]
    if not numbers or len(set(numbers)) != len(numbers):
        return f"the first cluster map needs distinct nodes; it has {numbers}"
    if not 1 <= len(command.placements) <= GROUPS_MAX + 1:
        return (
            f"the first cluster map has {len(command.placements)} groups; expected 1 to "
            f"{GROUPS_MAX + 1}"
        )
    strange = {node for each in command.placements for node in (*each.voters, *each.goal)} - set(
        numbers
    )
    if strange:
        return (
            f"the first cluster map places groups on node {min(strange)}, which is not in its "
            "node list"
        )
    return _first(command.nodes) or _first(command.placements)


def _goal(command: PlaceGroup) -> str:
    strange = [node for node in command.goal if not _NODE[0] <= node <= _NODE[1]]
    return f"the goal of a group has an invalid node id: {strange[0]}" if strange else ""


def _prefixes(prefixes: list[str]) -> str:
    return "" if prefixes else "a table needs a prefix; it has none"


def _slice(cold: ColdSlice) -> str:
    if cold.missing_records > cold.records or cold.missing_bytes > cold.length:
        return (
            f"a slice spans {cold.records} records and {cold.length} bytes; of these "
            f"{cold.missing_records} and {cold.missing_bytes} are missing"
        )
    return ""


def _scope(command: MetaChange) -> str:
    if not command.scope or "/" in command.scope:
        return (
            f"'{command.scope[:100]}' is not a valid settings scope: a scope is a non-empty word "
            "without a slash"
        )
    return "" if all(key for key, _ in command.changes) else "a setting has an empty key"


def _topic(command: TopicChange | TopicPut | TopicReady | TopicDrop | TopicGone) -> str:
    if len(command.id) != 16:
        return f"the id of a topic has {len(command.id)} bytes; expected 16"
    return "" if 0 < len(command.name) <= 249 else "the name of a topic has 1 to 249 characters"


def _consumer_group(
    command: ConsumerGroupPut | CommitOffsets | ConsumerGroupDrop | DropOffsets,
) -> str:
    if not 0 < len(command.id) <= GROUP_ID_BYTES_MAX:
        return f"the id of a consumer group has 1 to {GROUP_ID_BYTES_MAX} characters"
    match command:
        case ConsumerGroupPut():
            return _first(command.members)
        case CommitOffsets():
            strange = [each for each in command.offsets if len(each.topic) != 16]
            return _first(command.offsets) or ("a topic id has 16 bytes" if strange else "")
        case DropOffsets():
            strange_places = [
                place
                for place in command.places
                if len(place[0]) != 16 or not 0 <= place[1] <= PARTITIONS_MAX
            ]
            return "a partition is a topic id of 16 bytes and a number" if strange_places else ""
    return ""


def _key(command: MetaSet) -> str:
    return (
        f"'{command.key[:100]}' is not a valid key: a key is a non-empty word without a slash"
        if not command.key or "/" in command.key
        else ""
    )


_RULES: dict[type, Callable[[Any], str]] = {
    Batch: _batch,
    Producer: _producer,
    Fork: _fork,
    Create: _create,
    Append: _append,
    AppendIf: _append,
    Produce: _produce,
    SetRetention: lambda command: _first((command.retention,)),
    BucketRetention: lambda command: _first((command.retention,)),
    PackWritten: _written,
    ColdSlice: _slice,
    PublishSlices: lambda command: _first(cold for _, cold in command.slices),
    ReplaceSlices: lambda command: _first(cold for _, cold in command.replacements),
    SubscriptionPut: lambda command: _first((command.config,)),
    NodeRecord: _record,
    NodeAnnounce: _announced,
    Placement: _placement,
    ClusterBorn: _born,
    NodeAdd: lambda command: _first((command.node,)),
    ReaderAdd: lambda command: _first((command.node,)),
    PlaceGroup: _goal,
    GroupPlaced: lambda command: _nodes(command.voters),
    MetaChange: _scope,
    MetaSet: _key,
    SetLevel: _level,
    CommitSlices: _commit,
    PackedSlice: _packed_slice,
    PackedAppend: _packed,
    **dict.fromkeys((TopicChange, TopicPut, TopicReady, TopicDrop, TopicGone), _topic),
    **dict.fromkeys(
        (ConsumerGroupPut, CommitOffsets, ConsumerGroupDrop, DropOffsets), _consumer_group
    ),
    ForgetTopic: lambda command: (
        "" if len(command.topic) == 16 else "the id of a topic has 16 bytes"
    ),
    TableMake: lambda command: _prefixes(command.prefixes),
    WatchStreams: lambda command: _prefixes(command.prefixes),
}
