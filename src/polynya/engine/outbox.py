"""Collect the Raft messages of a core's groups during a turn, and send them to each node at
once."""

from __future__ import annotations

from collections import defaultdict

from polynya.engine.membership import PeerLinks
from polynya.raft import (
    Append,
    Entry,
    EntryKind,
    Message,
    SnapshotChunk,
    encode_block,
    encode_message,
)
from polynya.replica.log import has_payload


class Outbox:
    """The outgoing Raft messages of one core."""

    def __init__(self, links: PeerLinks) -> None:
        self._links = links
        self._small: dict[int, list[bytes]] = {}
        self._bulk: dict[int, list[bytes]] = {}
        self.payload: defaultdict[int, int] = defaultdict(int)  # bytes of appends to each node

    def post(self, messages: list[Message]) -> None:
        """Queue the messages of one group. Entries that several members get are encoded once."""
        blocks: dict[int, tuple[bytes, int]] = {}
        for message in messages:
            block = None
            if type(message) is Append:
                key = id(message.entries)
                if key not in blocks:
                    blocks[key] = encode_block(message.entries), _payload_of(message.entries)
                block, payload = blocks[key]
                self.payload[message.to] += payload
            outbox = self._bulk if type(message) is SnapshotChunk else self._small
            outbox.setdefault(message.to, []).append(encode_message(message, block))

    def send(self) -> None:
        """Send all queued messages."""
        if self._small:
            small, self._small = self._small, {}
            for node, messages in small.items():
                self._links.send(node, messages)
        if self._bulk:
            bulk, self._bulk = self._bulk, {}
            for node, messages in bulk.items():
                self._links.send_bulk(node, messages)


def _payload_of(entries: list[Entry]) -> int:
    return sum(
        len(entry.payload)
        for entry in entries
        if entry.kind == EntryKind.COMMAND and has_payload(entry.payload)
    )
