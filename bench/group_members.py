"""Members of one group of the consumer protocol (KIP-848) until all partitions are assigned.
`python -m bench.group_members [--members 100] [--partitions 1000] [--server HOST:PORT]`.

Each member has a connection of its own, joins, and sends a heartbeat as soon as it has the answer to
the last one, with what it was told that it has. Prints the seconds until the shares are equal and
confirmed, and the heartbeats that it took. The server is a node, or any other server of the
protocol with one broker, such as Kafka 4.3.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import time

from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "members"
_HEARTBEAT = 68
SECONDS = 120.0


class Member:
    """One member and its connection."""

    def __init__(self, number: int, group: str) -> None:
        self.id, self.group = f"member-{number}", group
        self.epoch, self.beats = 0, 0
        self.owned: dict[bytes, list[int]] = {}
        self.confirmed = False

    @property
    def count(self) -> int:
        return sum(map(len, self.owned.values()))

    async def run(self, host: str, port: int, is_over: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            while not is_over.is_set():
                claim = dict(self.owned)
                writer.write(self._request())
                size = int.from_bytes(await reader.readexactly(4))
                self._take(await reader.readexactly(size))
                self.beats += 1
                self.confirmed = claim == self.owned
        finally:
            writer.close()

    def _request(self) -> bytes:
        claim = b"".join(
            topic + _count(len(numbers)) + struct.pack(f">{len(numbers)}i", *numbers) + b"\0"
            for topic, numbers in self.owned.items()
        )
        body = b"".join(
            (
                _text(self.group), _text(self.id), struct.pack(">i", self.epoch),
                b"\0\0", struct.pack(">i", 60_000),  # no instance, no rack
                _count(1), _text(TOPIC), b"\0\0",  # no expression, no assignor
                _count(len(self.owned)), claim, b"\0",
            )
        )  # fmt: skip
        head = struct.pack(">hhih", _HEARTBEAT, 1, self.beats, 5) + b"bench\0"
        return struct.pack(">i", len(head) + len(body)) + head + body

    def _take(self, data: bytes) -> None:
        error = int.from_bytes(data[9:11], signed=True)  # after the header and the throttle time
        at = 11 + max(1, data[11])
        if error:
            raise SystemExit(f"error {error}: {data[12:at].decode()}")
        at += max(1, data[at])
        self.epoch, _ = struct.unpack_from(">ii", data, at)
        at += 8
        if data[at] == 0xFF:
            return
        topics, at = _read_count(data, at + 1)
        self.owned = {}
        for _ in range(topics):
            topic = data[at : at + 16]
            count, at = _read_count(data, at + 16)
            self.owned[topic] = list(struct.unpack_from(f">{count}i", data, at))
            at += 4 * count + 1


def _text(text: str) -> bytes:
    return _count(len(text)) + text.encode()


def _count(count: int) -> bytes:
    count, found = count + 1, b""
    while count > 127:
        found, count = found + bytes((count & 127 | 128,)), count >> 7
    return found + bytes((count,))


def _read_count(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value - 1, at


async def assigned(server: str, members: int, partitions: int) -> tuple[float, int]:
    """Return the seconds until all partitions are assigned and confirmed, and the heartbeats."""
    host, _, port = server.partition(":")
    group, is_over = f"members-{time.time_ns()}", asyncio.Event()
    all_members = [Member(number, group) for number in range(members)]
    began = time.perf_counter()
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        for each in all_members:
            tasks.create_task(each.run(host, int(port), is_over))
        least = partitions // members
        while not (
            sum(each.count for each in all_members) == partitions
            and all(each.confirmed and each.count in (least, least + 1) for each in all_members)
        ):
            await asyncio.sleep(0.005)
        took = time.perf_counter() - began
        is_over.set()
    return took, sum(each.beats for each in all_members)


def measure(server: str, members: int, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": server})
    if TOPIC not in admin.list_topics(timeout=SECONDS).topics:
        admin.create_topics([NewTopic(TOPIC, partitions)])[TOPIC].result(SECONDS)
    took, beats = asyncio.run(assigned(server, members, partitions))
    print(f"{members} members, {partitions} partitions: {took:.2f} s, {beats} heartbeats")
    print(f"{took / beats * 1e6:.0f} us for each heartbeat, the client included")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--server", default="127.0.0.1:9092", metavar="HOST:PORT")
    options = parser.parse_args()
    measure(options.server, options.members, options.partitions)


if __name__ == "__main__":
    main()
