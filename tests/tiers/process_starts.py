"""Uses of processes that run already, counted as starts of processes."""

from __future__ import annotations

import sys

EVENT = "polynya.tests.process"


def note_process() -> None:
    """Count a use of a running process, such as a warm fork or a shared JVM, as a start."""
    sys.audit(EVENT)
