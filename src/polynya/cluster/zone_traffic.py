"""Bytes between zones: those that this core sends to other nodes, and those of clients that name
their zone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from polynya.cluster.map_cache import ClusterMapCache
from polynya.cost import CATALOG, PAYLOAD, ZONE, Counts
from polynya.front.common.client_traffic import ClientTraffic
from polynya.observability.metrics import Samples, label

Key = tuple[str, str, str]  # from zone, to zone, kind
ByNode = Callable[[], Mapping[int, int]]


class ZoneTraffic:
    """The bytes of one core by zones and kind. `sent` returns all bytes to each node, and each of
    `payloads` a part of them that is payload; the rest is the catalog's."""

    def __init__(
        self, node: int, maps: ClusterMapCache, sent: ByNode, payloads: Sequence[ByNode]
    ) -> None:
        self.clients: list[ClientTraffic] = []
        self._node, self._maps, self._sent, self._payloads = node, maps, sent, payloads
        self._last = Counter[tuple[int, str]]()
        self._bytes = Counter[Key]()
        self._last_of_clients = Counter[tuple[int, bool, str]]()

    def counts(self) -> Counts:
        """Return the bytes by the keys of the history."""
        self._update()
        return {(ZONE, *key): count for key, count in self._bytes.items()}

    def samples(self) -> Samples:
        """Return the bytes as metrics."""
        self._update()
        return {
            label("polynya_zone_bytes_total", **{"from": source, "to": target, "kind": kind}): count
            for (source, target, kind), count in self._bytes.items()
        }

    def _update(self) -> None:
        """Add the growth since the last call to the zones of the nodes as they are now."""
        sent = self._sent()
        payload = Counter[int]()
        for part in self._payloads:
            payload.update(part())
        for node, total in sent.items():
            target = self._zone_of(node)
            # a message that is queued or dropped is counted as payload, and not as sent
            paid = min(payload[node], total)
            self._grow(node, target, PAYLOAD, paid)
            self._grow(node, target, CATALOG, total - paid)
        self._update_clients()

    def _grow(self, node: int, target: str, kind: str, count: int) -> None:
        grown = count - self._last[node, kind]
        if grown > 0:
            self._last[node, kind] = count
            self._bytes[self._zone_of(self._node), target, kind] += grown

    def _update_clients(self) -> None:
        own = self._zone_of(self._node)
        zones = {record.zone for record in self._maps.now.nodes.values()} - {""}
        for number, front in enumerate(self.clients):
            for inward, counts in ((True, front.came), (False, front.went)):
                for zone in zones & counts.keys():
                    counter_key = (number, inward, zone)
                    grown = counts[zone] - self._last_of_clients[counter_key]
                    self._last_of_clients[counter_key] = counts[zone]
                    if grown:
                        key = (zone, own) if inward else (own, zone)
                        self._bytes[(*key, PAYLOAD)] += grown

    def _zone_of(self, node: int) -> str:
        record = self._maps.now.nodes.get(node)
        return "" if record is None else record.zone
