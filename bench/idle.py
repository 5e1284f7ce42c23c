"""Cost of many idle groups: three nodes of one core with few groups, then with a thousand. `python
-m bench.idle [--groups N]`.

CPU of all three nodes together without requests, and memory above that of the cluster with few
groups. Numbers as JSON on the last line."""

from __future__ import annotations

import argparse
import json
import time

from bench._nodes import Cluster, machine


def measure(groups: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Measure after the groups have elected leaders and become quiescent."""
    with Cluster("--groups", str(groups), directory=arguments.directory) as cluster:
        _wait_quiet(cluster, arguments.settle)
        begin, cpu = time.monotonic(), cluster.cpu()
        time.sleep(arguments.seconds)
        elapsed = time.monotonic() - begin
        used = [
            (after - before) / elapsed * 100
            for before, after in zip(cpu, cluster.cpu(), strict=True)
        ]
        return {
            "groups": groups,
            "cpu_percent_of_a_core": round(sum(used), 2),
            "memory_mib": round(cluster.memory(), 1),
        }


def _wait_quiet(cluster: Cluster, seconds: float) -> None:
    """Wait until no node has written for five seconds: leaderships have settled."""
    deadline, before = time.monotonic() + seconds, -1.0
    while (
        now := cluster.metric("polynya_journal_disk_bytes")
    ) != before and time.monotonic() < deadline:
        before = now
        time.sleep(5)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument(
        "--few", type=int, default=1, help="groups of the cluster that it is compared with"
    )
    parser.add_argument(
        "--settle", type=float, default=120, help="seconds at most until nothing moves any more"
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--directory", help="where the nodes keep their data")
    arguments = parser.parse_args()
    print(machine())
    few, many = (measure(groups, arguments) for groups in (arguments.few, arguments.groups))
    print(
        "| groups | CPU of three nodes, % of one core | memory of three nodes, MiB |\n|---|---|---|"
    )
    for found in (few, many):
        print(f"| {found['groups']:,} | {found['cpu_percent_of_a_core']} | {found['memory_mib']} |")
    more = {
        "cpu_percent_more": round(many["cpu_percent_of_a_core"] - few["cpu_percent_of_a_core"], 2),
        "memory_mib_more": round(many["memory_mib"] - few["memory_mib"], 1),
    }
    print(f"| more | {more['cpu_percent_more']} | {more['memory_mib_more']} |")
    print(json.dumps({"few": few, "many": many, **more}))


if __name__ == "__main__":
    main()
