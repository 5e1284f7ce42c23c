"""Prometheus' own checker of rules and queries, `promtool`: an installed one, or that of Debian's package,
which is fetched once into the user's cache without being installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from missing import left_out

FETCH_SECONDS = 240.0
_WHERE = ("usr", "bin", "promtool")


def promtool_program() -> str:
    """Return the program. Leave the test out where there is neither."""
    found = shutil.which("promtool")
    if found is not None:
        return found
    kept = _cache() / "promtool"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.with_suffix(".lock").open("w") as lock:  # other test processes wait
        fcntl.flock(lock, fcntl.LOCK_EX)
        reason = "" if kept.exists() else _fetch(kept)
    return left_out(f"promtool, of Debian's package prometheus: {reason}") if reason else str(kept)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polynya"


def _fetch(kept: Path) -> str:
    """Unpack the package, and keep the program. Return why it cannot be had."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return "not installed, and this system has no apt-get"
    with tempfile.TemporaryDirectory(dir=kept.parent) as name:
        folder = Path(name)
        said = _ran(folder, "apt-get", "-q", "download", "prometheus")
        if not any(folder.glob("*.deb")) and os.geteuid() == 0:  # of an image without lists
            _ran(folder, "apt-get", "-q", "update")
            said = _ran(folder, "apt-get", "-q", "download", "prometheus")
        for package in folder.glob("*.deb"):
            said = _ran(folder, "dpkg", "-x", package.name, ".")
        program = folder.joinpath(*_WHERE)
        if not program.exists():
            return said.strip()[-200:] or "it cannot be fetched"
        os.replace(program, kept)
    return ""


def _ran(folder: Path, *command: str) -> str:
    """Run a command in the folder; return what it said."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{' '.join(command)}: no answer"
    return done.stderr or done.stdout
