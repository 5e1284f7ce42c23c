"""A node under Kafka clients that know what must be answered, and others that send nonsense: whole
messages of random values in each version, damaged ones, pieces, pipelines, and silence.

A keeper has a topic of its own. It writes as an idempotent producer, also twice, and reads back what
it wrote. Whatever a vandal sends, its connection gets answers or is closed.
"""

from __future__ import annotations

import contextlib
import io
import random
import socket
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch
from fuzz.bytes import Outcome, damaged, noise
from fuzz.play import Cores, Wrong, play_all
from kio.schema.metadata.v4 import request as metadata
from kio.serial import entity_reader, entity_writer
from product import polynya, running_node
from wire.kafka.kio_values import kio_class, random_kio
from worlds.kafka import batch, fetch_fields, frame, produce_fields
from worlds.wide_requests import wide_requests

from polynya.wire.kafka.batches import batches_of
from polynya.wire.kafka.messages import APIS

PATIENCE_SECONDS = 40.0
KEEPERS, VANDALS = 2, 3
SITTERS_MAX = 40
DRAIN_SECONDS = 0.05
WIDE = list(wide_requests())
FETCH_API = next(api for api in APIS.values() if api.name == "Fetch")


class Line:
    """A connection that asks and reads in turn."""

    def __init__(self, address: tuple[str, int], token: str = "") -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE_SECONDS)
        if token:
            self.ask("SaslHandshake", 1, mechanism="PLAIN")
            answer = self.ask("SaslAuthenticate", 2, auth_bytes=f"\0x\0{token}".encode())
            assert answer.error_code.value == 0, answer

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        """Return kio's answer. Raises Wrong."""
        self.socket.sendall(frame(name, version, 7, **fields))
        body = self._exactly(int.from_bytes(self._exactly(4)))
        api = next(api for api in APIS.values() if api.name == name)
        if int.from_bytes(body[:4]) != 7:
            raise Wrong(f"the answer to 7 is for {int.from_bytes(body[:4])}")
        at = 5 if version >= api.flexible and name != "ApiVersions" else 4
        return entity_reader(kio_class(api, version, "response"))(body, at)[0]

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            try:
                more = self.socket.recv(size - len(found))
            except TimeoutError:
                raise Wrong(f"no answer within {PATIENCE_SECONDS:g} s") from None
            if not more:
                raise Wrong(f"closed after {len(found)} of {size} bytes of an answer")
            found += more
        return found


class Keeper:
    """A keeper that writes to its topic and reads its records back."""

    def __init__(
        self, chance: random.Random, number: int, address: tuple[str, int], token: str
    ) -> None:
        self.chance, self.number, self.topic = chance, number, f"keeper.{number}"
        self.counts: Counter[str] = Counter()
        self.written: list[bytes] = []
        self.line = Line(address, token)
        found = self.line.ask(
            "Metadata",
            4,
            topics=(metadata.MetadataRequestTopic(name=self.topic),),
            allow_auto_topic_creation=True,
        )
        assert found.topics[0].error_code.value == 0, found
        made = self.line.ask(
            "InitProducerId",
            1,
            transactional_id=None,
            transaction_timeout=timedelta(seconds=1),
        )
        self.producer = made.producer_id

    def act(self) -> None:
        if self.chance.random() < 0.6:
            self._write()
        else:
            self._read()

    def finish(self) -> None:
        for _ in range(2):
            self._read()
        self.line.socket.close()

    def _write(self) -> None:
        values = [noise(self.chance) for _ in range(self.chance.choice((1, 1, 2, 20)))]
        sent = batch(*values, producer=(self.producer, 0, len(self.written)))
        for _ in range(self.chance.choice((1, 1, 2))):
            answer = self.line.ask("Produce", 9, **produce_fields(self.topic, sent))
            one = answer.responses[0].partition_responses[0]
            if (one.error_code.value, one.base_offset) != (0, len(self.written)):
                raise Wrong(f"a batch at {len(self.written)} was answered {one}")
            self.counts["batches"] += 1
        self.written += values

    def _read(self) -> None:
        first = self.chance.randrange(len(self.written) + 1)
        answer = self.line.ask("Fetch", 11, **fetch_fields(self.topic, first))
        one = answer.responses[0].partitions[0]
        if one.error_code.value or one.high_watermark != len(self.written):
            raise Wrong(f"a fetch at {first} of {len(self.written)} was answered {one}")
        for each in batches_of(one.records or b""):
            for record in DefaultRecordBatch(bytes(each)):
                if record.value != self.written[record.offset]:
                    raise Wrong(f"record {record.offset} is {record.value!r}")
        self.counts["fetches"] += 1


