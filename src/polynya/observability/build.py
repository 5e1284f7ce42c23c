"""The identity of this build: its version and source commit."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import polynya

GIT_SECONDS = 5.0
_PACKAGE = Path(polynya.__file__).parent


@functools.cache
def commit() -> str:
    """Return the commit recorded at build time. In a checkout return git's answer, with `-dirty` if
    modified; else ""."""
    try:
        return (_PACKAGE / "commit.txt").read_text().strip()
    except OSError:
        return checked_out(_PACKAGE.parent.parent)


def described() -> str:
    """Return the version, and the commit if known."""
    return f"{polynya.__version__} (commit {commit()})" if commit() else polynya.__version__


def checked_out(root: Path) -> str:
    """Return the commit of the checkout at `root`, with `-dirty` if modified, or "" if `root` is no
    checkout."""
    # git would else report a repository that contains this installation
    if not (root / ".git").exists():
        return ""
    command = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
