"""Older disk images that are restored, and the nodes' records of each other's journals: handshakes
above the product's `PeerJournalPositions`."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import msgspec
from sim.disk import Crash, SimDisk
from sim.process import NOBODY
from worlds.fake_disk import Inode

from polynya.transport import Hello, PeerJournalPositions, address
from polynya.wal import Journal

if TYPE_CHECKING:
    from sim.cluster import Node

KEEP_SECONDS = 5.0  # as `polynya.cluster.stale_copy`

Greeting = tuple[Hello, int]
"""Who a message is from, and how far the journal there was synced."""


class Image:
    """A disk image: its durable content, of a running or stopped machine."""

    def __init__(self, disk: SimDisk) -> None:
        self._files = {path: bytes(inode.durable) for path, inode in disk.durable_files.items()}
        self._locks = {path: bytes(inode.cached) for path, inode in disk.lock_files.items()}
        self._others = copy.deepcopy(disk.others)

    def onto(self, disk: SimDisk) -> None:
        disk.files = {path: _inode(content) for path, content in self._files.items()}
        disk.durable_files = dict(disk.files)
        disk.lock_files = {path: _inode(content) for path, content in self._locks.items()}
        disk.others = copy.deepcopy(self._others)


def _inode(content: bytes) -> Inode:
    inode = Inode()
    inode.cached, inode.durable = bytearray(content), bytearray(content)
    return inode


class Copied:
    """A part of the world."""

    random: Random
    older: set[int]
    noticed = 0  # that were kept out
    disks = 0  # so far
    broken: list[str]

    def new_disk(self, on_crash: Callable[[Crash], None]) -> SimDisk:
        """Make a disk that draws numbers which no other has had."""
        disk = SimDisk(Random(self.random.random()), on_crash)
        self.disks += 1
        disk.nonce = self.disks << 20
        return disk

    def put_back(self, node: Node, image: Image) -> None:
        """Restore an earlier disk content. The node is down before, and until `start`."""
        node.lose_disk()
        image.onto(node.disk)
        self.older.add(node.number)

    def is_older(self, node: Node, life: int) -> None:
        """Stop the node if a peer recorded a later journal position, and start it without its
        data, as an operator is told to do."""
        if not node.alive or node.life != life:
            return  # what it sent in a life before comes late
        if node.number not in self.older:
            self.broken.append(
                f"node {node.number} has lost nothing, and is kept out as an older copy of itself"
            )
            return

        def replaced() -> None:
            if node.alive and node.life == life and node.number in self.older:
                self.noticed += 1
                node.kill()
                node.lose_disk()
                node.start()

        asyncio.get_running_loop().call_soon(replaced, context=NOBODY)


class Greeter:
    """Handshake of one incarnation of a node: it accepts peers or reports the refusal, as real
    connections do."""

    def __init__(self, node: Node, journal: Journal) -> None:
        self._node, self._journal = node, journal
        about = Hello(4, 4, "sim", node.world.history, 0, node.number, 0, 1, "")
        self._hello = msgspec.structs.replace(
            about, journal=journal.begun, opened=journal.opened, incarnation=node.life
        )
        self._kept = asyncio.get_running_loop().time()
        self.peer_positions = PeerJournalPositions()
        self.peer_positions.restore(copy.deepcopy(node.disk.others))
        self.met: set[tuple[int, int]] = set()

    def said(self) -> Greeting:
        return self._hello, self._journal.settled

    def lets_in(self, sender: Node, said: Greeting) -> bool:
        """Report whether both accept each other, while the sender's incarnation lives."""
        hello, synced = said
        if (hello.node, hello.incarnation) not in self.met:
            if self.peer_positions.rejection(hello):
                self._node.world.is_older(sender, hello.incarnation)
                return False
            if (
                sender.alive
                and sender.life == hello.incarnation
                and sender.greeter.peer_positions.rejection(self._hello)
            ):
                self._node.world.is_older(self._node, self._hello.incarnation)
                return False
            self.peer_positions.record_accepted(hello)
            self.met.add((hello.node, hello.incarnation))
        self.peer_positions.record_synced(address(hello.node, 0), hello.journal, synced)
        now = asyncio.get_running_loop().time()
        if self.peer_positions.dirty and now - self._kept > KEEP_SECONDS:
            self._node.disk.others, self.peer_positions.dirty, self._kept = (
                copy.deepcopy(self.peer_positions.saved()),
                False,
                now,
            )
        return True
