"""Group snapshots: the whole state as one msgpack array; hot payload stays in the journal."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from operator import attrgetter
from sys import intern

import msgspec
from msgspec import Raw

from polynya.base.errors import ConfigError, CorruptData
from polynya.base.levels import check_level
from polynya.base.msgpack import array_head
from polynya.stream.features.consumer_groups.state import ConsumerGroup, ConsumerGroups
from polynya.stream.features.pages import eviction
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.subscriptions import links
from polynya.stream.features.subscriptions.state import SubscriptionsImage as Subscribed
from polynya.stream.features.tables.state import Table, Watch
from polynya.stream.features.topics.state import Topic, TopicChanges
from polynya.stream.features.transactions.state import CommitHold, Transaction, Transactions
from polynya.stream.machine import Machine
from polynya.stream.parts import Retention
from polynya.stream.registry import AnyCommand
from polynya.stream.state import entries, index
from polynya.stream.state.model import HotBatch, Pack, PackReference, Stream, WriterState
from polynya.stream.state.pack_tables import HeldPacks, OwnedPacks

VERSION = 1


class Image(msgspec.Struct, array_like=True, gc=False):
    """The serialized form of the machine. Fields are only appended, and with defaults."""

    version: int
    group: int
    groups: int
    uid_counter: int
    message_counter: int
    outbox: list[tuple[int, int, AnyCommand]]  # message, target group, command
    attempts: list[str]
    held: dict[str, PackReference]
    packs: dict[str, Pack]
    released: list[str]
    streams: list[Stream]
    tables: list[Table] = []
    claimed_jobs: dict[int, int] = {}
    subscriptions: Subscribed | None = None
    meta: dict[str, bytes] = {}
    pack_counter: int = 0
    # bytes per index entry of version 1; 0.1.0 wrote 48 and no such field
    entry_bytes: int = 48
    buckets: dict[str, Retention] = {}
    map: ClusterMap | None = None
    level: int = 1
    log_ms: int = 0
    producer_id_counter: int = 0
    topics: list[Topic] = []
    watches: list[Watch] = []
    consumer_groups: list[ConsumerGroup] = []
    transactions: list[Transaction] = []
    topic_revision: int = 0
    epoch_bases: list[int] = []
    writers: list[WriterState] = []
    hold: CommitHold | None = None  # not written while there is none, as by releases before


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Image)
_PARTS = msgspec.msgpack.Decoder(list[Raw])
_STREAM = msgspec.msgpack.Decoder(Stream)
_STREAMS = Image.__struct_fields__.index("streams")
_PLAIN_FIELDS = Image.__struct_fields__[:-1]


def snapshot_of(machine: Machine) -> bytes:
    """Return the state without hot payloads; the same log gives the same bytes."""
    image = _whole_image_of(machine)
    image.streams = [without_payload(stream) for stream in machine.directory.in_order()]
    if machine.directory.evicted:
        image.streams += map(eviction.as_written, eviction.evicted_views(machine))
        image.streams.sort(key=attrgetter("uid"))
    return encode_image(image)


def around_streams(machine: Machine, streams: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the streams of a snapshot, so that its streams can be
    encoded one by one."""
    parts = _PARTS.decode(encode_image(_whole_image_of(machine)))
    before = b"".join([array_head(len(parts)), *parts[:_STREAMS], array_head(streams)])
    return before, b"".join(parts[_STREAMS + 1 :])


def _whole_image_of(machine: Machine) -> Image:
    """Return everything but the streams. Encode it immediately."""
    image = image_of(machine)
    image.outbox = outbox_of(machine)
    image.attempts, image.released = list(machine.forks.refused), list(machine.packs.released)
    image.held = dict(machine.packs.held.items())
    image.packs = dict(sorted(machine.packs.owned.items()))
    image.subscriptions = links.encode_image(machine.subscriptions)
    image.topics = topics_of(machine)
    image.consumer_groups = consumer_groups_of(machine)
    image.transactions = transactions_of(machine)
    image.writers = writers_of(machine)
    return image


def consumer_groups_of(machine: Machine, ids: Container[str] | None = None) -> list[ConsumerGroup]:
    """Return the consumer groups, all or those given, by id."""
    known = machine.consumer_groups.by_id
    return [
        known[id_].as_written()  # type: ignore[misc]
        for id_ in sorted(known)
        if ids is None or id_ in ids
    ]


def transactions_of(machine: Machine, ids: Iterable[str] | None = None) -> list[Transaction]:
    """Return the transactional ids, all or those given, by id."""
    known = machine.transactions
    found = known if ids is None else filter(None, map(known.get, ids))
    return sorted(found, key=attrgetter("id"))


