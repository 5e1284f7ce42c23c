"""Which build this is: its version, and the commit it was made from."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import polynya

GIT_SECONDS = 5.0
_PACKAGE = Path(polynya.__file__).parent


@functools.cache
def commit() -> str:
    """What was put into the package when it was built; in a checkout what git says, `-dirty` if it was changed; else empty."""
    try:
        return (_PACKAGE / "commit.txt").read_text().strip()
    except OSError:
        return checked_out(_PACKAGE.parent.parent)


def described() -> str:
    """The version, and the commit where it is known."""
    return f"{polynya.__version__} (commit {commit()})" if commit() else polynya.__version__


def checked_out(root: Path) -> str:
    """The commit of the checkout whose root this is, `-dirty` if it was changed; empty when it is none."""
    if not (root / ".git").exists():  # and not that of a repository around an environment that this is installed in
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
