"""Encoding and decoding of Raft messages (docs/formats/raft.md)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import msgspec

from polynya.base.errors import InvalidMessage
from polynya.base.msgpack import UNREADABLE
from polynya.raft.configuration import decode_configuration
from polynya.raft.messages import (
    Append,
    AppendAnswer,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    Number,
    ReadAnswer,
    ReadRequest,
    RecoverVote,
    RecoverVoteAnswer,
    SnapshotAnswer,
    SnapshotChunk,
    TimeoutNow,
    Vote,
    VoteAnswer,
)


class _AppendFrame(Message, frozen=True, tag=1):
    prev_index: Number
    prev_term: Number
    commit: Number
    block: msgspec.Raw


# other kinds are journal frames; in a log they would make it invalid
_KINDS = frozenset((EntryKind.COMMAND, EntryKind.NOOP, EntryKind.CONFIGURATION))
_Frame = (
    _AppendFrame
    | AppendAnswer
    | Heartbeat
    | HeartbeatAnswer
    | Vote
    | VoteAnswer
    | TimeoutNow
    | ReadRequest
    | ReadAnswer
    | SnapshotChunk
    | SnapshotAnswer
    | RecoverVote
    | RecoverVoteAnswer
)
_encode: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[_Frame] = msgspec.msgpack.Decoder(_Frame)
_decode_block: Callable[[bytes], list[int | bytes]] = msgspec.msgpack.Decoder(
    list[int | bytes]
).decode


def encode_block(entries: list[Entry]) -> bytes:
    """Encode the entries of an append, once for all members that receive the same list."""
    if len(entries) == 1:  # the common case: the appends of a turn, batched into one entry
        entry = entries[0]
        return _encode((entry.term, entry.kind, entry.payload))
    return _encode(
        list(chain.from_iterable((entry.term, entry.kind, entry.payload) for entry in entries))
    )


def encode_message(message: Message, block: bytes | None = None) -> bytes:
    """Encode a message. `block` holds the entries of an append if they are already encoded."""
    if type(message) is not Append:
        return _encode(message)
    raw = msgspec.Raw(encode_block(message.entries) if block is None else block)
    head = (message.to, message.sender, message.group, message.term)
    return _encode(_AppendFrame(*head, message.prev_index, message.prev_term, message.commit, raw))


class _Head(msgspec.Struct, array_like=True):
    tag: int
    to: int
    sender: int
    group: int


_decode_head: Callable[[bytes], _Head] = msgspec.msgpack.Decoder(_Head).decode


def group_of_message(data: bytes) -> int:
    """Return the group of an encoded message."""
    return _decode_head(data).group


def decode_message(data: bytes) -> Message:
    """Decode a message. Raises InvalidMessage if `data` is malformed or no member could have sent
    it."""
    try:
        frame = _decoder.decode(data)
        if type(frame) is _AppendFrame:
            return _append(frame)
    except UNREADABLE as error:
        raise InvalidMessage(
            f"a Raft message from another node cannot be decoded: {error}"
        ) from None
    if type(frame) is SnapshotChunk:
        _check_chunk(frame)
    return frame


def _append(frame: _AppendFrame) -> Append:
    if frame.prev_term > frame.term:
        raise InvalidMessage("an append follows an entry of a later term than its own")
    entries = _entries(_decode_block(frame.block), frame)
    return Append(
        frame.to,
        frame.sender,
        frame.group,
        frame.term,
        frame.prev_index,
        frame.prev_term,
        frame.commit,
        entries,
    )


def _entries(block: list[int | bytes], frame: _AppendFrame) -> list[Entry]:
    if len(block) == 3:
        term, kind, payload = block
        if (
            type(term) is int
            and kind == EntryKind.COMMAND
            and type(payload) is bytes
            and frame.prev_term <= term <= frame.term
        ):
            return [Entry(payload, kind, term, frame.prev_index + 1, frame.group)]
    terms, kinds, payloads = block[::3], block[1::3], block[2::3]
    sound = (
        len(terms) == len(payloads)
        and _all(terms, int)
        and _KINDS.issuperset(kinds)
        and _all(payloads, bytes)
    )
    if (
        not sound
        or list(terms) != sorted(terms)
        or (terms and not frame.prev_term <= terms[0] <= terms[-1] <= frame.term)  # type: ignore[operator]
    ):
        raise InvalidMessage("the entry block of an append is malformed")
    indexes = range(frame.prev_index + 1, frame.prev_index + 1 + len(terms))
    group = frame.group
    entries = [
        Entry(payload, kind, term, index, group)  # type: ignore[arg-type]
        for term, kind, payload, index in zip(terms, kinds, payloads, indexes, strict=True)
    ]
    if EntryKind.CONFIGURATION in kinds and not all(
        decode_configuration(e.payload).voters for e in entries if e.kind == EntryKind.CONFIGURATION
    ):
        raise InvalidMessage("a configuration entry has no voters")
    return entries


def _check_chunk(chunk: SnapshotChunk) -> None:
    snapshot = chunk.snapshot
    if (
        snapshot.term > chunk.term
        or not snapshot.configuration.voters
        or chunk.offset + len(chunk.data) > snapshot.size
        or not snapshot.size
    ):
        raise InvalidMessage("the snapshot described by a chunk is invalid")


def _all(items: list[int | bytes], kind: type) -> bool:
    return {kind}.issuperset(map(type, items))