def writers_of(machine: Machine, names: Container[str] | None = None) -> list[WriterState]:
    """Return the writers of diskless streams, all or those given, by name."""
    known = machine.diskless.writers
    return [known[name] for name in sorted(known) if names is None or name in names]


def topics_of(machine: Machine, names: Container[str] | None = None) -> list[Topic]:
    """Return the topics, all or those given, by name."""
    return [
        machine.meta.topics[name]
        for name in sorted(machine.meta.topics)
        if names is None or name in names
    ]


def image_of(machine: Machine) -> Image:
    """Return the small parts of the state. Encode them immediately: the machine keeps changing
    them."""
    return Image(
        version=VERSION,
        group=machine.group,
        groups=machine.groups,
        uid_counter=machine.counters.uids,
        message_counter=machine.outbox.counter,
        outbox=[],
        attempts=[],
        held={},
        packs={},
        released=[],
        streams=[],
        tables=list(machine.meta.tables.values()),
        claimed_jobs=machine.claims.jobs,
        meta=machine.meta.settings,
        pack_counter=machine.packs.counter,
        entry_bytes=entries.V1_BYTES,
        buckets=machine.meta.buckets,
        map=machine.meta.map,
        level=machine.counters.level,
        log_ms=machine.counters.log_ms,
        producer_id_counter=machine.counters.producer_ids,
        watches=list(machine.claims.watches.values()),
        topic_revision=machine.meta.topic_changes.revision,
        epoch_bases=machine.counters.epoch_bases,
        hold=machine.transactions.hold,
    )


def positions_of(data: bytes) -> set[int]:
    """Return the journal positions that a snapshot names. Raises CorruptData."""
    return {batch.position for stream in decode_image(data).streams for batch in stream.hot or ()}


def with_positions(data: bytes, moved: dict[int, int]) -> bytes:
    """Re-encode a snapshot with its batches at other journal positions. Raises CorruptData for a
    batch without a new position."""
    image = decode_image(data)
    check_level(image.level, image.group)
    for stream in image.streams:
        for batch in stream.hot or ():
            if batch.position not in moved:
                raise CorruptData(
                    f"stream {stream.name}: the journal lacks the batch at position "
                    f"{batch.position:#x}, which the snapshot references"
                )
            batch.position = moved[batch.position]
    return write_image(image)


def write_image(image: Image) -> bytes:
    """Encode an image as a snapshot."""
    image.streams = [without_payload(stream) for stream in image.streams]
    return encode_image(image)


def encode_image(image: Image) -> bytes:
    """Encode an image. Without a hold it has the bytes of the releases before."""
    if image.hold is not None:
        return _ENCODER.encode(image)
    return _ENCODER.encode([getattr(image, field) for field in _PLAIN_FIELDS])


def outbox_of(
    machine: Machine, messages: Container[int] | None = None
) -> list[tuple[int, int, AnyCommand]]:
    """Return the outbox messages, all or those given, in serialized form."""
    items = machine.outbox.messages.items()
    return [
        (message, group, command)
        for message, (group, command) in items
        if messages is None or message in messages
    ]


def without_payload(stream: Stream) -> Stream:
    """Return the stream as written to snapshots: hot payload stays in the journal."""
    if not stream.hot:
        return eviction.as_written(stream)
    hot: list[HotBatch] = [msgspec.structs.replace(batch, payload=b"") for batch in stream.hot]
    return eviction.as_written(msgspec.structs.replace(stream, hot=hot))


