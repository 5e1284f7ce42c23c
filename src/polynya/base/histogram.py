"""A histogram of durations with fixed buckets, cheap enough for every append."""

from __future__ import annotations

from bisect import bisect_left

# upper bounds in seconds, inclusive; longer durations have a bucket of their own
BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
# OpenMetrics 1.0 has at most 128 characters for the labels of an exemplar, names included
TRACE_CHARACTERS_MAX = 100


class Histogram:
    """The durations of one kind of work on one core, by bucket, and the last traced one of each
    bucket. The hot path of appends increments `counts` and `total` itself."""

    __slots__ = ("counts", "exemplars", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0  # seconds
        self.exemplars: dict[int, tuple[str, str, float]] = {}  # by bucket: label, value, seconds

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds

    def remember(self, seconds: float, label: str, value: str) -> None:
        """Keep a counted duration as the exemplar of its bucket, unless its id is too long."""
        if len(value) <= TRACE_CHARACTERS_MAX:
            self.exemplars[bisect_left(BOUNDS, seconds)] = (label, value, seconds)
