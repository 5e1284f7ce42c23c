"""The settings of the Kafka listeners."""

from __future__ import annotations

from polynya.base import limits
from polynya.config import setting

KAFKA = (
    setting.text(
        "kafka.listen",
        None,
        "Address and port for Kafka clients; `off` for none. Port 0 selects a free port. Default: "
        "127.0.0.1:9092 (a free port where `listen` has "
        "port 0), except with `unsafe_no_auth` and a `listen` beyond loopback. If that port is in "
        "use, the node warns and serves without Kafka. Clients authenticate by SASL where HTTP "
        "needs tokens, and on every address beyond loopback; TLS is that of `listen`.",
    ),
    setting.text(
        "kafka.brokers",
        "core",
        "The brokers that Kafka clients see. `core`: each core, with a port of its own. `node`: the "
        "node, with the port of `kafka.listen` alone and a hop to the right core.",
        ("core", "node"),
    ),
    setting.count(
        "kafka.direct",
        None,
        "The port of core 0 for Kafka clients; core N has the port N after it, on the host of "
        "`kafka.listen`. A node with one core has none. Default: 1000 after the port of "
        "`kafka.listen` (free ports where that is 0). If one of these default ports is in use, the "
        "node warns and is one broker.",
        low=1,
        high=65_535,
    ),
    setting.text(
        "kafka.advertised",
        "",
        "The HOST:PORT at which Kafka clients reach this node, where that differs from "
        "`kafka.listen`: behind NAT, in a container. Clients reach the ports of the cores "
        "(`kafka.direct`) at the same host under their own numbers.",
    ),
    setting.switch(
        "kafka.auto_create",
        True,
        "Create a missing Kafka topic when a client that allows it names the topic.",
    ),
    setting.count(
        "kafka.partitions", 1, "Partitions of a Kafka topic whose creator sets no number."
    ),
    setting.seconds(
        "kafka.offsets_retention",
        limits.OFFSETS_RETENTION_SECONDS,
        "The committed offsets of a consumer group without members expire after this time. Use the "
        "same value on all nodes.",
        low=60,
    ),
)
