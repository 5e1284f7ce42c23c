"""The samples of a histogram: cumulative buckets, their sum and count, and exemplars."""

from __future__ import annotations

from itertools import accumulate

from polynya.base.histogram import BOUNDS, Histogram

Exemplars = dict[str, tuple[str, str, float]]
"""By the key of a bucket's sample: the label of a trace or request, its id, and the seconds."""
SUFFIXES = ("_bucket", "_sum", "_count")


class HistogramSource:
    """The samples of one histogram of the table. `labels` are in braces, without `le`."""

    def __init__(self, name: str, histogram: Histogram, labels: str = "") -> None:
        self._histogram = histogram
        bounds = [*map(repr, BOUNDS), "+Inf"]
        before = f"{labels}," if labels else ""
        self._buckets = [f'{name}_bucket{{{before}le="{bound}"}}' for bound in bounds]
        own = f"{{{labels}}}" if labels else ""
        self._sum, self._count = f"{name}_sum{own}", f"{name}_count{own}"

    def __call__(self) -> dict[str, float]:
        """Return the samples."""
        histogram = self._histogram
        counts = [*accumulate(histogram.counts)]
        samples: dict[str, float] = dict(zip(self._buckets, counts, strict=True))
        samples[self._sum], samples[self._count] = histogram.total, counts[-1]
        return samples

    def exemplars(self) -> Exemplars:
        """Return the exemplars."""
        return {self._buckets[at]: found for at, found in self._histogram.exemplars.items()}
