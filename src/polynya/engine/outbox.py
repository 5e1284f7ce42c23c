"""Collect the Raft messages of a core's groups during a turn, and send them to each node at
once."""

from __future__ import annotations

from polynya.engine.membership import PeerLinks
from polynya.raft import Append, Message, SnapshotChunk, encode_block, encode_message


class Outbox:
    """The outgoing Raft messages of one core."""

    def __init__(self, links: PeerLinks) -> None:
        self._links = links
        self._small: dict[int, list[bytes]] = {}
        self._bulk: dict[int, list[bytes]] = {}

    def post(self, messages: list[Message]) -> None:
        """Queue the messages of one group. Entries that several members get are encoded once."""
        blocks: dict[int, bytes] = {}
        for message in messages:
            block = None
            if type(message) is Append:
                key = id(message.entries)
                block = blocks.get(key)
                if block is None:
                    block = blocks[key] = encode_block(message.entries)
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
