"""The commit of this checkout, as results name it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def commit() -> str:
    """Return the short hash of the commit that is tested, "-dirty" after it where files of the
    product differ; "" outside a repository."""
    return _git("rev-parse", "--short=10", "HEAD") + _dirty()


def source() -> str:
    """Return the last commit that changed the product: later ones test the same."""
    return _git("log", "-1", "--format=%h", "--abbrev=10", "--", "src") + _dirty()


def _dirty() -> str:
    return "-dirty" if _git("status", "--porcelain", "--", "src") else ""


def _git(*words: str) -> str:
    return subprocess.run(
        ("git", *words), cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
