"""Throttling of repeated log lines to one a minute, for callers that keep retrying."""

from __future__ import annotations

AGAIN_SECONDS = 60.0
KEPT_MAX = 256  # distinct events; beyond that all are forgotten and logged again


class LogThrottle:
    """Counts equal events in bounded memory."""

    def __init__(self) -> None:
        self._said: dict[
            tuple[str, ...], tuple[float, int]
        ] = {}  # event -> (time of the last log line, occurrences since)

    def due(self, now: float, *words: str) -> int:
        """Count an event. Returns the occurrences since its last log line, this one included, or 0
        if it is not due yet."""
        said = self._said.get(words)
        if said is None:
            if len(self._said) >= KEPT_MAX:
                self._said.clear()
            self._said[words] = (now, 0)
            return 1
        since, times = said
        if now - since < AGAIN_SECONDS:
            self._said[words] = (since, times + 1)
            return 0
        self._said[words] = (now, 0)
        return times + 1
