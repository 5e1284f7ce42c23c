"""Transactional Kafka clients during a rolling upgrade: they begin under the older release and try
until they are served. Before all nodes are new each broker refuses them, and those of the new
release name the level; afterwards they work, also where a topic becomes diskless."""

from __future__ import annotations

import asyncio
import re
import struct
import time
from contextlib import suppress

import msgspec

from chaos import kafka_clients
from chaos.kafka_clients import KafkaProcess
from chaos.nodes import Cluster
from chaos.proxy import Address
from chaos.releases import Release
from chaos.transaction_clients import DISKLESS, TransactionsFound
from chaos.transaction_watch import TransactionWatch

ID = "upgrade-tx"
ANSWER_SECONDS = 10.0
MOVED_SECONDS = 90.0  # a client may have to wait for its next try
FIND_COORDINATOR, VERSION, OF_TRANSACTIONS = 10, 1, 1
COORDINATOR_NOT_AVAILABLE, NOT_ALLOWED = 15, 53
RETRIED = (COORDINATOR_NOT_AVAILABLE, 16)


class Refusal(msgspec.Struct):
    """A broker's answer to FindCoordinator; no error: it names the coordinator."""

    error: int
    message: str


class UpgradeTransactions:
    """The clients of one run. `wrong`: what was not as docs/transactions.md says."""

    def __init__(self, cluster: Cluster, old: Release, new: Release, seed: int) -> None:
        self.wrong: list[str] = []
        self.found: TransactionsFound | None = None
        self._cluster, self._old, self._new = cluster, old, new
        self._watch = TransactionWatch(cluster, seed)
        self._process = KafkaProcess(cluster.kafka_servers, seed, 0.1, transactions_only=True)
        self._tasks: list[asyncio.Task[None]] = []

    @staticmethod
    def why_not(old: Release) -> str:
        """Return why there are none; empty if there can be."""
        if not (old.source / "polynya" / "front" / "kafka").exists():
            return "the old release does not speak Kafka's protocol"
        return kafka_clients.why_not()

    async def start(self) -> None:
        await self._process.start()

    async def check_refused(self) -> None:
        """Check that no broker names a coordinator, and that those of the new release say why."""
        for number, node in self._cluster.nodes.items():
            if number in self._cluster.readers:
                continue
            said = await self._coordinator(number)
            if node.source == self._new.source:
                level = re.search(r"level (\d+)", said.message)
                is_clear = said.error == COORDINATOR_NOT_AVAILABLE and level is not None
                is_clear = is_clear and int(level[1]) > self._old.level  # type: ignore[index]
            else:
                is_clear = said.error == NOT_ALLOWED
            if not is_clear:
                self.wrong.append(f"node {number} answers a transactional client with {said}")

    async def check_work(self) -> None:
        """Check that each partition gets committed records, and once more as another profile."""
        for number in self._cluster.numbers:
            if (said := await self._settled(number)).error:
                self.wrong.append(f"node {number} refuses a transactional client: {said}")
        await self._check_moves("after the upgrade")
        await self._watch.change(DISKLESS, "diskless")
        self._tasks = [
            asyncio.create_task(each) for each in (self._watch.read(), self._watch.switch())
        ]
        await self._check_moves("with diskless topics")

    async def _check_moves(self, when: str) -> None:
        standing = await self._watch.until_moved(await self._watch.ends(), MOVED_SECONDS)
        if standing:
            self.wrong.append(f"{when} {standing}")

    async def finish(self) -> None:
        """Stop the clients and judge what they saw."""
        for task in self._tasks:
            task.cancel()
        healed = time.monotonic()
        await self._process.stop()
        await self._process.finish({}, 30.0)
        await self._watch.finish()
        self.found = self._process.found.transactions
        history = self.found.history
        history.healed = healed
        history.polls += self._watch.polls
        history.held += self._watch.held
        self.wrong += [*self._process.found.wrong, *self._watch.wrong, *self.found.wrong()]

    def close(self) -> None:
        self._process.close()

    async def _settled(self, number: int) -> Refusal:
        """Ask until there is an answer that a client does not retry, or for a while."""
        deadline = time.monotonic() + MOVED_SECONDS
        while True:
            said = await self._coordinator(number)
            if said.error not in RETRIED or time.monotonic() > deadline:
                return said
            await asyncio.sleep(0.2)

    async def _coordinator(self, number: int) -> Refusal:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await find_coordinator(self._cluster.network.kafka(number), ID)
        except (OSError, TimeoutError, EOFError) as fault:
            return Refusal(-1, repr(fault))


async def find_coordinator(address: Address, id_: str) -> Refusal:
    """Ask one broker for the coordinator of a transactional id. Raises OSError, EOFError."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        key = id_.encode()
        body = struct.pack(">hhih", FIND_COORDINATOR, VERSION, 1, -1)
        body += struct.pack(">h", len(key)) + key + struct.pack(">b", OF_TRANSACTIONS)
        writer.write(struct.pack(">i", len(body)) + body)
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        answer = await reader.readexactly(length)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    error, size = struct.unpack_from(">hh", answer, 8)  # behind the number and the throttling
    return Refusal(error, answer[12 : 12 + max(0, size)].decode())