class Vandal:
    """A vandal that sends malformed data, before and after authentication."""

    def __init__(
        self, chance: random.Random, number: int, address: tuple[str, int], token: str
    ) -> None:
        self.chance, self.number, self.address, self._token = chance, number, address, token
        self.counts: Counter[str] = Counter()
        self._sitters: list[socket.socket] = []

    def act(self) -> None:
        """Open one connection, and send some requests."""
        chance = self.chance
        with contextlib.suppress(OSError):  # closed by the node, as it may
            token = self._token if chance.random() < 0.7 else ""
            line = Line(self.address, token).socket
            self._sitters.append(line)
            if len(self._sitters) > SITTERS_MAX:
                self._sitters.pop(0).close()
            for _ in range(chance.choice((1, 1, 3, 70))):
                self._send(line, self._request())
            if chance.random() < 0.3:
                line.shutdown(socket.SHUT_WR)
            line.settimeout(DRAIN_SECONDS)
            while chance.random() < 0.9 and line.recv(65_536):
                pass
            if chance.random() < 0.8:
                line.close()

    def finish(self) -> None:
        for each in self._sitters:
            each.close()

    def _send(self, line: socket.socket, data: bytes) -> None:
        if data and self.chance.random() < 0.2:
            cut = self.chance.randrange(len(data))
            line.sendall(data[:cut])
            data = data[cut:]
        line.sendall(data)
        self.counts["requests"] += 1

    def _request(self) -> bytes:
        chance = self.chance
        drawn = chance.random()
        if drawn < 0.08:
            return noise(chance)
        if drawn < 0.1:
            self.counts["large requests"] += 1
            return chance.choice(WIDE).frame(chance.choice((1000, 19_990, 39_990)))
        api = chance.choice(list(APIS.values()))
        version = chance.choice(api.versions)
        message = random_kio(kio_class(api, version, "request"), chance)
        if api is FETCH_API:
            message = replace(message, max_wait=timedelta(milliseconds=chance.randrange(100)))
        buffer = io.BytesIO()
        entity_writer(type(message))(buffer, message)
        shown = version if drawn < 0.9 else chance.randrange(-2, 30)
        head = api.key.to_bytes(2) + shown.to_bytes(2, signed=True) + bytes(4) + b"\0\1v"
        body = head + (b"\0" if version >= api.flexible else b"") + buffer.getvalue()
        if drawn < 0.5:
            body = damaged(chance, body)
        size = len(body) if chance.random() < 0.9 else chance.choice((0, -1, 7, 1 << 30, 1 << 24))
        return size.to_bytes(4, signed=True) + body


def fuzz_kafka(seed: int, folder: Path, *, rounds: int = 0, seconds: float = 0.0) -> Outcome:
    """Fuzz Kafka for a number of actions per client, or for a time."""
    outcome = Outcome()
    data = folder / "data"
    token = polynya("token", "create", "x", "--allow", "all,admin", "--data", str(data)).out.strip()
    with running_node(data, "--cores", "2", "--auth-required") as node:
        host, _, port = node.kafka.rpartition(":")
        cores = Cores(node.process.pid)
        clients = [
            kind(random.Random(f"{seed}-{number}"), number, (host, int(port)), token)
            for number, kind in enumerate([Keeper] * KEEPERS + [Vandal] * VANDALS)
        ]
        play_all(outcome, seed, clients, [node.admin], rounds, seconds, token=token)
        outcome.wrong += cores.aftermath(node.log)
        outcome.wrong += [line for line in node.log if "a Kafka request failed" in line][:3]
    return outcome
