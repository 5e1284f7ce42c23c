"""The clients of a core that push metrics: when each may push, and its last numbers. It reads no
clock: `now` is in seconds."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from math import isfinite

import msgspec

from polynya.base.limits import (
    CLIENT_INSTANCES_MAX,
    CLIENT_SERIES_MAX,
    CLIENT_SERIES_PER_INSTANCE_MAX,
)
from polynya.front.kafka.errors import Error
from polynya.front.kafka.telemetry.subscriptions import Client, Wanted, shortened
from polynya.wire.kafka.otlp_points import Kind, Point, Points

_KEPT_INTERVALS = 3  # without a request, until a client counts as gone
_KEPT_SECONDS_LEAST = 60.0
_NOT_A_LABEL = re.compile(r"\W", re.ASCII)
Key = tuple[str, tuple[tuple[str, str], ...]]  # a metric's name and its attributes


class Series(msgspec.Struct, frozen=True, gc=False):
    """A metric of a client with its labels, and its last value."""

    is_counter: bool
    labels: dict[str, str]
    value: float


class Instance:
    """One client as this core knows it."""

    def __init__(self, id_: bytes, client: Client) -> None:
        self.id, self.client = id_, client
        self.wanted, self.version = Wanted(), -2  # the subscription, and the change that it is of
        self.last_error = Error.NONE
        self.is_terminating = False
        self.got_at = self.pushed_at = float("-inf")
        self.heard_at = 0.0
        self.pushes = 0
        self.series: dict[Key, tuple[bool, float]] = {}  # is a counter, and its value

    def may_get(self, now: float) -> bool:
        """Count a request for the subscription; False: it comes too early. A client whose push was
        refused asks again at once."""
        early = now - max(self.got_at, self.pushed_at) < self._seconds
        if early and self.last_error not in (
            Error.UNKNOWN_SUBSCRIPTION_ID,
            Error.UNSUPPORTED_COMPRESSION_TYPE,
        ):
            return False
        self.got_at = now
        return True

    def may_push(self, now: float) -> bool:
        """Count a push; False: it comes too early. The first after a request for the subscription
        comes at any time, as clients spread theirs over the interval."""
        if self.got_at <= self.pushed_at and now - self.pushed_at < self._seconds:
            return False
        self.pushed_at = now
        return True

    def is_gone(self, now: float) -> bool:
        """Report whether the client has not been heard for several intervals."""
        kept = max(_KEPT_SECONDS_LEAST, _KEPT_INTERVALS * self._seconds)
        return now - self.heard_at > kept

    def take(self, point: Point, room: int) -> bool:
        """Keep a number; False: there is no room for one more series."""
        key = (point.name, point.attributes)
        if not isfinite(point.value):  # there is none at present
            if point.kind == Kind.GAUGE:
                self.series.pop(key, None)
            return True
        known = self.series.get(key)
        if known is None and (room <= 0 or len(self.series) >= CLIENT_SERIES_PER_INSTANCE_MAX):
            return False
        before = known[1] if known is not None and point.kind == Kind.DELTA else 0.0
        self.series[key] = (point.kind != Kind.GAUGE, before + point.value)
        return True

    def shown(self) -> Iterator[Series]:
        """Yield the series with their labels: an attribute does not replace one of these three."""
        client = self.client
        for (name, attributes), (is_counter, value) in self.series.items():
            labels = {
                "client_id": client.client_id,
                "client_instance_id": client.client_instance_id,
                "metric": shortened(name),
            }
            for key, text in attributes:
                labels.setdefault(label_name(key), shortened(text))
            yield Series(is_counter, labels, value)

    @property
    def _seconds(self) -> float:
        return self.wanted.interval_ms / 1000


def label_name(key: str) -> str:
    """Return the name of the label of an attribute."""
    name = _NOT_A_LABEL.sub("_", shortened(key))
    return f"_{name}" if not name or name[0].isdigit() else name


class ClientInstances:
    """The clients of a core, the one that was heard last at the end. The oldest make room."""

    def __init__(self) -> None:
        self.pushes = self.refused = self.dropped_points = 0
        self.series = 0
        self._by_id: OrderedDict[bytes, Instance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def present(self, now: float) -> list[Instance]:
        """Return the clients that have not gone."""
        self.expire(now)
        return [each for each in self._by_id.values() if not each.is_gone(now)]

    def heard(self, id_: bytes, client: Client, now: float) -> Instance:
        """Return a client that sends a request, new or known."""
        self.expire(now)
        instance = self._by_id.get(id_)
        if instance is None or instance.client != client:
            if instance is not None:  # its connection is another one
                instance.client, instance.version = client, -2
            else:
                if len(self._by_id) >= CLIENT_INSTANCES_MAX:
                    self._drop(next(iter(self._by_id)))
                instance = self._by_id[id_] = Instance(id_, client)
        self._by_id.move_to_end(id_)
        instance.heard_at = now
        return instance

    def take(self, instance: Instance, points: Points) -> None:
        """Keep the numbers of a push that are subscribed to, as far as there is room."""
        if self._by_id.get(instance.id) is not instance:
            return  # it made room for others meanwhile
        self.pushes += 1
        instance.pushes += 1
        self.dropped_points += points.dropped
        before = len(instance.series)
        for point in points.taken:
            room = CLIENT_SERIES_MAX - self.series - len(instance.series) + before
            if not (instance.wanted.takes(point.name) and instance.take(point, room)):
                self.dropped_points += 1
        self.series += len(instance.series) - before

    def expire(self, now: float) -> None:
        """Forget the clients that have gone, the oldest first."""
        while self._by_id and next(iter(self._by_id.values())).is_gone(now):
            self._drop(next(iter(self._by_id)))

    def _drop(self, id_: bytes) -> None:
        self.series -= len(self._by_id.pop(id_).series)
