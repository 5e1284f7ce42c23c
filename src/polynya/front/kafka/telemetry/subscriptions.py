"""The subscriptions to the metrics of clients, and which clients each matches.

The meta group has them, as the scope `kafka-client-metrics` of its settings. A core reads them while
clients ask, at most once a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from zlib import crc32

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.limits import (
    CLIENT_LABEL_CHARACTERS_MAX,
    CLIENT_METRICS_INTERVAL_MS_MAX,
    CLIENT_METRICS_INTERVAL_MS_MIN,
    CLIENT_METRICS_MAX,
    CLIENT_METRICS_NAMES_MAX,
    CLIENT_METRICS_VALUE_CHARACTERS_MAX,
)
from polynya.front.kafka.configs import INT, LIST, list_of
from polynya.service.settings.bucket_profiles import MetaSettings
from polynya.service.settings.named_configs import Configs, Limit, NamedConfigs
from polynya.stream.features.consumer_groups.patterns import InvalidPattern, Pattern

SCOPE = "kafka-client-metrics"
METRICS, INTERVAL, MATCH = "metrics", "interval.ms", "match"
INTERVAL_MS = 300_000  # without a subscription, as Kafka's
EVERY_METRIC = "*"
_NAME_CHARACTERS_MAX = 249  # as of a topic
_LETTERS = frozenset(map(chr, range(32, 256)))  # of the ids of clients


class ClientMetricsConfig(msgspec.Struct, frozen=True, gc=False):
    """A config of a subscription."""

    type: int
    default: str
    documentation: str


CONFIGS = {
    INTERVAL: ClientMetricsConfig(
        INT, str(INTERVAL_MS), "The interval at which clients push metrics, in milliseconds."
    ),
    MATCH: ClientMetricsConfig(
        LIST,
        "",
        "Which clients are meant: a list of SELECTOR=REGEX, all of which match. Empty: all.",
    ),
    METRICS: ClientMetricsConfig(
        LIST, "", "The beginnings of the names of metrics that clients push; * are all."
    ),
}


class Client(msgspec.Struct, frozen=True, gc=False):
    """A client as subscriptions match it."""

    client_id: str
    client_instance_id: str
    client_software_name: str
    client_software_version: str
    client_source_address: str
    client_source_port: str


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """The metrics that a client shall push. No metrics: it shall not push."""

    metrics: tuple[str, ...] = ()
    interval_ms: int = INTERVAL_MS

    def id_for(self, instance: bytes) -> int:
        """Return the id of this subscription for a client: the same at each broker."""
        text = f"{','.join(self.metrics)} {self.interval_ms}".encode()
        return crc32(text, crc32(instance)) - (1 << 31)

    def takes(self, metric: str) -> bool:
        """Report whether a metric is subscribed to."""
        return self.metrics == (EVERY_METRIC,) or metric.startswith(self.metrics)


class InvalidClientMetrics(PolynyaError):
    """A subscription cannot be changed so; the message says why."""


class Subscription:
    """A subscription with compiled expressions. Raises InvalidClientMetrics."""

    def __init__(self, configs: Configs) -> None:
        self.metrics = list_of(configs.get(METRICS, ""))
        if len(self.metrics) > CLIENT_METRICS_NAMES_MAX:
            raise InvalidClientMetrics(
                f"{METRICS} has {len(self.metrics)} names; at most {CLIENT_METRICS_NAMES_MAX}"
            )
        self.interval_ms = _interval(configs.get(INTERVAL, str(INTERVAL_MS)))
        self._patterns = [_selector(each) for each in list_of(configs.get(MATCH, ""))]

    def matches(self, client: Client) -> bool:
        """Report whether the client is meant."""
        return all(pattern.matches(getattr(client, name)) for name, pattern in self._patterns)


def _interval(text: str) -> int:
    least, most = CLIENT_METRICS_INTERVAL_MS_MIN, CLIENT_METRICS_INTERVAL_MS_MAX
    is_number = text.isascii() and text.isdigit() and len(text) < 19
    if not is_number or not least <= int(text) <= most:
        raise InvalidClientMetrics(f"{INTERVAL} is '{text[:50]}'; expected {least} to {most}")
    return int(text)


def _selector(text: str) -> tuple[str, Pattern]:
    name, equals, expression = text.partition("=")
    name = name.strip()
    if not equals or name not in Client.__struct_fields__:
        names = ", ".join(Client.__struct_fields__)
        raise InvalidClientMetrics(
            f"{MATCH} has '{text[:100]}'; expected SELECTOR=REGEX with one of {names}"
        )
    try:
        return name, Pattern(expression.strip(), _LETTERS)
    except InvalidPattern as invalid:
        raise InvalidClientMetrics(f"{MATCH} has '{text[:100]}': {invalid}") from None


def checked(configs: Configs) -> Configs:
    """Return the configs of a subscription, if they are valid. Raises InvalidClientMetrics."""
    for name, value in configs.items():
        if name not in CONFIGS:
            raise InvalidClientMetrics(
                f"unknown client metrics configuration: {name[:100]}; known are {', '.join(CONFIGS)}"
            )
        if len(value) > CLIENT_METRICS_VALUE_CHARACTERS_MAX:
            raise InvalidClientMetrics(
                f"{name} has {len(value)} characters; at most {CLIENT_METRICS_VALUE_CHARACTERS_MAX}"
            )
    Subscription(configs)
    return configs


def is_name(name: str) -> bool:
    """Report whether a subscription may have this name."""
    return 0 < len(name) <= _NAME_CHARACTERS_MAX


class ClientMetricsSubscriptions:
    """The subscriptions, as one core knows them."""

    def __init__(self, meta_group: MetaSettings) -> None:
        self._compiled: list[Subscription] = []
        self._unions: dict[Wanted, Wanted] = {}
        self.version = -1  # the number of their last change
        self._stored = NamedConfigs(
            meta_group,
            SCOPE,
            checked=checked,
            limit=Limit(
                CLIENT_METRICS_MAX,
                InvalidClientMetrics,
                f"there are {CLIENT_METRICS_MAX} subscriptions, which is the limit: delete some",
            ),
            what="the subscriptions of client metrics",
            on_read=self._compile,
        )
        self.all = self._stored.all

    async def refresh(self) -> None:
        """Read the subscriptions unless they are of the last second. While the meta group does not
        answer, the last ones stay in use."""
        await self._stored.reads.refresh()

    def wanted(self, client: Client) -> Wanted:
        """Return the union of the subscriptions that match a client, at the shortest interval."""
        found = [each for each in self._compiled if each.metrics and each.matches(client)]
        if not found:
            return Wanted()
        metrics = {metric for each in found for metric in each.metrics}
        names = (EVERY_METRIC,) if EVERY_METRIC in metrics else tuple(sorted(metrics))
        wanted = Wanted(names, min(each.interval_ms for each in found))
        if len(self._unions) >= CLIENT_METRICS_MAX:
            self._unions.clear()
        return self._unions.setdefault(wanted, wanted)  # clients share it

    async def alter(self, name: str, change: Callable[[Configs], Configs]) -> None:
        """Change a subscription, which ends with its last config. `change` gets the present
        configs. Raises Unavailable, InvalidClientMetrics."""
        if await self._stored.alter(name, change):
            await self._stored.reads.now()

    def _compile(self, version: int) -> None:
        if version != self.version:
            self._compiled = _compiled(self._stored.known.values())
            self._unions.clear()
            self.version = version


def _compiled(known: Iterable[Configs]) -> list[Subscription]:
    """Compile the subscriptions; one of a newer release that is invalid here counts for nothing."""
    found = []
    for each in known:
        try:
            found.append(Subscription(each))
        except InvalidClientMetrics:
            continue
    return found


def shortened(text: str) -> str:
    """Return as much of a client's text as is matched and shown."""
    return text[:CLIENT_LABEL_CHARACTERS_MAX]
