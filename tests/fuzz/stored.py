"""Damaged files: journals, snapshots, packs and backups with bits flipped, cut, extended, swapped,
emptied or deleted.

A node on such a folder either refuses to start with an explanation, or serves. Each record that
it then returns was acknowledged and has its offset. None is missing silently: the response
reports the damage, or the cut end of the journal."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from click.testing import CliRunner
from fuzz.bytes import Outcome, damaged
from polling import wait_until
from product import WITH_US, CommandProcess, environment, polynya, running_node

from polynya.cli.app import cli
from polynya.config.core_start import EXIT_CONFIG, EXIT_CORRUPT, EXIT_STORAGE

SMALL = {
    "POLYNYA_COLD_FLUSH_BYTES": "2000",
    "POLYNYA_COLD_FLUSH_MIN_HOT_BYTES": "500",
    "POLYNYA_COLD_FLUSH_INTERVAL_MS": "100",
    "POLYNYA_COLD_FLUSH_MAX_AGE_MS": "200",
}
STREAMS = 6
START_SECONDS = 40.0
REFUSED = (EXIT_CONFIG, EXIT_CORRUPT, EXIT_STORAGE)
TRACE = re.compile(r"Traceback \(most recent call last\)|AssertionError|has no handler")


class Kept:
    """The damaged folders and the acknowledged data: `records` by stream, in the node and in the
    earlier backup."""

    def __init__(self, folder: Path) -> None:
        self.data, self.backup = folder / "kept" / "data", folder / "kept" / "backup"
        self.records: dict[str, list[str]] = {f"kept/s{number}": [] for number in range(STREAMS)}
        self.in_backup: dict[str, list[str]] = {}
        first = folder / "first"
        with running_node(first, **SMALL) as node:
            self._fill(node.url, 30)
            self._flush(node.admin)
            self._fill(node.url, 10)
            made = polynya("backup", str(self.backup), server=node.admin)
            assert made.code == 0, made
            self.in_backup = {name: list(records) for name, records in self.records.items()}
        self.restore(self.backup, self.data)
        with running_node(self.data, **SMALL) as node:
            self._fill(node.url, 10)
            self._flush(node.admin)
            self._fill(node.url, 5)
            assert node.stop() == 0

    def restore(self, address: Path, data: Path) -> None:
        made = polynya("restore", str(address), "--data", str(data))
        assert made.code == 0, made

    def _fill(self, url: str, count: int) -> None:
        for name, records in self.records.items():
            if not records:
                _ask(url, "PUT", name, b"")
            for _ in range(count):
                record = f"{name} {len(records)} {'x' * 40}"
                _ask(url, "POST", name, json.dumps([record]).encode())
                records.append(record)

    def _flush(self, admin: str) -> None:
        urlopen(Request(f"{admin}/v1/admin/flush", method="POST"), timeout=60).close()


def _ask(url: str, method: str, name: str, body: bytes) -> None:
    request = Request(
        f"{url}/v1/stream/{name}",
        data=body or None,
        method=method,
        headers={"Content-Type": "application/json"},
    )
    urlopen(request, timeout=60).close()


def harm(chance: random.Random, folder: Path, pattern: str = "**/*") -> tuple[str, Path]:
    """Damage one of the files that match; return how, and which."""
    files = sorted(
        path
        for path in folder.glob(pattern)
        if path.is_file() and path.suffix != ".lock" and path.name not in ("lock", "node.lock")
    )
    path = chance.choice(files)
    if chance.random() < 0.5:  # a large one, which holds more
        path = max(chance.sample(files, min(4, len(files))), key=lambda file: file.stat().st_size)
    data = path.read_bytes()
    act = chance.choice(
        ("flip", "flip", "flip", "cut", "grow", "zeros", "mixed", "gone", "empty", "swap", "folder")
    )
    if act == "flip" and data:
        at = chance.randrange(len(data))
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :])
    elif act == "cut":
        path.write_bytes(data[: chance.randrange(len(data) + 1)])
    elif act == "grow":
        path.write_bytes(data + chance.randbytes(chance.choice((1, 20, 5000))))
    elif act == "zeros":
        at = chance.randrange(len(data) + 1)
        path.write_bytes(data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :])
    elif act == "mixed":
        path.write_bytes(damaged(chance, data))
    elif act == "gone":
        path.unlink()
    elif act == "swap":
        other = chance.choice(files)
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)
    elif act == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(b"")
    return act, path


def fuzz_stored(
    seed: int, folder: Path, *, rounds: int = 0, seconds: float = 0.0, verifies: int = 8
) -> Outcome:
    """Fuzz stored files for a number of starts, or for a time; each with some reads of a damaged
    backup."""
    outcome = Outcome()
    kept = Kept(folder)
    end, number = time.monotonic() + seconds, 0
    while (number < rounds or time.monotonic() < end) and not outcome.wrong:
        number += 1
        chance = random.Random(f"{seed}-{number}")
        acts: list[Callable[[], list[str]]] = [
            lambda chance=chance: _start(chance, kept, folder / "try", outcome)
        ]
        acts += [lambda chance=chance: _verify(chance, kept, folder / "try", outcome)] * verifies
        if number % 3 == 0:
            acts.append(lambda chance=chance: _restore(chance, kept, folder / "try", outcome))
        for act in acts:
            shutil.rmtree(folder / "try", ignore_errors=True)
            outcome.wrong += [f"seed {seed}, round {number}: {line}" for line in act()]
    return outcome


def _start(chance: random.Random, kept: Kept, address: Path, outcome: Outcome) -> list[str]:
    data = address / "data"
    shutil.copytree(kept.data, data)
    done = [harm(chance, data) for _ in range(chance.choice((1, 1, 1, 2)))]
    said = ", ".join(f"{act} {path.relative_to(data)}" for act, path in done)
    may_lack_end = any("journal" in path.parts or act == "swap" for act, path in done)
    return [
        f"{said}: {line}"
        for line in _served(data, kept.records, outcome, may_lack_end=may_lack_end)
    ]


def _served(
    data: Path, records: dict[str, list[str]], outcome: Outcome, *, may_lack_end: bool
) -> list[str]:
    node = CommandProcess("serve", "--listen", "127.0.0.1:0", "--data", str(data), **SMALL)
    try:
        wait_until(
            lambda: (
                node.process.poll() is not None
                or any("  look    " in line for line in list(node.log))
            ),
            what="the node to serve, or to refuse",
            seconds=START_SECONDS,
        )
        found: list[str] = []
        if node.process.poll() is None:
            url = next(
                match[1] for line in node.log if (match := re.search(r"listening on (\S+)", line))
            )
            for name, acknowledged in records.items():
                found += _compare(
                    url, name, acknowledged, outcome, "".join(node.log), may_lack_end=may_lack_end
                )
            outcome.counts["served"] += 1
        elif node.process.returncode not in REFUSED:
            found.append(f"it ended with {node.process.returncode}")
        else:
            outcome.counts[f"refused with {node.process.returncode}"] += 1
    except AssertionError as error:
        found = [str(error)]
    finally:
        if node.process.poll() is None:
            node.process.terminate()
            node.process.wait(60)
        node.end_reading()
    log = "".join(node.log)
    if node.process.returncode in REFUSED and not re.search(
        r"polynya: \S+|level=critical|level=error", log
    ):
        found.append("it refused without a word")
    if TRACE.search(log):
        found.append("a traceback")
    return [f"{line}\n{log[-3000:]}" for line in found]


def _compare(
    url: str, name: str, acknowledged: list[str], outcome: Outcome, log: str, *, may_lack_end: bool
) -> list[str]:
    seen: list[str] = []
    offset = "-1"
    try:
        while True:
            with urlopen(f"{url}/v1/stream/{name}?offset={offset}", timeout=30) as answer:
                seen += json.load(answer)
                offset = answer.headers["Stream-Next-Offset"]
                if answer.headers["Stream-Up-To-Date"]:
                    break
    except HTTPError as error:
        body = json.loads(error.read())["error"]
        # a missing object is told by its name
        code = (
            body["code"]
            if "is missing from the object store" not in body["message"]
            else "DATA_DAMAGED"
        )
        if code == "DATA_DAMAGED":
            outcome.counts["told that it is damaged"] += 1
            return (
                []
                if seen == acknowledged[: len(seen)]
                else [f"{name}: {len(seen)} records that are others"]
            )
        if code == "NOT_FOUND" and may_lack_end:
            return []
        return [f"{name}: {error.code} {code}"]
    except (OSError, HTTPException) as error:
        return [f"{name}: {error!r}"]
    if seen == acknowledged:
        return []
    if may_lack_end and seen == acknowledged[: len(seen)]:
        outcome.counts["an end that was cut"] += 1
        return []
    return [
        f"{name}: {len(seen)} records instead of {len(acknowledged)}, "
        f"{'the first' if seen == acknowledged[: len(seen)] else 'others'}"
    ]


def _verify(chance: random.Random, kept: Kept, address: Path, outcome: Outcome) -> list[str]:
    """Check that `polynya verify` names the damage."""
    shutil.copytree(kept.backup, address)
    act, path = harm(chance, address)
    said = f"{act} {path.relative_to(address)}"
    # what is behind is not read
    whole = path.is_file() and path.read_bytes().startswith(
        (kept.backup / path.relative_to(address)).read_bytes()
    )
    result = CliRunner().invoke(cli, ["verify", str(address)], prog_name="polynya")
    outcome.counts[f"verify: {result.exit_code}"] += 1
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        import traceback

        return [
            f"verify after {said}: {''.join(traceback.format_exception(result.exception))[-1500:]}"
        ]
    if not whole and result.exit_code == 0:
        return [f"verify after {said} finds nothing: {result.output}"]
    return (
        []
        if result.exit_code in (0, 1, 2)
        else [f"verify after {said} ends with {result.exit_code}: {result.output}"]
    )


def _restore(chance: random.Random, kept: Kept, address: Path, outcome: Outcome) -> list[str]:
    """Check that `polynya restore` refuses with an explanation, or restores the original."""
    backup, data = address / "backup", address / "data"
    shutil.copytree(kept.backup, backup)
    act, path = harm(chance, backup)
    said = f"restore after {act} {path.relative_to(backup)}"
    command = [
        *WITH_US,
        sys.executable,
        "-m",
        "polynya",
        "restore",
        str(backup),
        "--data",
        str(data),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=120, check=False
    )
    outcome.counts[f"restore: {done.returncode}"] += 1
    if TRACE.search(done.stderr):
        return [f"{said}: a traceback: {done.stderr[-2000:]}"]
    if done.returncode:
        return (
            []
            if "polynya:" in done.stderr
            else [f"{said}: ended with {done.returncode} without a word: {done.stderr[-500:]}"]
        )
    return [
        f"{said}: {line}" for line in _served(data, kept.in_backup, outcome, may_lack_end=False)
    ]
