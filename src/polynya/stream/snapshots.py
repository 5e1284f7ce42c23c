"""Group snapshots: the whole state as one msgpack array, hot payload left in the journal (F12)."""

from __future__ import annotations

from collections.abc import Callable
from sys import intern
from typing import TYPE_CHECKING

import msgspec

from polynya.base.errors import CorruptData
from polynya.stream import index, subscriptions_links
from polynya.stream.commands import ReleasePack, Retention, Unpin
from polynya.stream.model import Held, HotBatch, Pack, Stream
from polynya.stream.subscriptions_model import Image as Subscribed
from polynya.stream.tables import Table

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

VERSION = 1


class Image(msgspec.Struct, array_like=True, gc=False):
    """The machine as it is written. Fields are only appended, and with defaults."""

    version: int
    group: int
    groups: int
    uid_counter: int
    message_counter: int
    outbox: list[tuple[int, int, Unpin | ReleasePack]]  # message, target group, command
    attempts: list[str]
    held: dict[str, Held]
    packs: dict[str, Pack]
    released: list[str]
    streams: list[Stream]
    tables: list[Table] = []
    claimed_jobs: dict[int, int] = {}
    subscriptions: Subscribed | None = None
    meta: dict[str, bytes] = {}
    pack_counter: int = 0
    entry_bytes: int = 48  # of the indexes' entries: those of 0.1.0, unless it says otherwise
    buckets: dict[str, Retention] = {}


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Image)


def encode(machine: Machine) -> bytes:
    """The snapshot's bytes: a function of the state alone."""
    image = Image(
        version=VERSION,
        group=machine.group,
        groups=machine.groups,
        uid_counter=machine.uid_counter,
        message_counter=machine.message_counter,
        outbox=[(message, group, command) for message, (group, command) in machine.outbox.items()],  # type: ignore[misc]
        attempts=list(machine.attempts),
        held=machine.held,
        packs=machine.packs,
        released=list(machine.released),
        tables=list(machine.tables.values()),
        claimed_jobs=machine.claimed_jobs,
        subscriptions=subscriptions_links.encode_image(machine.subscriptions),
        meta=machine.meta,
        pack_counter=machine.pack_counter,
        entry_bytes=index.ENTRY_BYTES,
        buckets=machine.buckets,
        streams=[_without_payload(stream) if stream.hot else stream for stream in machine.streams.values()],
    )
    return _ENCODER.encode(image)


def read_image(data: bytes) -> Image:
    """What a snapshot says, as it is written. Raises CorruptData."""
    try:
        image = _DECODER.decode(data)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"the group snapshot cannot be decoded: {error}") from error
    if image.version != VERSION:
        raise CorruptData(f"the group snapshot has version {image.version}; this release reads version {VERSION}")
    return image


def write_image(image: Image) -> bytes:
    """A snapshot again."""
    return _ENCODER.encode(image)


def _without_payload(stream: Stream) -> Stream:
    hot: list[HotBatch] = [msgspec.structs.replace(batch, payload=b"") for batch in stream.hot or ()]
    return msgspec.structs.replace(stream, hot=hot)


def decode(machine_type: type[Machine], data: bytes, read_payload: Callable[[int, int], bytes]) -> Machine:
    """The machine again. Raises CorruptData when `data` or a payload is not what was written."""
    image = read_image(data)
    machine = machine_type(image.group, image.groups)
    machine.uid_counter = image.uid_counter
    machine.message_counter = image.message_counter
    machine.outbox = {message: (group, command) for message, group, command in image.outbox}
    machine.attempts = dict.fromkeys(image.attempts)
    machine.held = image.held
    machine.pack_keys = {held.number: pack for pack, held in image.held.items()}
    machine.pack_counter = image.pack_counter
    machine.packs = image.packs
    machine.released = dict.fromkeys(image.released)
    machine.tables = {table.uid: table for table in image.tables}
    machine.claimed_jobs = image.claimed_jobs
    if image.entry_bytes not in (48, index.ENTRY_BYTES):
        raise CorruptData(f"the group snapshot has indexes of {image.entry_bytes} bytes an entry; this release reads {index.ENTRY_BYTES}")
    machine.buckets = image.buckets
    for stream in image.streams:
        if image.entry_bytes == 48:
            _widen(stream)
        _adopt(machine, stream, read_payload)
    if image.subscriptions is not None:
        subscriptions_links.decode_image(machine, image.subscriptions)
    machine.meta = image.meta
    return machine


def _widen(stream: Stream) -> None:
    if stream.cold is not None:
        stream.cold = index.widened(stream.cold, stream.hot[0].time_ms if stream.hot else stream.activity_ms)


def _adopt(machine: Machine, stream: Stream, read_payload: Callable[[int, int], bytes]) -> None:
    stream.content_type = intern(stream.content_type)
    machine.streams[stream.name] = stream
    machine.by_uid[stream.uid] = stream
    if stream.front is not None and stream.front.retention is not None:
        machine.retaining[stream.uid] = stream
    for attempt, pin in (stream.pins or {}).items():
        if not pin.confirmed:
            machine.unconfirmed[attempt] = stream.uid
    if not stream.hot:
        return
    machine.hot[stream.uid] = stream
    end = stream.next_byte
    for batch in reversed(stream.hot):
        batch.payload = read_payload(batch.place, stream.uid)
        if len(batch.payload) != end - batch.byte:
            raise CorruptData(f"the journal's batch at place {batch.place} of stream {stream.name} is not the one that the snapshot names")
        end = batch.byte
    machine.hot_bytes += stream.next_byte - end
