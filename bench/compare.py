"""Compare this server with peers in one interleaved run: fresh data each, medians, server CPU per
append, RSS.

    python -m bench.compare multi-stream --seconds 10 --rounds 3 --servers
    polynya,rust-wal,node-memory
    python -m bench.compare fan-out --subscribers 1000 --rounds 3 --servers polynya,rust-wal
    python -m bench.compare catch-up --rounds 3 --servers polynya,rust-wal

`catch-up` reads 4 streams of 8 MiB in 256 KiB appends over 16 connections of wrk.

Needs `ursula-bench` (cargo install ursula-bench --version 0.11.5), and for the peers
`durable-streams-server` (cargo install durable-streams --version 0.1.5) and Node with the npm
package @durable-streams/server 0.3.7 in $BENCH_NODE_FOLDER.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from bench import _results
from bench._rounds import Figures, in_turn, table
from chaos.ports import keep_row

NODE_SERVER = """
import { DurableStreamTestServer } from "@durable-streams/server"
const server = new DurableStreamTestServer({ port: Number(process.env.PORT), host: "127.0.0.1" })
await server.start()
"""


def command(server: str, port: int, data: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command line and environment of a server under test."""
    if server.startswith("polynya"):
        cores = server.partition("-")[2] or "1"
        return [
            sys.executable,
            "-m",
            "polynya",
            "serve",
            "--listen",
            f"127.0.0.1:{port}",
            "--data",
            str(data),
            "--cores",
            cores,
        ], {}
    if server.startswith("rust-"):
        mode = server.partition("-")[2]
        return [
            "durable-streams-server",
            "--port",
            str(port),
            "--data-dir",
            str(data),
            "--durability",
            mode,
        ], {"RUST_LOG": "warn"}
    if server == "node-memory":
        folder = Path(os.environ["BENCH_NODE_FOLDER"])
        (folder / "serve.mjs").write_text(NODE_SERVER)
        return ["node", str(folder / "serve.mjs")], {"PORT": str(port)}
    sys.exit(f"unknown server {server}")


def wait_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"the server ended with {process.returncode}")
        try:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/stream/ready-probe", method="PUT", data=b""
            )
            urllib.request.urlopen(request, timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit("the server did not come up in 30 s")


def usage(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """Return CPU seconds and RSS MiB of the process and its children."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    cpu = sum(sum(member.cpu_times()[:2]) for member in family)
    return cpu, sum(member.memory_info().rss for member in family) / 2**20


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()


CATCH_UP_STREAMS = 4
CATCH_UP_LUA = """
local number = 0
request = function()
  number = number + 1
  return wrk.format("GET", "/v1/stream/replay-" .. (number % 4) .. "?offset=-1&max_bytes=8388608")
end
"""


def prepare(port: int) -> None:
    """Create the streams that `catch-up` reads."""
    for number in range(CATCH_UP_STREAMS):
        url = f"http://127.0.0.1:{port}/v1/stream/replay-{number}"
        headers = {"Content-Type": "application/octet-stream"}
        urllib.request.urlopen(
            urllib.request.Request(url, method="PUT", data=b"", headers=headers), timeout=5
        ).close()
        for _ in range(32):
            body = os.urandom(256 * 1024)
            urllib.request.urlopen(
                urllib.request.Request(url, method="POST", data=body, headers=headers), timeout=5
            ).close()


def run_once(server: str, arguments: argparse.Namespace) -> Figures:
    """Start a fresh server, run one load, and return its figures."""
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=arguments.directory))
    data = folder / "data"
    data.mkdir()
    port = keep_row(2)  # the admin port is the next one
    line, extra = command(server, port, data)
    log = open(folder / "server.log", "wb")  # noqa: SIM115 (closed with the process)
    process = subprocess.Popen(line, env={**os.environ, **extra}, stdout=log, stderr=log)
    try:
        wait_ready(port, process)
        if arguments.workload == "catch-up":
            prepare(port)
        before, _ = usage(process)
        output = subprocess.run(
            load(arguments, port),
            env={**os.environ, "RUST_LOG": "off"},
            capture_output=True,
            check=True,
        ).stdout
        after, rss = usage(process)
        if arguments.workload == "catch-up":
            return wrk_figures(output.decode(), after - before, rss)
        return figures(
            arguments.workload, json.loads(re.sub(rb"^[^{]*", b"", output)), after - before, rss
        )
    finally:
        stop(process)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def load(arguments: argparse.Namespace, port: int) -> list[str]:
    if arguments.workload == "catch-up":
        script = Path(tempfile.gettempdir()) / "catch-up.lua"
        script.write_text(CATCH_UP_LUA)
        return [
            "wrk",
            "-t1",
            "-c16",
            f"-d{arguments.seconds}s",
            "-s",
            str(script),
            f"http://127.0.0.1:{port}",
        ]
    base = [
        "ursula-bench",
        arguments.workload,
        "--target",
        f"http://127.0.0.1:{port}",
        "--api-style",
        "durable",
    ]
    base += [
        "--duration-secs",
        str(arguments.seconds),
        "--request-timeout-secs",
        str(arguments.seconds + 60),
    ]
    if arguments.workload == "multi-stream":
        return [*base, "--streams", str(arguments.streams), "--payload-bytes", "256"]
    return [
        *base,
        "--subscribers",
        str(arguments.subscribers),
        "--writer-rate",
        "50",
        "--payload-bytes",
        "256",
    ]


def figures(workload: str, result: dict[str, object], cpu: float, rss: float) -> Figures:
    def number(*keys: str) -> float:
        value: object = result
        for key in keys:
            value = value[key]  # type: ignore[index]
        return float(value)  # type: ignore[arg-type]

    if workload == "multi-stream":
        done = number("counts", "ok")
        return {
            "per_second": number("aggregate_ops_per_sec"),
            "p50_ms": number("latency_ms", "p50_ms"),
            "p99_ms": number("latency_ms", "p99_ms"),
            "cpu_us_each": cpu * 1e6 / max(done, 1),
            "errors": number("counts", "other_err"),
            "rss_mib": rss,
        }
    return {
        "received": number("events_received"),
        "sent": number("events_sent"),
        "p50_ms": number("fan_out_latency_ms", "p50_ms"),
        "p99_ms": number("fan_out_latency_ms", "p99_ms"),
        "cpu_s": cpu,
        "errors": number("subscriber_errors"),
        "rss_mib": rss,
    }


def wrk_figures(output: str, cpu: float, rss: float) -> Figures:
    rate, unit = re.search(r"Transfer/sec:\s+([0-9.]+)([KMG]B)", output).groups()  # type: ignore[union-attr]
    mib = float(rate) * {"KB": 1 / 1024, "MB": 1, "GB": 1024}[unit]
    errors = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    return {
        "mib_per_second": mib,
        "cpu_s": cpu,
        "errors": float(errors[1]) if errors else 0.0,
        "rss_mib": rss,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workload", choices=["multi-stream", "fan-out", "catch-up"])
    parser.add_argument("--servers", default="polynya,rust-wal")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--subscribers", type=int, default=1000)
    parser.add_argument(
        "--directory", default=None, help="where the servers keep their data (a real disk)"
    )
    _results.add_option(parser)
    arguments = parser.parse_args()
    runs = in_turn(
        arguments.servers.split(","), arguments.rounds, lambda server: run_once(server, arguments)
    )
    print(table("server", runs))
    if arguments.save:
        _results.save("compare_" + arguments.workload.replace("-", "_"), runs)


if __name__ == "__main__":
    main()
