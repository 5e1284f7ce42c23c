"""Deltas: the changes to a group's state since another snapshot, with tombstones, and their merge
without decoding the values (docs/formats/group-state.md).

A delta is the `u32` length of its head, the head (`DeltaHead`, msgpack), then the changed streams,
one msgpack array each. The streams may be written in several steps while the log advances. Of two
entries with the same uid the later one counts; the head lists the final deletions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw, structs

from polynya.base.errors import ConfigError, CorruptData
from polynya.base.limits import ATTEMPTS_REMEMBERED_MAX
from polynya.stream.features.pages.eviction import stream_or_view, stub_of
from polynya.stream.features.subscriptions import links
from polynya.stream.features.subscriptions.state import SubscriptionsImage as Subscribed
from polynya.stream.snapshots import encode as snapshots
from polynya.stream.snapshots.encode import Image
from polynya.stream.state import entries
from polynya.stream.state.changes import Changes
from polynya.stream.state.model import PackReference

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

V = TypeVar("V")

VERSION = 1
_LENGTH = Struct("<I")
_NIL = b"\xc0"
_MANY = Struct(">BI")  # msgpack: header of a long array
_encode = msgspec.msgpack.encode
_FIELDS = Image.__struct_fields__
# all other parts are whole in every snapshot
_ONE_BY_ONE = (
    "outbox",
    "attempts",
    "held",
    "packs",
    "released",
    "streams",
    "subscriptions",
    "topics",
    "consumer_groups",
    "writers",
    "transactions",
)


class PlainGone(msgspec.Struct, array_like=True, gc=False):
    """Tombstones without transactional ids, as releases before wrote them."""

    streams: list[int] = []
    messages: list[int] = []
    held: list[str] = []
    packs: list[str] = []
    subscriptions: list[str] = []
    topics: list[str] = []
    consumer_groups: list[str] = []
    writers: list[str] = []


class Gone(PlainGone, array_like=True, gc=False):
    """Tombstones: keys of deleted entries."""

    transactions: list[str] = []


class DeltaHead(msgspec.Struct, array_like=True, gc=False):
    """The head of a delta. For the parts in `_ONE_BY_ONE`, `image` has only the changes, and no
    streams; all other parts are whole. Fields are only appended, and with defaults."""

    version: int
    image: Raw
    gone: Gone
    # the image's registrations, tombstones and dropped incarnations are current; else they have not
    # changed
    watched: bool
    streams: int  # number of streams that follow


class _Uid(msgspec.Struct, array_like=True, gc=False):
    """The first field of a stream, or of an outbox message."""

    uid: int


class _SubscriptionHead(msgspec.Struct, array_like=True, gc=False):
    """The first fields of a subscription."""

    id: str
    uid: int


class _Named(msgspec.Struct, array_like=True, gc=False):
    """The first field of a topic, of a consumer group or of a writer."""

    name: str


_uid_of = msgspec.msgpack.Decoder(_Uid).decode
_subscription_of = msgspec.msgpack.Decoder(_SubscriptionHead).decode
_named_of = msgspec.msgpack.Decoder(_Named).decode
_list_of = msgspec.msgpack.Decoder(list[Raw]).decode
_head_of = msgspec.msgpack.Decoder(DeltaHead).decode
_held_of = msgspec.msgpack.Decoder(dict[str, PackReference]).decode
_packs_of = msgspec.msgpack.Decoder(dict[str, Raw]).decode
_names_of = msgspec.msgpack.Decoder(list[str]).decode


# --- writing --------------------------------------------------------------------------------------


def encode_streams(
    machine: Machine, keys: Iterator[int | str], bytes_max: int = 1 << 62
) -> tuple[int, bytes]:
    """Encode the next of these streams until `bytes_max` bytes or the end of the keys. Returns the
    number that exist, and their encodings in sequence. A key is a uid, or the name of an evicted
    stream."""
    parts: list[bytes] = []
    size = 0
    for key in keys:
        stream = stream_or_view(machine, key)
        if stream is not None:
            parts.append(_encode(snapshots.without_payload(stream)))
            size += len(parts[-1])
            if size >= bytes_max:
                break
    return len(parts), b"".join(parts)


def encode_head(machine: Machine, changes: Changes, streams: int, *, whole: bool) -> bytes:
    """Encode the part before the streams. `whole`: the delta has no predecessor, and everything is
    named."""
    watched = whole or changes.watched
    subscribed = links.encode_image(machine.subscriptions)
    owned = [each for each in subscribed.owned if whole or each.id in changes.subscriptions]
    image = snapshots.image_of(machine)
    image.outbox = snapshots.outbox_of(machine, None if whole else changes.messages)
    image.attempts = list(machine.forks.refused) if whole else changes.attempts
    image.released = list(machine.packs.released) if whole else changes.released
    image.held = _entries(machine.packs.held, None if whole else changes.held)
    image.packs = _entries(machine.packs.owned, None if whole else changes.packs)
    image.subscriptions = (
        structs.replace(subscribed, owned=owned) if watched else Subscribed(owned, [], [], [])
    )
    image.topics = snapshots.topics_of(machine, None if whole else changes.topics)
    image.consumer_groups = snapshots.consumer_groups_of(
        machine, None if whole else changes.consumer_groups
    )
    image.writers = snapshots.writers_of(machine, None if whole else changes.writers)
    if whole or changes.transactions:
        image.transactions = snapshots.transactions_of(
            machine, None if whole else changes.transactions
        )
    away = {stub.uid for name in changes.evicted if (stub := stub_of(machine, name)) is not None}
    gone = Gone(
        sorted(
            uid
            for uid in changes.streams
            if uid not in machine.directory.by_uid and uid not in away
        ),
        sorted(changes.messages - machine.outbox.messages.keys()),
        sorted(pack for pack in changes.held if pack not in machine.packs.held),
        sorted(pack for pack in changes.packs if pack not in machine.packs.owned),
        sorted(changes.subscriptions - machine.subscriptions.owned.keys()),
        sorted(changes.topics - machine.meta.topics.keys()),
        sorted(changes.consumer_groups - machine.consumer_groups.by_id.keys()),
        sorted(changes.writers - machine.diskless.writers.keys()),
        sorted(id_ for id_ in changes.transactions if machine.transactions.get(id_) is None),
    )
    head = _encode_head(image, gone, watched, streams)
    return _LENGTH.pack(len(head)) + head


def _entries(known: Mapping[str, V], names: Iterable[str] | None) -> dict[str, V]:
    """Return the entries of a map, all or those of some names."""
    if names is None:
        return dict(known.items())
    return {name: known[name] for name in sorted(names) if name in known}


def _encode_head(image: Image | list[Raw], gone: Gone, watched: bool, streams: int) -> bytes:
    known = [getattr(gone, field) for field in PlainGone.__struct_fields__]
    written = gone if gone.transactions else PlainGone(*known)
    body = snapshots.encode_image(image) if isinstance(image, Image) else _encode(_plain(image))
    return _encode((VERSION, Raw(body), written, watched, streams))


def _plain(image: list[Raw]) -> list[Raw]:
    """Leave out the hold of an image that has none, as `encode_image` does."""
    return image[:-1] if bytes(image[-1]) == _NIL else image


# --- merging --------------------------------------------------------------------------------------


_DEFAULTS = _list_of(_encode(Image(snapshots.VERSION, 0, 0, 0, 0, [], [], {}, {}, [], [])))


class SnapshotPart(msgspec.Struct, frozen=True, gc=False):
    """The body of one snapshot. A base, and a delta without a predecessor (`root`), need no earlier
    part."""

    body: bytes
    delta: bool = False
    root: bool = True


def merge(parts: Sequence[SnapshotPart]) -> bytes:
    """Merge parts into one body: a base if the first is a root, else a delta. The bytes equal those
    of a single snapshot. Raises CorruptData."""
    if len(parts) == 1 and not parts[0].delta:
        return parts[0].body
    try:
        merged = _Merged()
        for part in parts:
            if part.delta:
                merged.add_delta(part.body)
            else:
                merged.add_base(part.body)
        return merged.base() if parts[0].root else merged.delta()
    except (msgspec.MsgspecError, ValueError, IndexError) as error:
        raise CorruptData(f"a part of a group snapshot cannot be decoded: {error}") from error


class _Merged:
    """A merge in progress: keys and undecoded values."""

    def __init__(self) -> None:
        self.image: list[Raw] = []
        self.streams: dict[int, Raw] = {}
        self.messages: dict[int, Raw] = {}
        self.held: dict[str, PackReference] = {}
        self.packs: dict[str, Raw] = {}
        self.subscriptions: dict[str, tuple[int, Raw]] = {}  # with their uids
        self.topics: dict[str, Raw] = {}
        self.consumer_groups: dict[str, Raw] = {}
        self.writers: dict[str, Raw] = {}
        self.transactions: dict[str, Raw] = {}
        self.attempts: list[str] = []
        self.released: list[str] = []
        self.watches: list[Raw] = []  # tombstones, registrations, dropped incarnations
        self.watched = False
        self.gone = [set[Any]() for _ in self._maps]

    def add_base(self, body: bytes) -> None:
        image = _list_of(body)
        entry_bytes = _FIELDS.index("entry_bytes")
        # written by 0.1.0
        if (
            len(image) <= entry_bytes
            or msgspec.msgpack.decode(image[entry_bytes]) != entries.V1_BYTES
        ):
            image = _list_of(snapshots.write_image(snapshots.decode_image(body)))
        self._add(image, _list_of(image[_FIELDS.index("streams")]), watched=True)

    def add_delta(self, body: bytes) -> None:
        (length,) = _LENGTH.unpack_from(body)
        head = _head_of(body[_LENGTH.size : _LENGTH.size + length])
        if head.version != VERSION:
            raise ConfigError(
                f"a group snapshot's delta has version {head.version}; this release reads version "
                f"{VERSION}: use the release that wrote it"
            )
        streams = _list_of(_MANY.pack(0xDD, head.streams) + body[_LENGTH.size + length :])
        self._add(_list_of(head.image), streams, watched=head.watched)
        gone = head.gone
        tombstones: tuple[list[Any], ...] = (
            gone.streams,
            gone.messages,
            gone.held,
            gone.packs,
            gone.subscriptions,
            gone.topics,
            gone.consumer_groups,
            gone.writers,
            gone.transactions,
        )
        for known, all_gone, keys in zip(self._maps, self.gone, tombstones, strict=True):
            all_gone.update(keys)
            for key in keys:
                known.pop(key, None)

    @property
    def _maps(self) -> tuple[dict[Any, Any], ...]:
        return (
            self.streams,
            self.messages,
            self.held,
            self.packs,
            self.subscriptions,
            self.topics,
            self.consumer_groups,
            self.writers,
            self.transactions,
        )

    def _add(self, image: list[Raw], streams: list[Raw], *, watched: bool) -> None:
        image += _DEFAULTS[len(image) :]  # an earlier release wrote fewer fields
        outbox, attempts, held, packs, released, _, subscribed, *parts = (
            image[_FIELDS.index(name)] for name in _ONE_BY_ONE
        )
        self.image = image
        owned, *watches = (
            _list_of(subscribed)
            if bytes(subscribed) != _NIL
            else _list_of(_encode(Subscribed([], [], [], [])))
        )
        news: tuple[dict[Any, Any], ...] = (
            {_uid_of(stream).uid: stream for stream in streams},
            {_uid_of(message).uid: message for message in _list_of(outbox)},
            _held_of(held),
            _packs_of(packs),
            {(named := _subscription_of(each)).id: (named.uid, each) for each in _list_of(owned)},
            *({_named_of(each).name: each for each in _list_of(part)} for part in parts),
        )
        for known, gone, new in zip(self._maps, self.gone, news, strict=True):
            known.update(new)
            gone.difference_update(new)
        self.attempts += _names_of(attempts)
        self.released += _names_of(released)
        if watched:
            self.watched, self.watches = True, watches

    def _put_together(self) -> None:
        """Put the merged parts into the newest image."""
        watches = self.watches or _list_of(_encode(Subscribed([], [], [], [])))[1:]
        owned = [
            each for _, each in sorted(self.subscriptions.values(), key=lambda named: named[0])
        ]
        parts = (
            [self.messages[message] for message in sorted(self.messages)],
            self.attempts,
            dict(sorted(self.held.items(), key=lambda item: item[1].number)),
            dict(sorted(self.packs.items())),
            self.released,
            [self.streams[uid] for uid in sorted(self.streams)],
            [owned, *watches],
            [self.topics[name] for name in sorted(self.topics)],
            [self.consumer_groups[id_] for id_ in sorted(self.consumer_groups)],
            [self.writers[name] for name in sorted(self.writers)],
            [self.transactions[id_] for id_ in sorted(self.transactions)],
        )
        for name, part in zip(_ONE_BY_ONE, parts, strict=True):
            self.image[_FIELDS.index(name)] = Raw(_encode(part))

    def base(self) -> bytes:
        self.attempts, self.released = _remembered(self.attempts), _remembered(self.released)
        self._put_together()
        return _encode(_plain(self.image))

    def delta(self) -> bytes:
        streams = [self.streams.pop(uid) for uid in sorted(self.streams)]
        self._put_together()
        gone = Gone(*(sorted(keys) for keys in self.gone))
        head = _encode_head(self.image, gone, self.watched, len(streams))
        return b"".join([_LENGTH.pack(len(head)), head, *streams])


def _remembered(keys: Iterable[str]) -> list[str]:
    """Return the keys that a machine remembers after adding these in order."""
    known: dict[str, None] = {}
    for key in keys:
        known[key] = None
        if len(known) > ATTEMPTS_REMEMBERED_MAX:
            del known[next(iter(known))]
    return list(known)
