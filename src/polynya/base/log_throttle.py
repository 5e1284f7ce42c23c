"""What happens again and again is said once a minute: who is refused tries again for as long as it runs."""

from __future__ import annotations

AGAIN_SECONDS = 60.0
KEPT_MAX = 256  # different things; then all are forgotten, and said anew


class LogThrottle:
    """Counts what is the same by its words, in memory that is bounded."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, ...], tuple[float, int]] = {}  # when it was said last, and how often it happened since

    def due(self, now: float, *words: str) -> int:
        """How often it has happened since it was said last, this time included; 0 when it is not to be said again yet."""
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