def machine_from(data: bytes, read_payload: Callable[[int, int], bytes]) -> Machine:
    """Rebuild the machine of a snapshot. `read_payload(position, uid)` returns the payload of a hot
    batch from the journal. Raises CorruptData when `data` or a payload is damaged, ConfigError when
    a newer release wrote it."""
    image = decode_image(data)
    check_level(image.level, image.group)
    machine = Machine(image.group, image.groups)
    machine.counters.uids = image.uid_counter
    machine.outbox.counter = image.message_counter
    machine.outbox.messages = {
        message: (group, command) for message, group, command in image.outbox
    }
    machine.forks.refused = dict.fromkeys(image.attempts)
    machine.packs.held = HeldPacks(image.held)
    machine.packs.counter = image.pack_counter
    machine.packs.owned = OwnedPacks(image.packs)
    machine.packs.pages_gone = {key: None for key, held in image.held.items() if not held.slices}
    machine.packs.released = dict.fromkeys(image.released)
    machine.meta.tables = {table.uid: table for table in image.tables}
    machine.claims.jobs = image.claimed_jobs
    machine.claims.watches = {watch.table: watch for watch in image.watches}
    machine.meta.buckets = image.buckets
    # a no-op for valid data: the format prescribes this order
    image.streams.sort(key=attrgetter("uid"))
    for stream in image.streams:
        _adopt(machine, stream, read_payload)
    if image.subscriptions is not None:
        links.decode_image(machine, image.subscriptions)
    machine.meta.settings = image.meta
    machine.meta.map = image.map
    machine.meta.topics = {topic.name: topic for topic in image.topics}
    machine.consumer_groups = ConsumerGroups(image.consumer_groups)
    machine.transactions = Transactions(image.transactions)
    machine.transactions.hold = image.hold
    machine.meta.topic_changes = TopicChanges(image.topic_revision, image.topics)
    machine.counters.level = image.level
    machine.counters.producer_ids = image.producer_id_counter
    machine.counters.epoch_bases = image.epoch_bases
    machine.diskless.writers = {state.writer: state for state in image.writers}
    # 0: written by 0.1.0
    machine.counters.log_ms = image.log_ms or max(
        (stream.activity_ms for stream in image.streams), default=0
    )
    machine.take_changes()
    return machine


def decode_image(data: bytes) -> Image:
    """Decode a snapshot; hot batches have no payload, indexes have the form in memory. Streams are
    decoded one by one, so that a thread doing this lets others run. Raises CorruptData, and
    ConfigError for the version of a newer release."""
    try:
        parts = _PARTS.decode(data)
        streams = _PARTS.decode(parts[_STREAMS])
        parts[_STREAMS] = Raw(b"\x90")
        image = _DECODER.decode(_ENCODER.encode(parts))
        image.streams = [_STREAM.decode(stream) for stream in streams]
    except (msgspec.MsgspecError, IndexError) as error:
        raise CorruptData(f"the group snapshot cannot be decoded: {error}") from error
    if image.version != VERSION:
        raise ConfigError(
            f"the group snapshot has version {image.version}; this release reads version "
            f"{VERSION}: use the release that wrote it"
        )
    return widened(image)


def widened(image: Image) -> Image:
    """Convert written indexes to their form in memory. Raises CorruptData for an unknown entry
    length."""
    if image.entry_bytes not in (48, entries.V1_BYTES):
        raise CorruptData(
            f"the group snapshot has index entries of {image.entry_bytes} bytes; this release "
            f"reads {entries.V1_BYTES}"
        )
    for stream in image.streams:
        if image.entry_bytes == 48 and stream.cold is not None:
            end_ms = stream.hot[0].time_ms if stream.hot else stream.activity_ms
            stream.cold = entries.from_first_release(index.joined(stream.cold), end_ms)
        else:
            eviction.load_index(stream)
    image.entry_bytes = entries.V1_BYTES
    return image


def _adopt(machine: Machine, stream: Stream, read_payload: Callable[[int, int], bytes]) -> None:
    where = eviction.where_of(stream)
    if where is not None:
        eviction.adopt(machine, stream, where)
        return
    stream.content_type = intern(stream.content_type)
    directory = machine.directory
    directory.add(stream)
    if stream.extras is not None and stream.extras.retention is not None:
        directory.retaining[stream.uid] = stream
    if stream.extras is not None and stream.extras.compaction is not None:
        directory.note_compacted(stream)
    if stream.extras is not None and stream.extras.segments is not None:
        directory.leased[stream.uid] = stream
    if stream.extras is not None and stream.extras.attributes is not None:
        directory.attribute_bytes += len(stream.extras.attributes.value)
    if stream.kafka is not None and stream.kafka.open:
        directory.undecided[stream.uid] = stream
    if stream.extras is not None and stream.extras.marks is not None:
        directory.marked[stream.uid] = stream
    machine.diskless.update(stream)
    for attempt, pin in (stream.pins or {}).items():
        if not pin.confirmed:
            machine.forks.unconfirmed[attempt] = stream.uid
    if not stream.hot:
        return
    directory.hot[stream.uid] = stream
    end = stream.next_byte
    for batch in reversed(stream.hot):
        batch.payload = read_payload(batch.position, stream.uid)
        if len(batch.payload) != end - batch.byte:
            raise CorruptData(
                f"the journal's batch at position {batch.position} of stream {stream.name} differs in "
                "length from the batch in the snapshot"
            )
        end = batch.byte
    directory.hot_bytes += stream.next_byte - end
