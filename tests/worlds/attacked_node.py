"""A node of one core with tokens, under attack: what its other clients notice meanwhile, and the
longest turn of its loop."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import psutil
from free_ports import free_ports
from fuzz.kafka import Line
from kio.schema.create_topics.v5 import request as creation
from kio.schema.join_group.v5 import request as joining
from kio.static.primitive import i16, i32
from polling import wait_until
from product import RunningNode, polynya
from worlds.kafka import batch, produce_fields
from worlds.text_client import TextClient, text_address

TURN_SECONDS_MAX = 0.25  # of a loop's own CPU time
ANSWER_SECONDS_MAX = 8.0  # on a machine that has much else to do
_FLAGS = (
    "--cores", "1", "--groups", "4", "--auth-required", "--text-listen", "on", "--lake-interval", "0",
    "--kafka-listen", "127.0.0.1:0",
)  # fmt: skip


class AttackedNode:
    """The node and connections to its ports. `remote_admin`: the admin port that needs a token."""

    remote_admin: tuple[str, int]

    def __init__(self, node: RunningNode, token: str) -> None:
        self.node, self.token = node, token
        self.kafka, self.text = _address(node.kafka), _address(text_address(node))
        parts, admin = urlsplit(node.url), urlsplit(node.admin)
        self.http = (parts.hostname or "", parts.port or 0)
        self.admin = (admin.hostname or "", admin.port or 0)
        self.core = psutil.Process(node.process.pid).children()[0]
        self._longest_before = 0.0

    def line(self) -> Line:
        """Return a Kafka connection of the token."""
        line = Line(self.kafka)
        assert line.ask("SaslHandshake", 1, mechanism="PLAIN").error_code.value == 0
        answer = line.ask("SaslAuthenticate", 2, auth_bytes=f"\0root\0{self.token}".encode())
        assert answer.error_code.value == 0, answer
        return line

    def text_line(self) -> TextClient:
        """Return a connection of the text protocol with the token."""
        client = TextClient("{}:{}".format(*self.text))
        assert client.ask(f"AUTH {self.token}") == "OK"
        return client

    def create(self, topic: str, partitions: int = 1) -> None:
        """Create a topic."""
        line = self.line()
        wanted = creation.CreatableTopic(
            name=topic, num_partitions=i32(partitions), replication_factor=i16(1),
            assignments=(), configs=(),
        )  # fmt: skip
        made = line.ask(
            "CreateTopics", 5, topics=(wanted,), timeout=timedelta(seconds=60), validate_only=False
        )
        assert made.topics[0].error_code.value == 0, made
        line.socket.close()

    def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        content_type: str = "application/json",
        *,
        accept: str = "*/*",
    ) -> int:
        """Return the status of an HTTP request, once its answer has been read."""
        line = http.client.HTTPConnection(*self.http, timeout=120)
        bearer = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type}
        bearer["Accept"] = accept
        try:
            line.request(method, path, body, bearer)
            answer = line.getresponse()
            answer.read()
            return answer.status
        finally:
            line.close()

    def metric(self, name: str) -> float:
        """Return a metric without labels."""
        bearer = {"Authorization": f"Bearer {self.token}"}
        with urlopen(Request(f"{self.node.admin}/metrics", headers=bearer), timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(name + " ")).rsplit(" ", 1)[1])

    def begin_attack(self) -> None:
        """Count the turns of the loop from here on."""
        self._longest_before = self.metric("polynya_loop_turn_max_seconds")

    def turn_seconds(self) -> float:
        """Return the longest turn of the loop since the attack began, in its own CPU time; 0 where
        a former attack had a longer one: its own test has failed then, and only that."""
        longest = self.metric("polynya_loop_turn_max_seconds")
        return longest if longest > self._longest_before else 0.0

    def cpu_seconds(self) -> float:
        """Return the CPU time of the core."""
        spent = self.core.cpu_times()
        return float(spent.user + spent.system)

    def is_there(self) -> bool:
        """Report whether the core still runs, and has not been replaced."""
        return self.core.is_running() and self.core.status() != psutil.STATUS_ZOMBIE


class Bystander:
    """A client of the attacked node: it appends, produces and beats, and takes the time."""

    def __init__(self, node: AttackedNode) -> None:
        self.longest: dict[str, float] = dict.fromkeys(("append", "produce", "heartbeat"), 0.0)
        self.rounds = 0
        self._node = node
        self._ends = threading.Event()
        self._failed: list[BaseException] = []
        self._http = http.client.HTTPConnection(*node.http, timeout=60)
        self._line, self._member = node.line(), node.line()
        self._group = f"bystander-{time.monotonic_ns()}"  # of its own: no other test waits for it
        self._generation, self._name = self._joined()
        self._append("PUT", 201)
        self._produce()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.wait_rounds(2)  # one of them began after the attack
        self._ends.set()
        self._thread.join()
        for line in (self._line, self._member):
            line.socket.close()
        self._http.close()
        if kind is None and self._failed:
            raise self._failed[0]

    def wait_rounds(self, count: int) -> None:
        """Wait until it has appended, produced and beaten so often again."""
        end = self.rounds + count
        wait_until(lambda: self.rounds >= end or self._failed, what="rounds", seconds=150)

    def _run(self) -> None:
        acts = {"append": self._append, "produce": self._produce, "heartbeat": self._beat}
        try:
            while not self._ends.wait(0.01):
                for name, act in acts.items():
                    began = time.monotonic()
                    act()
                    self.longest[name] = max(self.longest[name], time.monotonic() - began)
                self.rounds += 1
        except BaseException as error:
            self._failed.append(error)

    def _append(self, method: str = "POST", status: int = 204) -> None:
        headers = {
            "Content-Type": "application/json", "Authorization": f"Bearer {self._node.token}"
        }  # fmt: skip
        body = b"[1]" if method == "POST" else b""
        self._http.request(method, f"/v1/stream/{self._group}", body, headers)
        answer = self._http.getresponse()
        content = answer.read()
        assert answer.status == status, (answer.status, content)

    def _produce(self) -> None:
        answer = self._line.ask("Produce", 9, **produce_fields("bystander", batch(b"x")))
        one = answer.responses[0].partition_responses[0]
        assert one.error_code.value == 0, one

    def _joined(self) -> tuple[int, str]:
        fields: dict[str, Any] = {
            "group_id": self._group, "session_timeout": timedelta(seconds=60),
            "rebalance_timeout": timedelta(seconds=60), "member_id": "", "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": (joining.JoinGroupRequestProtocol(name="range", metadata=b""),),
        }  # fmt: skip
        joined = self._member.ask("JoinGroup", 5, **fields)
        if joined.error_code.value:  # the member is to come again with its id
            joined = self._member.ask("JoinGroup", 5, **fields | {"member_id": joined.member_id})
        assert joined.error_code.value == 0, joined
        synced = self._member.ask(
            "SyncGroup", 3, group_id=self._group, generation_id=joined.generation_id,
            member_id=joined.member_id, group_instance_id=None, assignments=(),
        )  # fmt: skip
        assert synced.error_code.value == 0, synced
        return joined.generation_id, joined.member_id

    def _beat(self) -> None:
        answer = self._member.ask(
            "Heartbeat", 3, group_id=self._group, generation_id=i32(self._generation),
            member_id=self._name, group_instance_id=None,
        )  # fmt: skip
        assert answer.error_code.value == 0, answer


@contextmanager
def attacked_node(folder: Path, *flags: str) -> Iterator[AttackedNode]:
    """Run a node with a token and the topic of bystanders until `with` ends."""
    data = folder / "data"
    made = polynya("token", "create", "root", "--allow", "all,admin", "--data", str(data))
    assert made.code == 0, made.err
    (port,) = free_ports(1)
    node = RunningNode(data, (*_FLAGS, "--admin-listen", f"127.0.0.1:{port}", *flags))
    try:
        attacked = AttackedNode(node, made.out.strip())
        attacked.remote_admin = "127.0.0.1", port
        attacked.create("bystander")
        yield attacked
    finally:
        node.close()


@contextmanager
def unharmed(node: AttackedNode) -> Iterator[Bystander]:
    """Run a bystander during an attack until `with` ends; assert that it is served, and that the
    node's loop is never silent for long."""
    node.begin_attack()
    with Bystander(node) as bystander:
        yield bystander
    assert node.is_there(), "".join(node.node.log[-20:])
    turn = node.turn_seconds()
    assert turn < TURN_SECONDS_MAX, turn
    assert max(bystander.longest.values()) < ANSWER_SECONDS_MAX, bystander.longest


def send_all(address: tuple[str, int], data: bytes, seconds: float = 60.0) -> bytes:
    """Send bytes on a separate connection until it is closed; return the received ones."""
    found = b""
    with socket.create_connection(address, timeout=seconds) as line, suppress(ConnectionError):
        line.sendall(data)
        while piece := line.recv(65_536):
            found += piece
    return found


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
