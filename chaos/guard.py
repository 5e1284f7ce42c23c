"""Cleans up after a run: at its end, and by a process of its own that notices when the run was
killed. `python -m chaos.guard NAME FOLDER`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from chaos import disks, network


class Guard:
    """A guard process: it cleans up when the process that started it dies, and nothing before."""

    def __init__(self, name: str, folder: Path) -> None:
        command = [sys.executable, "-m", "chaos.guard", name, str(folder)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            cwd=Path(__file__).parent.parent,
        )

    def finish(self, *, keep: bool) -> None:
        """Clean up now. `keep` leaves the folder for inspection."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"keep" if keep else b"done")
            self._process.stdin.close()
        self._process.wait(60)


def clean(name: str, folder: Path, *, keep: bool = False) -> None:
    """Remove processes, mounts, namespaces and files of a run. May be repeated."""
    _kill_those_in(folder)
    network.remove(name)
    if folder.is_dir():
        for path in folder.iterdir():
            disks.unmount(path)
        for image in folder.glob("*.ext4") if keep else ():
            image.unlink(missing_ok=True)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _kill_those_in(folder: Path) -> None:
    """Kill the processes whose command line names the folder."""
    word = str(folder).encode()
    for _ in range(50):
        found = [pid for pid in _pids() if pid != os.getpid() and word in _command(pid)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _pids() -> list[int]:
    return (
        [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
        if os.path.isdir("/proc")
        else []
    )


def _command(pid: int) -> bytes:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
    return command if b"polynya" in command and b"serve" in command else b""


def main(name: str, folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    word = sys.stdin.buffer.read()  # until the run ends, in whichever way
    clean(name, Path(folder), keep=word == b"keep")


if __name__ == "__main__":
    main(*sys.argv[1:])
