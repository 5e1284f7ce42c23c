"""Offsets as Spark's checkpoint holds them, of bounded size whatever the number of streams.

Small ones are written out: `{stream: [uid, record]}`. Of larger ones the checkpoint has a reference
to a base, and the difference from it: `{"": [cursor, record, digest], stream: [uid, record],
deleted: null}`. A base is offsets in a stream of the node, the cursor of the query. It is durable
before an offset names it, and never changes. A digest ties both together.
"""

from __future__ import annotations

import hashlib
import secrets
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.msgpack import UNREADABLE
from polynya.base.offsets import parse_token
from polynya.client.blocking.generated.client import Client
from polynya.client.errors import Refused, StreamGone, StreamNotFound
from polynya.client.values import JSON_TYPE
from polynya.spark.options import Connection
from polynya.spark.positions import Offsets
from polynya.spark.server import Server
from polynya.spark.sink.commit import Once, append_once

INLINE_BYTES = 32 << 10  # of an offset as JSON
CURSOR_BYTES = 256 << 20  # retained of a cursor: the last hundred bases of 100,000 streams
PART_BYTES = 1 << 20  # of a base in one record
KEPT = 4  # decoded offsets in memory: begin and end of two batches
Coded = dict[str, Any]  # an offset as the checkpoint has it


class Bases(Protocol):
    """The streams of bases. A node has them (`NodeBases`)."""

    def append(self, name: str, parts: Sequence[bytes]) -> int:
        """Append records to a stream, which is created if it is missing. Return the first one's
        number."""

    def read(self, name: str, first: int) -> Iterator[bytes]: ...

    def delete(self, name: str) -> None: ...


class _Part(msgspec.Struct):
    """A part of a base: zlib of its JSON."""

    digest: str
    parts: int
    data: bytes


class Cursors:
    """The bases of one query."""

    def __init__(self, bases: Bases, folder: str) -> None:
        self._bases = bases
        self._folder = folder
        self._name = ""  # of the query's cursor
        self._base: tuple[list[Any], Offsets] | None = None  # of the last offset
        self._kept: dict[str, Offsets] = {}  # offsets by their JSON
        self._replaced: dict[str, str] = {}  # an earlier cursor of the query, by the new one

    def encode(self, offsets: Offsets) -> Coded:
        """Return offsets as the checkpoint keeps them. Raises PolynyaError."""
        coded: Coded = dict(offsets)
        if size_of(coded) > INLINE_BYTES:
            coded = self._difference(offsets)
            if size_of(coded) > INLINE_BYTES:
                self._write(offsets)
                coded = self._difference(offsets)
        self._keep(coded, offsets)
        return coded

    def decode(self, coded: Coded) -> Offsets:
        """Return the offsets that a checkpoint has. Raises PolynyaError."""
        if "" not in coded:
            return coded
        text = _text(coded)
        if text in self._kept:
            return self._kept[text]
        reference = coded[""]
        if self._base is None or self._base[0] != reference:
            self._base = reference, self._read(*reference)
        self._follow(reference[0])
        offsets = dict(self._base[1])
        for name, position in coded.items():
            if position is None:
                offsets.pop(name, None)
            elif name:
                offsets[name] = position
        self._keep(coded, offsets)
        return offsets

    def forget_replaced(self, coded: Coded) -> None:
        """Delete the cursor that the one of a committed offset replaced."""
        old = self._replaced.pop(coded[""][0], "") if "" in coded else ""
        if old:
            self._bases.delete(old)

    def _follow(self, name: str) -> None:
        """Go on with the cursor of a checkpoint. A planner that had to write before it knew that
        has one of its own, which replaces it."""
        if not self._name:
            self._name = name
        elif self._name != name:
            self._replaced[self._name] = name

    def _difference(self, offsets: Offsets) -> Coded:
        if self._base is None:
            return dict(offsets)
        reference, base = self._base
        changed: Coded = {name: at for name, at in offsets.items() if base.get(name) != at}
        return {"": reference, **changed, **dict.fromkeys(sorted(base.keys() - offsets.keys()))}

    def _write(self, offsets: Offsets) -> None:
        """Append a base to the cursor."""
        body = msgspec.json.encode(offsets)
        packed = zlib.compress(body, 6)
        digest = _digest(body)
        cuts = range(0, len(packed), PART_BYTES)
        parts = [_Part(digest, len(cuts), packed[at : at + PART_BYTES]) for at in cuts]
        self._name = self._name or f"{self._folder}/{secrets.token_hex(8)}"
        try:
            first = self._bases.append(self._name, [msgspec.json.encode(part) for part in parts])
        except Refused as refused:
            raise PolynyaError(
                f"the offsets of {len(offsets)} streams have {len(body)} bytes, more than the "
                f"{INLINE_BYTES} in a checkpoint, and stream '{self._name}' cannot be written: "
                f"{refused}. Allow the token append, create, read and delete on "
                f"'{self._folder}/', or set the option cursors to another prefix"
            ) from None
        self._base = [self._name, first, digest], dict(offsets)

    def _read(self, name: str, first: int, digest: str) -> Offsets:
        """Return a base. Raises PolynyaError if it is missing or another one."""
        packed, count = b"", 0
        try:
            for record in self._bases.read(name, first):
                part = msgspec.json.decode(record, type=_Part)
                packed, count = packed + part.data, count + 1
                if part.digest != digest or count == part.parts:
                    break
            body = zlib.decompress(packed)
            if _digest(body) == digest:
                return msgspec.json.decode(body, type=Offsets)
        except (StreamNotFound, StreamGone, zlib.error, *UNREADABLE):
            pass
        raise PolynyaError(
            f"the checkpoint refers to record {first} of stream '{name}', which is missing or has "
            "other offsets; restore that stream from a backup, or begin with a new checkpoint and "
            "the option startingOffsets or startingTimestamp"
        )

    def _keep(self, coded: Coded, offsets: Offsets) -> None:
        self._kept[_text(coded)] = offsets
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]


class NodeBases:
    """Bases in streams of a node."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._producer, self._appends = f"spark-cursor-{secrets.token_hex(8)}", 0

    def append(self, name: str, parts: Sequence[bytes]) -> int:
        with self._client() as client, Server(self._connection) as server:
            stream = client.stream(name)
            stream.create(retain_bytes=CURSOR_BYTES)
            once = Once(self._producer, 0, self._appends)
            server.run(partial(append_once, name, once, parts, JSON_TYPE))
            self._appends += 1
            end = parse_token(stream.head().offset) or (0, 0)
        return end[0] - len(parts)

    def read(self, name: str, first: int) -> Iterator[bytes]:
        with self._client() as client, client.stream(name).read(record=first) as reader:
            for page in reader.pages():
                yield from page.raws

    def delete(self, name: str) -> None:
        with self._client() as client:
            client.stream(name).delete(missing_ok=True)

    def _client(self) -> Client:
        return Client(self._connection.server, token=self._connection.token)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


def _text(coded: Coded) -> str:
    return msgspec.json.encode(coded).decode()


def size_of(coded: Coded) -> int:
    """Return the bytes of an offset as JSON."""
    return len(msgspec.json.encode(coded))
