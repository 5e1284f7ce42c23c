"""Seeds that are others with each commit in CI, and always the same elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def commit_seed(usual: int = 0) -> int:
    """From the commit, where CI checks one; it is printed with whatever fails."""
    if not os.environ.get("CI"):
        return usual
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout[:7], 16) if done.returncode == 0 else usual
