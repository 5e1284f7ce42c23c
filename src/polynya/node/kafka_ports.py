"""The ports for Kafka clients that the supervisor reserves: one that all cores share, and one of
each core."""

from __future__ import annotations

import contextlib
import logging
import socket
from urllib.parse import urlsplit

from polynya.base.errors import ConfigError
from polynya.config.core_start import Address
from polynya.config.model import Config, resolve, split_listen
from polynya.system.ports import spelled, take_port

KAFKA_PORT = 9092
DIRECT_STEP = 1000  # from the shared port to that of core 0
log = logging.getLogger("polynya.supervisor")


def take_shared(config: Config, held: contextlib.ExitStack) -> tuple[str, int]:
    """Reserve the port that all cores share; port 0: there is none. A default port may be taken."""
    listen = config.kafka.listen
    if listen == "off" or (listen is None and not (config.needs_token or config.is_local)):
        return "", 0
    default = f"127.0.0.1:{KAFKA_PORT if split_listen(config.listen)[1] else 0}"
    host, port = split_listen(default if listen is None else listen)
    host = resolve(host)[0]
    try:
        taken = held.enter_context(
            take_port(host, port, name="kafka.listen", change="--kafka-listen")
        )
    except ConfigError as error:
        if listen is not None:
            raise
        log.warning(
            "serving without Kafka: its default port is not free", extra={"error": str(error)}
        )
        return "", 0
    return host, taken.getsockname()[1]


def take_direct(
    config: Config, shared: Address | None, cores: int, held: contextlib.ExitStack
) -> tuple[Address, ...]:
    """Reserve a port of each core; none on a node that is one broker. Default ports may be
    taken."""
    if shared is None or cores == 1 or config.kafka.brokers == "node":
        return ()
    numbers = _numbers(config, shared, cores)
    with contextlib.ExitStack() as taking:
        ports = []
        try:
            for number in numbers:
                taken = take_port(shared.host, number, name="kafka.direct", change="--kafka-direct")
                ports.append(taking.enter_context(taken).getsockname()[1])
        except ConfigError as error:
            if config.kafka.direct is not None:
                raise
            log.warning(
                "the node is one Kafka broker: a default port of its cores is not free",
                extra={"error": str(error)},
            )
            return ()
        held.enter_context(taking.pop_all())
    return tuple(Address(shared.host, port) for port in ports)


def _numbers(config: Config, shared: Address, cores: int) -> list[int]:
    """Return the ports of the cores; 0: any free one."""
    first = config.kafka.direct
    if first is None:
        listen = config.kafka.listen or config.listen
        first = shared.port + DIRECT_STEP if split_listen(listen)[1] else 0
    if first + cores - 1 > 65_535:
        raise ConfigError(
            f"kafka.direct: the ports of {cores} cores begin at {first} and end after 65535; "
            "choose a lower one with --kafka-direct, or --kafka-brokers node"
        )
    return [first + core if first else 0 for core in range(cores)]


def advertised(config: Config, shared: Address | None) -> str:
    """Return the HOST:PORT for Kafka clients; "" without Kafka."""
    if shared is None:
        return ""
    host = shared.host
    if host in ("0.0.0.0", "::"):  # noqa: S104 (compared)
        own = (
            config.cluster.own.http if config.cluster.is_on and config.cluster.lists_itself else ""
        )
        host = urlsplit(own).hostname or socket.gethostname()
    return config.kafka.advertised or spelled(host, shared.port)
