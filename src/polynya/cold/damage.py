"""Slices and pages of the object store that readers of one core found damaged or short.

A reader gets an error each time. Health checks and metrics tell of the object until it is read
whole, or is gone: it may be restored from a copy, merged, or deleted with its streams.
"""

from __future__ import annotations

import logging

from polynya.stream.state.model import ColdSlice

KEPT_MAX = 1000  # places; more are counted at their next reads alone
NAMED_MAX = 5  # objects in one message
log = logging.getLogger("polynya.tier")


class DamagedObjects:
    """The places that could not be read, the oldest first."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, int], str] = {}  # object and offset -> the reason
        self._reads = 0

    def note(self, cold: ColdSlice, fault: Exception) -> None:
        """Record a read that found damage. A place is logged once."""
        place = (cold.pack, cold.offset)
        self._reads += 1
        if place in self._places or len(self._places) >= KEPT_MAX:
            return
        self._places[place] = str(fault)
        log.error(
            "an object in the object store is damaged: its readers get an error. Run 'polynya "
            "store verify', and restore the object from a copy",
            extra={"object": cold.pack, "offset": cold.offset, "error": str(fault)},
        )

    def clear(self, cold: ColdSlice) -> None:
        """Forget a place that was read whole."""
        if self._places:
            self._places.pop((cold.pack, cold.offset), None)

    def gone(self, key: str) -> None:
        """Forget an object that is no longer in the store."""
        if self._places:
            self._places = {place: why for place, why in self._places.items() if place[0] != key}

    def trouble(self) -> str | None:
        """Return the message for health checks, or None."""
        if not self._places:
            return None
        names = list(dict.fromkeys(key for key, _ in self._places))
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        return (
            f"damaged objects in the object store, whose readers get 503 DATA_DAMAGED: "
            f"{', '.join(names[:NAMED_MAX])}{more}; run 'polynya store verify'"
        )

    def samples(self) -> dict[str, float]:
        """Return the metrics."""
        return {
            "polynya_damaged_places": len(self._places),
            "polynya_damaged_reads_total": self._reads,
        }
