"""Compare fsyncing clusters of three: appends through one node, with `ursula-bench` as the client.
`python -m bench.clusters [--rounds N]`.

Every run has fresh servers: the client's producers restart from sequence 0, so a second run on
the same streams would only send duplicates. The CPU is that of all nodes. Numbers of all runs
as JSON on the last line."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess

from bench import _results
from bench._nodes import Cluster, Floor, Ursula, machine
from bench._rounds import Figures, in_turn, table


def _started(server: str, directory: str | None) -> Cluster | Ursula | Floor:
    if server == "polynya":
        return Cluster(directory=directory)
    return Ursula(directory) if server == "ursula" else Floor(directory)


def run_once(server: str, arguments: argparse.Namespace) -> Figures:
    """Start a fresh cluster, run one load, and return its figures."""
    with _started(server, arguments.directory) as cluster:
        style = "ursula" if server == "ursula" else "durable"
        command = [
            "ursula-bench",
            "multi-stream",
            "--target",
            cluster.urls[0],
            "--api-style",
            style,
            "--streams",
            str(arguments.streams),
        ]
        command += ["--duration-secs", str(arguments.seconds), "--payload-bytes", "256"]
        before = sum(cluster.cpu())
        output = subprocess.run(
            command, env={**os.environ, "RUST_LOG": "off"}, capture_output=True, check=True
        ).stdout
        used = sum(cluster.cpu()) - before
        result = json.loads(re.sub(rb"^[^{]*", b"", output))
        return {
            "per_second": result["aggregate_ops_per_sec"],
            "p50_ms": result["latency_ms"]["p50_ms"],
            "p99_ms": result["latency_ms"]["p99_ms"],
            "cpu_us_each": used * 1e6 / max(result["counts"]["ok"], 1),
            "memory_mib": cluster.memory(),
            "errors": result["counts"]["other_err"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--servers",
        default="polynya,ursula",
        help="of these, and floor: three nodes in Python that do the least",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--directory", help="where the nodes keep their data (a real disk)")
    _results.add_option(parser)
    arguments = parser.parse_args()
    print(machine())
    runs = in_turn(
        arguments.servers.split(","), arguments.rounds, lambda server: run_once(server, arguments)
    )
    print(table("server", runs))
    print(json.dumps(runs))
    if arguments.save:
        _results.save("clusters", runs)


if __name__ == "__main__":
    main()
