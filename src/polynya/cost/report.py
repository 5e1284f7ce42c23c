"""The answer of `GET /v1/cost`: the use of the object store and of the network between zones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from polynya.cost.history import SECONDS, Row

# the first parts of the keys of counts
STORE = "store"  # (STORE, kind of work, request or direction)
ZONE = "zone"  # (ZONE, from, to, kind): bytes from one zone to another
PACKED = "packed"  # (PACKED, kind of work, "payload" or "stored"): bytes of slices in packs
APPEND = "append"  # (APPEND, protocol, "requests" or "bytes"): appends by clients
PAYLOAD, CATALOG = "payload", "catalog"
Store = dict[str, dict[str, int]]  # kind of work -> request, direction or kind of bytes -> count


class ZoneBytes(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """Bytes from a zone to another one. `kind`: payload, or catalog (commands and Raft)."""

    source: str
    target: str
    kind: str
    bytes: int


class Usage(msgspec.Struct, frozen=True):
    """The counts of a node, or of an hour. `packed`: bytes of slices before and after their
    compression."""

    store: Store = {}
    zones: list[ZoneBytes] = []
    appends: int = 0
    append_bytes: int = 0
    packed: Store = {}

    def requests(self, *names: str) -> int:
        """Return the sum of these requests or directions over all kinds of work."""
        return sum(calls.get(name, 0) for calls in self.store.values() for name in names)

    def crossed(self, kind: str) -> int:
        """Return the bytes of a kind between different zones; unnamed zones do not count."""
        return sum(
            each.bytes
            for each in self.zones
            if each.kind == kind and each.source and each.target and each.source != each.target
        )


class NodeUsage(msgspec.Struct, frozen=True):
    """One node. `missing_cores` did not answer."""

    node: int
    zone: str
    usage: Usage
    missing_cores: list[int] = []


class HourUsage(msgspec.Struct, frozen=True):
    """One hour of all nodes. `time` is its begin."""

    time: str
    usage: Usage


class Shape(msgspec.Struct, frozen=True):
    """The parts of the cluster that the estimates need. `copies`: replicas of a group."""

    nodes: int = 1
    cores: int = 1
    zones: int = 1
    copies: int = 1
    pack_bytes: int = 8 << 20
    interval_ms: int = 250


class CostReport(msgspec.Struct, frozen=True):
    """The answer. `missing` nodes did not answer."""

    hours: int
    since: str
    until: str
    shape: Shape
    nodes: list[NodeUsage]
    by_hour: list[HourUsage]
    missing: list[int] = []


class NodeRows(msgspec.Struct, frozen=True):
    """The rows of the cores of one node."""

    node: int
    zone: str
    cores: Sequence[list[Row]]
    missing_cores: list[int]


def report_of(
    nodes: Sequence[NodeRows], shape: Shape, missing: list[int], hours: int, now: float
) -> CostReport:
    """Build the answer from the rows of all cores. `now`: seconds since 1970."""
    by_hour: dict[int, Counter[tuple[str, ...]]] = {}
    found = []
    for node in nodes:
        total = Counter[tuple[str, ...]]()
        for hour, counts in (row for core in node.cores for row in core):
            at = by_hour.setdefault(hour, Counter())
            for key, count in counts:
                total[key] += count
                at[key] += count
        found.append(NodeUsage(node.node, node.zone, usage_of(total.items()), node.missing_cores))
    first = int(now) // SECONDS - hours + 1
    return CostReport(
        hours,
        _instant(first * SECONDS),
        _instant(now),
        shape,
        found,
        [
            HourUsage(_instant(hour * SECONDS), usage_of(by_hour[hour].items()))
            for hour in sorted(by_hour)
        ],
        missing,
    )


def usage_of(counts: Iterable[tuple[tuple[str, ...], int]]) -> Usage:
    """Group counts by their keys. Keys of a newer release are left out."""
    store: Store = {}
    packed: Store = {}
    zones: list[ZoneBytes] = []
    appends = dict[str, int]()
    for key, count in sorted(counts):
        match key:
            case ("store", work, name):
                store.setdefault(work, {})[name] = count
            case ("packed", work, name):
                packed.setdefault(work, {})[name] = count
            case ("zone", source, target, kind):
                zones.append(ZoneBytes(source, target, kind, count))
            case ("append", _, name):
                appends[name] = appends.get(name, 0) + count
    return Usage(store, zones, appends.get("requests", 0), appends.get("bytes", 0), packed)


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")
