"""The counters of the text protocol."""

from __future__ import annotations

from collections import Counter


class TextCounters:
    """Counters of one front."""

    def __init__(self) -> None:
        self.commands: Counter[str] = Counter()
        self.errors = 0
        self.malformed = 0
        self.refused = 0  # connections over the limit, and handshakes dropped
        self.dropped = 0  # before authentication, for newer connections
        self.timeouts = 0

    def count(self, verb: str) -> None:
        """Count a command."""
        self.commands[verb] += 1

    def refuse(self) -> None:
        """Count a refused connection."""
        self.refused += 1
