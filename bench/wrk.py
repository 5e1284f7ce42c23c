"""Appends of 256 B to 500 streams of three nodes, with `wrk` as the client. `python -m bench.wrk
[--through one,three,owners] [--rounds N]`.

`wrk` costs less than other clients, and leaves more of the cores to the nodes. `one`: all through
one node, which leads a third of the streams; `three`: each stream by any of the three, at random;
`owners`: each by the node that leads it, as clients do that follow `Stream-Owner`. Closed loop, one
append under way on each of 500 connections, no producers. Every run has a fresh cluster. Numbers of
all runs as JSON on the last line.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import urllib.request
from pathlib import Path

from bench import _results
from bench._nodes import Cluster, machine
from bench._rounds import Figures, in_turn, table
from bench.mixed import put
from polynya.base.names import group_of

LUA = """
local ports = {%(ports)s}
local streams = {%(streams)s}
local count = 0
function setup(thread)
  count = count + 1
  thread.addr = wrk.lookup("127.0.0.1", ports[(count - 1) %% #ports + 1])[1]
  thread:set("mine", (count - 1) %% #streams + 1)
end
function init(args)
  math.randomseed(mine)
  requests = {}
  for number, name in ipairs(streams[mine]) do
    requests[number] = wrk.format("POST", "/v1/stream/" .. name, {["Content-Type"] = "text/plain"}, string.rep("x", 256))
  end
end
function request()
  return requests[math.random(#requests)]
end
"""


def script(cluster: Cluster, through: str, names: list[str]) -> str:
    """Return a script with a thread for each port, and the streams of each."""
    ports = [cluster.port + 10 * number for number in range(3)][: 1 if through == "one" else 3]
    lists = [names]
    if through == "owners":
        view = json.loads(
            urllib.request.urlopen(f"{cluster.urls[0]}/v1/cluster", timeout=10).read()
        )
        leaders = {group["group"]: group["leader"] for group in view["groups"]}
        lists = [
            [name for name in names if leaders[group_of(name, len(leaders) - 1)] == number]
            for number in (1, 2, 3)
        ]
    texts = ["{" + ", ".join(f'"{name}"' for name in listed) + "}" for listed in lists]
    return LUA % {"ports": ", ".join(f'"{port}"' for port in ports), "streams": ", ".join(texts)}


def run_once(through: str, arguments: argparse.Namespace) -> Figures:
    with Cluster(directory=arguments.directory) as cluster:
        names = [f"wrk/{number}" for number in range(arguments.streams)]
        for name in names:
            put(cluster.urls[0], name)
        file = Path(cluster.folder) / "post.lua"
        file.write_text(script(cluster, through, names))
        threads = 1 if through == "one" else 3
        command = [
            "wrk",
            f"-t{threads}",
            f"-c{arguments.connections}",
            f"-d{arguments.seconds}s",
            "--latency",
            "--timeout",
            "10s",
        ]
        before = sum(cluster.cpu())
        child = subprocess.run(
            ["bash", "-c", 'time "$@"', "bash", *command, "-s", str(file), cluster.urls[0]],
            capture_output=True,
            check=True,
            text=True,
        )
        return figures(child.stdout, child.stderr, sum(cluster.cpu()) - before)


def figures(output: str, times: str, used: float) -> Figures:
    """Parse the output of `wrk --latency` and of bash's `time`."""
    requests = re.search(r"(\d+) requests in", output)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    refused = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    broken = re.search(
        r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", output
    )
    assert requests is not None and rate is not None
    count = max(int(requests[1]), 1)
    own = sum(
        60 * float(minutes) + float(seconds)
        for minutes, seconds in re.findall(r"(?:user|sys)\s+(\d+)m([\d.]+)s", times)
    )
    return {
        "per_second": float(rate[1]),
        "p50_ms": _ms(output, "50%"),
        "p99_ms": _ms(output, "99%"),
        "cpu_us_each": used * 1e6 / count,
        "wrk_cpu_us_each": own * 1e6 / count,
        "refused": float(refused[1] if refused else 0)
        + sum(map(int, broken.groups() if broken else ())),
    }


def _ms(output: str, part: str) -> float:
    found = re.search(rf"{part}\s+([\d.]+)(us|ms|s)\b", output)
    assert found is not None
    return float(found[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[found[2]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--through", default="one,three,owners")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--connections", type=int, default=500)
    parser.add_argument("--directory", help="where the nodes keep their data (a real disk)")
    _results.add_option(parser)
    arguments = parser.parse_args()
    print(machine())
    runs = in_turn(
        arguments.through.split(","), arguments.rounds, lambda way: run_once(way, arguments)
    )
    print(table("through", runs))
    print(json.dumps(runs))
    if arguments.save:
        _results.save("wrk", runs)


if __name__ == "__main__":
    main()
