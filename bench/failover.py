"""Latency for writers when one of three nodes crashes, pauses, is partitioned or is slow, and when
it returns. `python -m bench.failover [FAULT …]`.

Sixty writers each have a stream of their own and one append in flight, due at a fixed rate;
each node serves a third of them. Latency counts from the due time of an append to its
acknowledgement, retries included. The same idempotent producer retries a rejected or lost
append, through another node if the first does not answer. Each fault starts on a healthy
cluster, lasts `--seconds` and is then healed. The same time again covers the recovery. Nodes
live in network namespaces (root, `ip`, `iptables`, `tc`); without these, the faults that need
them are skipped."""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import uvloop

from bench import _results
from bench._nodes import machine
from bench._rounds import Runs
from bench.mixed import percentile
from chaos import network, shim
from chaos.disks import Folder
from chaos.nodes import FIRST, SOURCE, Node
from chaos.wire import Connection, Lost, Unsent, ask_once
from polynya.base.names import group_of

ANSWER_SECONDS = 1.0  # a client that has no answer by then goes to another node …
AWAY_SECONDS = 3.0  # … for so long
AGAIN_SECONDS = 0.02  # one that is refused tries again after this
WELL_SECONDS = 120.0


class Three:
    """The nodes of one run, with certificates, on namespaces or on loopback."""

    def __init__(self, folder: Path, groups: int) -> None:
        self.folder, self.groups = folder, groups
        kind = network.Loopback if network.why_not() else network.Namespaces
        self.network = kind(FIRST, f"pfo{time.monotonic_ns() % 100_000}")
        self.library, _ = shim.build(folder)
        self.nodes: dict[int, Node] = {}

    def start(self) -> None:
        self.network.start()
        ca = self.folder / "ca"
        command = [
            sys.executable,
            "-m",
            "polynya",
            "cluster",
            "ca",
            str(ca),
            *(f"--node={number}" for number in FIRST),
        ]
        subprocess.run(command, check=True, capture_output=True, env={"PYTHONPATH": str(SOURCE)})
        cluster = secrets.token_hex(16)
        for number in FIRST:
            orders = (
                shim.Orders(self.folder / f"node-{number}.orders")
                if self.library is not None
                else None
            )
            variables = (
                orders.variables(self.library)
                if orders is not None and self.library is not None
                else {}
            )
            node = Node(
                number,
                Folder(self.folder / f"node-{number}"),
                self.network.inside(number),
                variables,
                orders,
            )
            node.config.write_text("\n".join([*self._settings(number, cluster, ca), ""]))
            self.nodes[number] = node
            node.start()

    def _settings(self, number: int, cluster: str, ca: Path) -> Iterable[str]:
        yield 'listen = "{}:{}"'.format(*self.network.http(number))
        yield (
            f'data = "{self.folder}/node-{number}/data"\ncores = 1\ngroups = {self.groups}\n'
            "unsafe_no_auth = true"
        )
        yield (
            f'[cold]\nroot = "{self.folder}/objects"\n[cluster]\nid = "{cluster}"\nnode = '
            f'{number}\nca = "{ca}/ca.crt"'
        )
        yield f'cert = "{ca}/node-{number}.crt"\nkey = "{ca}/node-{number}.key"'
        for other in FIRST:
            peer, http = self.network.peer(other), self.network.http(other)
            yield (
                f'[[cluster.nodes]]\nid = {other}\npeer = "{peer[0]}:{peer[1]}"\nhttp = '
                f'"http://{http[0]}:{http[1]}"'
            )

    async def look(self, path: str, number: int = 1) -> dict[str, Any] | None:
        try:
            answer = await ask_once(self.network.http(number), "GET", path, seconds=5.0)
        except (Lost, Unsent):
            return None
        return dict(json.loads(answer.body)) if answer.status == 200 else None

    async def well(self) -> None:
        """Wait until all nodes agree and preferred leaders lead."""
        deadline = time.monotonic() + WELL_SECONDS
        while time.monotonic() < deadline:
            if all(
                [await self.look("/v1/cluster/health", number) for number in FIRST]
            ) and self._home(await self.look("/v1/cluster")):
                return
            await asyncio.sleep(0.5)
        raise SystemExit(f"the cluster does not become well: {await self.look('/v1/cluster')}")

    def _home(self, view: dict[str, Any] | None) -> bool:
        return view is not None and all(
            group["leader"] == group["first"] for group in view["groups"]
        )

    async def close(self) -> None:
        for node in self.nodes.values():
            await node.kill()
        self.network.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def shape(self, number: int, *what: str) -> None:
        """Set `tc qdisc add dev eth0 root …` on a node's interface; without arguments: reset it."""
        subprocess.run(
            [*self.network.inside(number), "tc", "qdisc", "del", "dev", "eth0", "root"],
            capture_output=True,
            check=False,
        )
        if what:
            subprocess.run(
                [*self.network.inside(number), "tc", "qdisc", "add", "dev", "eth0", "root", *what],
                check=True,
            )

    def silence(self, number: int, *, over: bool = False) -> None:
        """Drop all packets from and to the node, also its clients'; `over`: no longer."""
        for chain in ("INPUT", "OUTPUT"):
            rule = ["-F", chain] if over else ["-A", chain, "-j", "DROP"]
            subprocess.run([*self.network.inside(number), "iptables", *rule], check=True)


