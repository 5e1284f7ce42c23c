"""Transactions on one stream: their batches, and the markers that a coordinator would send."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import google_crc32c
import pytest
from msgspec import structs
from worlds.kafka import batch as record_batch
from worlds.stream import kafka_producer

from polynya.stream.command import RULES, Command
from polynya.stream.features.appends.commands import Produce, TxnProduce
from polynya.stream.features.appends.transactions import end_transaction
from polynya.stream.features.lifetimes.commands import Touch
from polynya.stream.features.markers.commands import TxnMarkers
from polynya.stream.features.markers.control_batch import control_batch
from polynya.stream.machine import Machine
from polynya.stream.parts import TRANSACTIONAL, Batch, Encoding
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import Stream

ABORTING = 100  # transactions of producers from this id on are aborted
DECIDED_MS = 5000  # of all decisions
_ATTRIBUTES_AT, _CRC_AT, _CRC_FROM = 21, 17, 21


def plant_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `Touch` end transactions that are planted in a state: of each uid, that of the producer in
    place of the time."""

    def apply(machine: Machine, command: Touch, position: int) -> Reply:
        for uid, producer in command.touches:
            end_transaction(machine, machine.directory.by_uid[uid], producer)
        return Reply(Code.OK)

    monkeypatch.setitem(RULES, Touch, apply)


def marker_batch(producer: int, *, commit: bool) -> bytes:
    """Build the control batch at the end of a transaction."""
    key = struct.pack(">hh", 0, int(commit))
    value = struct.pack(">hi", 0, 0)
    record = b"\0\0\0" + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    body = bytes([2 * len(record)]) + record
    head = struct.pack(">hiqqqhii", 0x30, 0, 5000, 5000, producer, 0, -1, 1)
    crc = google_crc32c.value(head + body)
    return struct.pack(">qiibI", 0, len(head + body) + 9, 0, 2, crc) + head + body


def data_batch(producer: int, sequence: int, *values: bytes, epoch: int = 0) -> bytes:
    """Build a transactional batch."""
    made = bytearray(record_batch(*values, producer=(producer, epoch, sequence)))
    struct.pack_into(">h", made, _ATTRIBUTES_AT, 0x10)
    struct.pack_into(">I", made, _CRC_AT, google_crc32c.value(bytes(made[_CRC_FROM:])))
    return bytes(made)


def stored(payload: bytes, records: int, flags: int = 0) -> Batch:
    return Batch(Encoding.KAFKA, records, payload, int(google_crc32c.value(payload)), flags=flags)


class Planter:
    """A coordinator and its clients that write to one Kafka stream. `send` applies a command."""

    def __init__(
        self, name: str, stream: Callable[[], Stream], send: Callable[[Command, str], Any]
    ) -> None:
        self.name, self._stream, self._send = name, stream, send
        self._sequences: dict[int, int] = {}
        self._numbers: dict[int, int] = {}  # of the transactions that ended last
        self.now_ms = 1

    async def write(self, *values: bytes, producer: int = -1) -> None:
        """Append a batch, of a producer's transaction if it has an id; that begins with it."""
        command = Produce(self.name, self.now_ms, stored(record_batch(*values), len(values)))
        if producer >= 0:
            first = self._sequences.get(producer, 0)
            self._sequences[producer] = first + len(values)
            command = TxnProduce(
                self.name,
                self.now_ms,
                stored(data_batch(producer, first, *values), len(values), TRANSACTIONAL),
                kafka_producer(producer, 0, first, len(values)),
                txn=self._numbers.get(producer, 0) + 1,
            )
        await self._done(command)

    async def end(self, producer: int, *, commit: bool = False) -> None:
        """End the transaction: those of producers from 100 on abort, unless `commit`."""
        await self._done(self.marker(producer, commit=commit or producer < ABORTING))

    @property
    def uid(self) -> int:
        """Return the uid of the stream."""
        return self._stream().uid

    def marker(self, producer: int, *, commit: bool, uid: int = 0) -> TxnMarkers:
        """Return the command that ends the next transaction of a producer. `uid`: that of the
        stream, if its state is not here."""
        number = self._numbers[producer] = self._numbers.get(producer, 0) + 1
        marker = control_batch(producer, 0, commit=commit, decided_ms=DECIDED_MS)
        uids = [(uid or self.uid, self.name)]
        return TxnMarkers(producer, 0, number, commit, marker, uids, [], self.now_ms)

    async def _done(self, command: Command) -> None:
        reply = await self._send(structs.replace(command, now_ms=self.now_ms), self.name)
        assert reply.code == Code.OK, reply
