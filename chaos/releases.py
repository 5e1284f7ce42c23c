"""Releases of the product beside each other: the source of any git revision in a folder of its own,
and the command line of each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import msgspec

from chaos.nodes import SOURCE

COMMAND_SECONDS = 150.0


class Said(msgspec.Struct, frozen=True):
    """The exit code of a command and all its output."""

    code: int
    text: str


class Release(msgspec.Struct, frozen=True):
    """`source`: what PYTHONPATH names. `level`: of the logs, the newest that it knows. `protocols`:
    between nodes, from the oldest to the newest."""

    name: str
    source: Path
    level: int
    protocols: tuple[int, int]

    async def run(self, *words: str, server: str = "") -> Said:
        """Run a command of this release. One that does not end is killed, and ends with -9."""
        environment = self.environment() | ({"POLYNYA_SERVER": server} if server else {})
        return await asyncio.to_thread(_run, [sys.executable, "-m", "polynya", *words], environment)

    def environment(self) -> dict[str, str]:
        """Return the environment of its processes, without settings from outside."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("POLYNYA_")
        }
        return kept | {"PYTHONPATH": str(self.source)}

    async def knows(self, *words: str) -> bool:
        """Report whether the release has this command."""
        return not (await self.run(*words, "--help")).code


def here() -> Release:
    """Return the release of this checkout."""
    return _described("new", SOURCE)


def of_revision(revision: str, folder: Path) -> Release:
    """Return the release of a git revision of this checkout, laid out under `folder`. Raises
    SystemExit with git's message."""
    done = subprocess.run(
        ["git", "-C", str(SOURCE.parent), "archive", revision, "src"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"git cannot give {revision}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as tar:
        tar.extractall(folder / "old", filter="data")
    return _described("old", folder / "old" / "src")


@contextlib.asynccontextmanager
async def by_itself(release: Release, data: Path) -> AsyncIterator[tuple[str, int]]:
    """Run a single node on this folder and yield its address. Raises RuntimeError with its output
    when it ends."""
    log = data.with_name(f"{data.name}.log")
    with log.open("wb") as out:
        serve = [
            sys.executable,
            "-m",
            "polynya",
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--data",
            str(data),
        ]
        process = subprocess.Popen(  # noqa: ASYNC220
            serve, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=release.environment()
        )
    try:
        while not (found := re.search(r"listening on http://([\d.]+):(\d+)", log.read_text())):
            if process.poll() is not None:
                raise RuntimeError(
                    f"a node on {data} ended with {process.returncode}: {log.read_text()}"
                )
            await asyncio.sleep(0.1)
        yield found[1], int(found[2])
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


def _described(name: str, source: Path) -> Release:
    levels, hello = source / "polynya/base/levels.py", source / "polynya/transport/handshake.py"
    greeting = hello.read_text()
    level = _number("LEVEL", levels.read_text()) if levels.exists() else 1
    return Release(
        name, source, level, (_number("PROTOCOL_MIN", greeting), _number("PROTOCOL_MAX", greeting))
    )


def _number(name: str, text: str) -> int:
    found = re.search(rf"^{name} = (\d+)", text, re.MULTILINE)
    assert found, f"there is no {name}"
    return int(found[1])


def _run(command: list[str], environment: dict[str, str]) -> Said:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return Said(-9, f"{' '.join(command[2:])} does not end: {late.stdout!r} {late.stderr!r}")
    return Said(done.returncode, done.stdout + done.stderr)
