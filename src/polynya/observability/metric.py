"""The record that describes one metric."""

from __future__ import annotations

import msgspec


class Metric(msgspec.Struct, frozen=True):
    """One row of the table. `merge` combines the values of a node's cores: "sum" or "max"."""

    name: str
    kind: str  # counter | gauge | histogram, always of seconds
    help: str
    labels: tuple[str, ...] = ()
    merge: str = "sum"

    @property
    def spelled_labels(self) -> str:
        return ", ".join(f"`{label}`" for label in self.labels)