Fault = Callable[[Three, Node, float], Awaitable[None]]


async def kill(three: Three, node: Node, seconds: float) -> None:
    await node.kill()
    await asyncio.sleep(seconds)
    node.start()


async def wipe(three: Three, node: Node, seconds: float) -> None:
    await node.kill()
    await asyncio.sleep(seconds)
    node.wipe()
    node.start()


async def term(three: Three, node: Node, seconds: float) -> None:
    await asyncio.gather(node.stop(), asyncio.sleep(seconds))
    node.start()


async def stop(three: Three, node: Node, seconds: float) -> None:
    node.signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    node.signal(signal.SIGCONT)


async def flap(three: Three, node: Node, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        node.signal(signal.SIGSTOP)
        await asyncio.sleep(0.7)
        node.signal(signal.SIGCONT)
        await asyncio.sleep(0.7)


async def silence(three: Three, node: Node, seconds: float) -> None:
    three.silence(node.number)
    await asyncio.sleep(seconds)
    three.silence(node.number, over=True)


async def far(three: Three, node: Node, seconds: float) -> None:
    three.shape(node.number, "netem", "delay", "200ms")
    await asyncio.sleep(seconds)
    three.shape(node.number)


async def slow_disk(three: Three, node: Node, seconds: float) -> None:
    assert node.orders is not None
    node.orders.give(sync_delay_us=200_000)
    await asyncio.sleep(seconds)
    node.orders.heal()


async def stuck_disk(three: Three, node: Node, seconds: float) -> None:
    assert node.orders is not None
    node.orders.give(sync_delay_us=5_000_000)
    await asyncio.sleep(seconds)
    node.orders.heal()


FAULTS: dict[str, tuple[str, Fault]] = {
    "kill": ("kill -9, then started again", kill),
    "wipe": ("kill -9, then started on an empty disk", wipe),
    "term": ("SIGTERM, then started again", term),
    "stop": ("SIGSTOP, then SIGCONT", stop),
    "silence": ("no packet passes, as when the power is off", silence),
    "flap": ("SIGSTOP and SIGCONT every 0.7 s", flap),
    "far": ("200 ms farther away, both ways 200 more", far),
    "slow-disk": ("each fsync 200 ms longer", slow_disk),
    "stuck-disk": ("each fsync 5 s longer", stuck_disk),
}
# not in every kernel
NETEM = [
    "unshare",
    "--net",
    "tc",
    "qdisc",
    "add",
    "dev",
    "lo",
    "root",
    "netem",
    "delay",
    "1ms",
]
NEEDS_NETWORK, NEEDS_SHIM = ("silence", "far"), ("slow-disk", "stuck-disk")


class Writer:
    """One stream, one append at a time; `done` has (due, acknowledged) in seconds."""

    def __init__(self, three: Three, number: int, rate: float) -> None:
        self.name, self.node, self._three, self._step = (
            f"failover/{number}",
            FIRST[number % len(FIRST)],
            three,
            1 / rate,
        )
        self.group = group_of(self.name, three.groups)
        self.done: list[tuple[float, float]] = []
        self.refused: list[tuple[float, int]] = []  # when, and the status; 0: no answer
        self._connections: dict[int, Connection] = {}
        self._at, self._back = self.node, 0.0  # where it goes now, and when to its own node again

    async def run(self, until: float, body: bytes) -> None:
        due, sequence = time.monotonic() + self._step * (hash(self.name) % 97) / 97, 0
        while due < until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._at = self.node if time.monotonic() >= self._back else self._at
            await self._append(sequence, body)
            self.done.append((due, time.monotonic()))
            sequence, due = sequence + 1, due + self._step
        for connection in self._connections.values():
            connection.close()

    async def _append(self, sequence: int, body: bytes) -> None:
        headers = {
            "content_type": "text/plain",
            "producer_id": "p",
            "producer_epoch": "0",
            "producer_seq": str(sequence),
        }
        while True:
            status = await self._try("POST", body, headers)
            if status in (200, 201, 204):
                return
            if 400 <= status < 500:
                raise SystemExit(f"an append of {self.name} got {status}")
            self.refused.append((time.monotonic(), status))
            if status:
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                self._at, self._back = self._at % len(FIRST) + 1, time.monotonic() + AWAY_SECONDS

    async def _try(self, method: str, body: bytes, headers: dict[str, str]) -> int:
        connection = self._connections.get(self._at)
        if connection is None:
            connection = self._connections[self._at] = Connection(
                *self._three.network.http(self._at)
            )
        try:
            return (
                await connection.ask(
                    method, f"/v1/stream/{self.name}", body, seconds=ANSWER_SECONDS, **headers
                )
            ).status
        except (Lost, Unsent):
            connection.close()
            del self._connections[self._at]
            return 0

    async def create(self) -> None:
        while await self._try("PUT", b"", {"content_type": "text/plain"}) not in (200, 201):
            await asyncio.sleep(0.2)


async def measure(name: str, arguments: argparse.Namespace) -> list[dict[str, object]]:
    folder = Path(tempfile.mkdtemp(prefix="bench-failover-", dir=arguments.directory))
    three = Three(folder, arguments.groups)
    try:
        three.start()
        await three.well()
        writers = [Writer(three, number, arguments.rate) for number in range(arguments.writers)]
        for writer in writers:
            await writer.create()
        view = await three.look("/v1/cluster")
        assert view is not None
        leaders = {group["group"]: group["leader"] for group in view["groups"]}  # type: ignore[attr-defined]
        lost = FIRST[-1]
        seconds = arguments.seconds
        began = time.monotonic() + 1.0
        ends = [began, began + seconds, began + 2 * seconds, began + 3 * seconds]
        tasks = [asyncio.create_task(writer.run(ends[-1], b"x" * 256)) for writer in writers]
        await asyncio.sleep(ends[1] - time.monotonic())
        await FAULTS[name][1](three, three.nodes[lost], ends[2] - time.monotonic())
        await asyncio.gather(*tasks)
        rows = []
        for phase, begin, end in zip(("before", "during", "after"), ends, ends[1:], strict=False):
            for kind, chosen in {
                "groups of the node": [
                    each for each in writers if leaders[each.group] == lost and each.node != lost
                ],
                "other groups": [
                    each for each in writers if leaders[each.group] != lost and each.node != lost
                ],
                "through the node": [each for each in writers if each.node == lost],
            }.items():
                taken = [
                    (done - due) * 1000
                    for each in chosen
                    for due, done in each.done
                    if begin <= done < end
                ]
                refused = [
                    status for each in chosen for at, status in each.refused if begin <= at < end
                ]
                rows.append(
                    {
                        "fault": name,
                        "phase": phase,
                        "writers": kind,
                        "appends": len(taken),
                        "refused": len(refused),
                    }
                )
                rows[-1] |= {
                    key: round(percentile(taken, part), 1)
                    for key, part in (("p50", 0.5), ("p99", 0.99), ("worst", 1.0))
                }
        if arguments.logs:
            shutil.copytree(
                folder,
                Path(arguments.logs) / name,
                ignore=lambda at, names: [
                    each
                    for each in names
                    if not each.endswith(".log") and not each.startswith("node")
                ],
            )
        return rows
    finally:
        await three.close()


SAVED = {"kill": "kill -9", "term": "SIGTERM"}  # faults that docs/benchmarks.md shows
SHOWN = {"groups of the node": "its groups", "other groups": "other groups"}


def saved(rows: list[dict[str, Any]]) -> Runs:
    """Return what writers met during the faults that the page shows."""
    return {
        f"{SAVED[row['fault']]}, {SHOWN[row['writers']]}": [
            {"worst_ms": row["worst"], "p99_ms": row["p99"]}
        ]
        for row in rows
        if row["fault"] in SAVED and row["phase"] == "during" and row["writers"] in SHOWN
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}; all by default"
    )
    parser.add_argument("--writers", type=int, default=60)
    parser.add_argument("--rate", type=float, default=10, help="appends a second of each writer")
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument(
        "--seconds", type=float, default=10, help="before, during and after the fault, each"
    )
    parser.add_argument("--directory", help="where the nodes keep their data (a real disk)")
    parser.add_argument("--logs", help="keep the nodes' logs there")
    _results.add_option(parser)
    arguments = parser.parse_args()
    print(machine())
    found = []
    print(
        "| fault | phase | writers | appends | tried again | p50 ms | p99 ms | worst ms |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for name in arguments.faults or FAULTS:
        if (name in NEEDS_NETWORK and network.why_not()) or (
            name in NEEDS_SHIM and shutil.which("cc") is None
        ):
            continue
        if name == "far" and subprocess.run(NETEM, capture_output=True, check=False).returncode:
            continue
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            rows = runner.run(measure(name, arguments))
        for row in rows:
            print("| " + " | ".join(str(value) for value in row.values()) + " |", flush=True)
        found += rows
    print(json.dumps(found))
    if arguments.save:
        _results.save("failover", saved(found))


if __name__ == "__main__":
    main()
