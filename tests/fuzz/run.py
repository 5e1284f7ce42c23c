"""The fuzzers from a shell: `make fuzz`, or `make fuzz SEED=7 SECONDS=600`; exits with 1 when one
has found something.

The fuzzers share the time: clients of a node and of a cluster of three, an impostor among the nodes
and outsiders, damaged files, the command line and the settings. A finding is printed with its seed,
and the folder with logs and data stays.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from fuzz.admin import fuzz_admin
from fuzz.bytes import Outcome
from fuzz.http import fuzz_http
from fuzz.http2 import fuzz_http2
from fuzz.kafka import fuzz_kafka
from fuzz.peers import fuzz_peers
from fuzz.stored import fuzz_stored
from fuzz.text import fuzz_text
from fuzz.words import fuzz_words

FUZZERS: dict[str, Callable[..., Outcome]] = {
    "http": fuzz_http,
    "http2": fuzz_http2,
    "cluster": partial(fuzz_http, nodes=3),
    "admin": fuzz_admin,
    "kafka": fuzz_kafka,
    "peers": fuzz_peers,
    "stored": fuzz_stored,
    "text": fuzz_text,
    "words": fuzz_words,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz.run", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=int(time.time()) % 1_000_000,
        help="default: one of its own each time",
    )
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="of all of them together (default: 300)"
    )
    parser.add_argument(
        "--only", default="", help=f"some of {', '.join(FUZZERS)}, with commas between them"
    )
    parser.add_argument("--report", type=Path, help="write what was found there, as JSON")
    given = parser.parse_args()
    chosen = [
        name for name in FUZZERS if name in (given.only.split(",") if given.only else FUZZERS)
    ]
    print(f"fuzz: seed {given.seed}; again: make fuzz SEED={given.seed}", flush=True)
    failed, report = False, []
    for name in chosen:
        folder = Path(tempfile.mkdtemp(prefix=f"polynya-fuzz-{name}-"))
        began = time.monotonic()
        outcome = FUZZERS[name](given.seed, folder, seconds=given.seconds / len(chosen))
        print(f"{name}: {time.monotonic() - began:.0f} s: {outcome.summary()}", flush=True)
        report.append({
            "name": name,
            "seed": given.seed,
            "seconds": time.monotonic() - began,
            "counts": dict(outcome.counts),
            "wrong": outcome.wrong,
        })  # fmt: skip
        for wrong in outcome.wrong:
            print(f"WRONG: {wrong}", flush=True)
        if outcome.wrong:
            failed = True
            print(f"its files are in {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    if given.report is not None:
        given.report.write_bytes(msgspec.json.encode(report))
    print("FAILED" if failed else "nothing was found", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
