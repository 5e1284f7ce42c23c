"""Reducers: records/s of the shopping carts in Rust and AssemblyScript, in the sandbox and through
a node.

    PYTHONPATH=src python -m bench.reducers [--records 200000] [--rounds 3] [--languages rust,as]

The modules are built from `sdk`, which needs cargo and npm. "sandbox" applies records that are in
memory, in batches of 1 MiB through the pipe of the sandbox process. "end to end" is `polynya reduce
run --once` beside a node on this machine, from its start to its exit: it reads all records over
HTTP, applies them and publishes the state.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import httpx

from bench._nodes import machine
from bench._rounds import Figures, in_turn, table
from polynya.reducers.reducer import Record
from polynya.reducers.wasm.module_reducer import ModuleReducer
from polynya.reducers.wasm.sandbox import Sandbox

SDK = Path(__file__).parent.parent / "sdk"
TARGET = "wasm32-unknown-unknown"
ITEMS = 1000
RECORD_BYTES = 230
APPEND_RECORDS = 5000
JSON = {"Content-Type": "application/json"}


def rust(folder: Path) -> bytes:
    command = ["cargo", "build", "-q", "--release", "--target", TARGET, "--example", "cart"]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(folder / "target")}
    subprocess.run(command, cwd=SDK / "rust", env=environment, check=True)
    return (folder / "target" / TARGET / "release" / "examples" / "cart.wasm").read_bytes()


def assemblyscript(folder: Path) -> bytes:
    project = shutil.copytree(SDK / "assemblyscript", folder / "assemblyscript")
    subprocess.run(["npm", "install", "--no-audit", "--silent"], cwd=project, check=True)
    subprocess.run(["npm", "run", "--silent", "build"], cwd=project, check=True)
    return (project / "build" / "cart.wasm").read_bytes()


LANGUAGES = {"rust": rust, "as": assemblyscript}


def orders(count: int) -> list[bytes]:
    rng = random.Random(7)
    found = []
    for _ in range(count):
        order = {"item": f"item {rng.randrange(ITEMS)}", "count": rng.randrange(1, 5), "note": ""}
        order["note"] = "x" * (RECORD_BYTES - len(json.dumps(order)))
        found.append(json.dumps(order).encode())
    return found


def sandbox(module: bytes, values: list[bytes]) -> Figures:
    records = [Record(number, 0, 0, None, value) for number, value in enumerate(values)]
    with Sandbox(module) as process:
        reducer = ModuleReducer(process)
        reducer.restore(None)
        fuel, micros, began = process.fuel_used, process.cpu_micros, perf_counter()
        reducer.apply(records)
        reducer.state()
        took = perf_counter() - began
        return {
            "records/s": len(values) / took,
            "CPU us a record": (process.cpu_micros - micros) / len(values),
            "fuel a record": (process.fuel_used - fuel) / len(values),
        }


@contextmanager
def node(folder: Path) -> Iterator[str]:
    """Run a node; yields its URL."""
    command = ["serve", "--listen", "127.0.0.1:0", "--kafka-listen", "off", "--cores", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "polynya", *command, "--data", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if "listening on " in line:
                    yield line.partition("listening on ")[2].split()[0]
                    return
            raise SystemExit("the node did not start")
        finally:
            process.terminate()


def end_to_end(url: str, name: str, module: bytes, values: list[bytes]) -> Figures:
    with httpx.Client(base_url=url, timeout=120) as web:
        digest = web.put("/v1/modules", content=module).raise_for_status().json()["sha256"]
        bound = {"pattern": f"{name}/*", "module": digest}
        web.put(f"/v1/reducers/{name}", json=bound).raise_for_status()
        stream = f"/v1/stream/{name}/cart"
        web.put(stream, headers=JSON).raise_for_status()
        for at in range(0, len(values), APPEND_RECORDS):
            body = b"[" + b",".join(values[at : at + APPEND_RECORDS]) + b"]"
            web.post(stream, headers=JSON, content=body).raise_for_status()
        began, used = perf_counter(), _children()
        command = [sys.executable, "-m", "polynya", "reduce", "run", name, "--once"]
        environment = {**os.environ, "POLYNYA_SERVER": url}
        subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
        took, used = perf_counter() - began, _children() - used
        listed = web.get(f"{stream}/snapshots").raise_for_status().json()["snapshots"]
        assert [int(each["offset"].split("_")[0]) for each in listed] == [len(values)]
        web.delete(f"/v1/reducers/{name}").raise_for_status()
    return {
        "records/s": len(values) / took,
        "CPU us a record, of the worker": used * 1e6 / len(values),
    }


def _children() -> float:
    """Return the CPU seconds of processes that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--languages", default=",".join(LANGUAGES))
    options = parser.parse_args()
    values = orders(options.records)
    names = options.languages.split(",")
    with tempfile.TemporaryDirectory(prefix="polynya-bench-") as temporary:
        folder = Path(temporary)
        modules = {name: LANGUAGES[name](folder) for name in names}
        alone = in_turn(names, options.rounds, lambda name: sandbox(modules[name], values))
        with node(folder / "data") as url:
            counted = iter(range(10**6))
            whole = in_turn(
                names,
                options.rounds,
                lambda name: end_to_end(url, f"{name}{next(counted)}", modules[name], values),
            )
    print(f"{machine()}, {options.records:,} records of {RECORD_BYTES} bytes, {ITEMS} items\n")
    print(table("sandbox", alone))
    print(table("end to end", whole))
    return 0


if __name__ == "__main__":
    sys.exit(main())
