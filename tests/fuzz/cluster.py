"""A cluster of three real nodes for fuzzers, with certificates; the third may be played by somebody
else."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
from free_ports import free_ports, two_free_ports
from polling import wait_until
from product import STOP_SECONDS, CommandProcess

from polynya.cluster.certificates import make_authority, make_certificate, peer_tls
from polynya.transport import PeerTls

GROUPS = 4
SHOWN = 30  # lines of a log
ODD = re.compile(
    r"Traceback \(most recent call last\)|AssertionError|level=critical|has no handler"
)


class FuzzCluster:
    """A cluster under test. `nodes`: the running ones, by number."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.folder, self.cluster = folder, secrets.token_hex(16)
        self.ports = dict(
            zip(range(1, nodes + 1), (two_free_ports() for _ in range(nodes)), strict=True)
        )
        self.peers = dict(zip(range(1, nodes + 1), free_ports(nodes), strict=True))
        self.nodes: dict[int, CommandProcess] = {}
        authority = folder / "ca"
        make_authority(authority)
        for number in self.ports:
            make_certificate(authority, number, ["127.0.0.1"])

    def tls(self, number: int) -> PeerTls:
        authority = self.folder / "ca"
        return peer_tls(
            authority / "ca.crt", authority / f"node-{number}.crt", authority / f"node-{number}.key"
        )

    def settings(self, number: int) -> Path:
        authority = self.folder / "ca"
        lines = [
            f'listen = "127.0.0.1:{self.ports[number]}"',
            f"groups = {GROUPS}",
            "cores = 1",
            "unsafe_no_auth = true",
        ]
        lines += ["[cold]", f'root = "{self.folder}/objects"', "", "[cluster]"]
        lines += [
            f'id = "{self.cluster}"',
            f"node = {number}",
            f'listen = "127.0.0.1:{self.peers[number]}"',
            f'ca = "{authority}/ca.crt"',
        ]
        lines += [
            f'cert = "{authority}/node-{number}.crt"',
            f'key = "{authority}/node-{number}.key"',
            "",
        ]
        for other, port in self.peers.items():
            lines += [
                "[[cluster.nodes]]",
                f"id = {other}",
                f'peer = "127.0.0.1:{port}"',
                f'http = "http://127.0.0.1:{self.ports[other]}"',
                "",
            ]
        path = self.folder / f"node-{number}.toml"
        path.write_text("\n".join(lines))
        return path

    def url(self, number: int) -> str:
        return f"http://127.0.0.1:{self.ports[number]}"

    def view(self, number: int) -> dict[str, Any]:
        with urlopen(f"{self.url(number)}/v1/cluster", timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def wait_led(self, seconds: float = 60.0) -> None:
        """Wait until all groups have a leader, as each node that runs says."""

        def led() -> bool:
            for node in self.nodes.values():
                assert node.process.poll() is None, "it ended:\n" + "".join(node.log)
            try:
                views = [self.view(number) for number in self.nodes]
            except OSError:
                return False
            return all(
                len(view["groups"]) > GROUPS
                and all(group["leader"] in self.nodes for group in view["groups"])
                for view in views
            )

        wait_until(led, what="all groups to have a leader", seconds=seconds)

    def cores(self, number: int) -> list[psutil.Process]:
        return psutil.Process(self.nodes[number].process.pid).children()

    def odd_lines(self) -> list[str]:
        """Return unexpected lines of the nodes' logs: malformed input must not cause them."""
        logs = {number: list(node.log) for number, node in self.nodes.items()}
        odd = [
            (number, at)
            for number, log in logs.items()
            for at, line in enumerate(log)
            if ODD.search(line)
        ]
        return [
            f"node {number}: {''.join(logs[number][at : at + SHOWN]).strip()}" for number, at in odd
        ]

    def start(self, number: int) -> None:
        flags = (
            "--config",
            str(self.settings(number)),
            "--data",
            str(self.folder / f"data-{number}"),
        )
        self.nodes[number] = CommandProcess("serve", *flags)

    def stop(self, number: int) -> None:
        """Stop a node by SIGTERM; it is killed if that is not enough."""
        node = self.nodes.pop(number)
        node.process.terminate()
        try:
            node.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            node.process.kill()
        node.end_reading()


@contextmanager
def fuzz_cluster(folder: Path) -> Iterator[FuzzCluster]:
    """Run three nodes that have found each other until `with` ends: a new cluster begins when all
    are there."""
    cluster = FuzzCluster(folder)
    try:
        for number in cluster.ports:
            cluster.start(number)
        cluster.wait_led()
        yield cluster
    finally:
        for number in list(cluster.nodes):
            cluster.stop(number)
