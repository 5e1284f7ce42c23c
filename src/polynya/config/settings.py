"""The table of settings: key, environment variable, flag, type, default and meaning of each. The
docs are generated from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from polynya.base.limits import (
    DELETE_GRACE_MS,
    DISKLESS_COPY_MS,
    DISKLESS_INTERVAL_MS,
    DISKLESS_PACK_BYTES,
    EVICT_AFTER_MS,
    FLUSH_BYTES,
    FLUSH_INTERVAL_MS,
    FLUSH_MAX_AGE_MS,
    FLUSH_MAX_CONCURRENCY,
    GROUPS_MAX,
    HOT_BYTES_PER_GROUP,
    KIB,
    LONG_POLL_SECONDS_DEFAULT,
    MIB,
    OFFSETS_RETENTION_SECONDS,
    PAGE_ENTRIES,
    SEGMENT_BYTES,
    SEGMENT_RECORDS,
)
from polynya.base.names import DISKLESS, PROFILES, REPLICATED
from polynya.config.cluster_settings import NODE_MAX, parse_cluster_id, parse_nodes, parse_place

PREFIX = "POLYNYA_"
CLIENT_VARIABLES = {  # known, but not node settings
    "POLYNYA_SERVER": "the server that the client commands talk to",
    "POLYNYA_CONTEXT": "the context (`polynya context`) that they take it from; `POLYNYA_SERVER` goes before it",
    "POLYNYA_TOKEN": "the access token that they send",
    "POLYNYA_TOKEN_FILE": "a file that holds it",
    "POLYNYA_CA_FILE": "a file of certificates that they trust, such as that of `--tls-self`",
}
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_SECONDS_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_text(text: str) -> str:
    """Return any text unchanged."""
    return text


def parse_profile(text: str) -> str:
    """Parse the name of a profile of streams."""
    if text not in PROFILES:
        raise ValueError(f"expected {' or '.join(PROFILES)}")
    return text


def parse_default_profile(text: str) -> str:
    """Parse a profile that streams may have unless their creation names another."""
    if text not in (REPLICATED, DISKLESS):
        raise ValueError(f"expected {REPLICATED} or {DISKLESS}")
    return text


def parse_count(text: str) -> int:
    """Parse a whole number."""
    if not re.fullmatch(r"\d{1,9}", text.strip(), re.ASCII):
        raise ValueError("expected a whole number")
    return int(text)


def parse_switch(text: str) -> bool:
    """Parse `true` or `false` (also 1, 0, yes, no, on, off)."""
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError("expected true or false")


def parse_size(text: str) -> int:
    """Parse a size in bytes: a bare number, or one with a unit, as in `8MiB` or `64 kB`."""
    match = _NUMBER_UNIT.fullmatch(text)
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError("expected a size such as 8388608, 8MiB or 64kB")
    return int(float(match[1]) * _SIZE_UNITS[match[2].lower()])


def parse_seconds(text: str) -> float:
    """Parse a duration in seconds: a bare number, or one with a unit, as in `500ms`, `1s`,
    `5min`."""
    return _duration(text, bare=1.0)


def parse_millis(text: str) -> int:
    """Parse a duration in milliseconds: a bare number, or one with a unit, as in `500ms`, `1s`,
    `5min`."""
    return round(_duration(text, bare=0.001) * 1000)


def _duration(text: str, *, bare: float) -> float:
    match = _NUMBER_UNIT.fullmatch(text)
    unit = None if match is None else bare if not match[2] else _SECONDS_UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise ValueError("expected a duration such as 1s, 500ms or 5min")
    return float(match[1]) * unit


class Setting(msgspec.Struct, frozen=True):
    """One setting. The variable and the flag follow from the key; `doc` explains a default of
    None."""

    key: str  # path in `Config` and in the TOML file
    parse: Callable[[str], Any]
    default: Any
    doc: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    secret: bool = False  # never shown and no flag, as every process can read a command line

    @property
    def env(self) -> str:
        return PREFIX + self.key.upper().replace(".", "_")

    @property
    def flag(self) -> str | None:
        return None if self.secret else "--" + self.key.replace(".", "-").replace("_", "-")

    @property
    def kind(self) -> str:
        """Return the type as the docs name it."""
        if self.choices:
            return " \\| ".join(self.choices)
        return _KINDS[self.parse]

    def read(self, text: str) -> Any:
        """Return the value. Raise ValueError with the expected form."""
        value = self.parse(text)
        if self.choices and value not in self.choices:
            raise ValueError("expected one of " + ", ".join(self.choices))
        if self.low is not None and value < self.low:
            raise ValueError(f"expected at least {self.low:g}")
        if self.high is not None and value > self.high:
            raise ValueError(f"expected at most {self.high:g}")
        return value


_KINDS: dict[Callable[[str], Any], str] = {
    parse_text: "text",
    parse_count: "number",
    parse_profile: "profile",
    parse_default_profile: "profile",
    parse_switch: "true \\| false",
    parse_cluster_id: "hexadecimal",
    parse_nodes: "nodes",
    parse_place: "HOST:PORT",
    parse_size: "size",
    parse_seconds: "duration (s)",
    parse_millis: "duration (ms)",
}

SETTINGS = (
    Setting(
        "listen",
        parse_text,
        "127.0.0.1:4437",
        "Address and port of HTTP and health. Port 0 selects a free port. The admin port is the "
        "next one (a free one for port 0).",
    ),
    Setting(
        "data",
        parse_text,
        "./polynya-data",
        "The folder of the journal, the snapshots and the embedded object store.",
    ),
    Setting(
        "cores",
        parse_count,
        None,
        "Processes that share the port. Default: half of the CPUs, at least 1, fixed when the "
        "data folder is created. At most one per group.",
        low=1,
        high=GROUPS_MAX,
    ),
    Setting(
        "groups",
        parse_count,
        None,
        "Groups that streams are hashed to. Default: 16; fixed when the data folder is created.",
        low=1,
        high=GROUPS_MAX,
    ),
    Setting(
        "scheduling",
        parse_text,
        "batch",
        "The Linux scheduling policy of the cores: 'batch' avoids preemption, which saves a tenth "
        "of the CPU; 'normal' has lower latency where other "
        "programs keep all CPUs busy.",
        ("batch", "normal"),
    ),
    Setting(
        "long_poll_timeout",
        parse_seconds,
        LONG_POLL_SECONDS_DEFAULT,
        "How long a long-poll read waits for new data before an empty response.",
        low=0.01,
        high=3600,
    ),
    Setting(
        "unsafe_no_auth",
        parse_switch,
        False,
        "Allow a `listen` address beyond loopback without access control or without TLS; "
        "`/readyz?verbose` then shows a warning.",
    ),
    Setting(
        "admin_listen",
        parse_text,
        "",
        "Open the admin port at this address and port too, for holders of a token with `admin`. "
        "Default: loopback only, without tokens.",
    ),
    Setting(
        "text_listen",
        parse_text,
        "",
        "Serve the text protocol of Walrus at this address and port (docs/walrus.md). `on`: the "
        "host of `listen`, and its port plus 4. "
        "Default: off. Beyond loopback it needs TLS, and callers need a token.",
    ),
    Setting(
        "default_profile",
        parse_default_profile,
        REPLICATED,
        "The profile of streams and Kafka topics whose creation and bucket name none: `replicated`, "
        "or `diskless` for records that are stored in the object store alone (docs/diskless.md).",
    ),
    Setting(
        "text_profile",
        parse_profile,
        REPLICATED,
        "The profile of the topics that `REGISTER` creates: `replicated`, `diskless`, or `leased` "
        "for streams of segments with one writer each.",
    ),
    Setting(
        "diskless.interval",
        parse_millis,
        DISKLESS_INTERVAL_MS,
        "How long a core collects the appends of its diskless streams before it stores them. A "
        "longer time costs fewer requests to the object store, and appends take longer.",
        low=10,
        high=10_000,
    ),
    Setting(
        "diskless.pack_size",
        parse_size,
        DISKLESS_PACK_BYTES,
        "The bytes of appends to diskless streams that a core stores without waiting for "
        "`diskless.interval`.",
        low=64 * KIB,
        high=32 * MIB,
    ),
    Setting(
        "diskless.copy_interval",
        parse_millis,
        DISKLESS_COPY_MS,
        "How often a group with new commits of diskless streams copies them to the object store. "
        "After the loss of all disks, commits of about this time are lost. A longer time costs "
        "fewer requests.",
        low=1000,
        high=60_000,
    ),
    Setting(
        "segments.records",
        parse_count,
        SEGMENT_RECORDS,
        "The records of a segment of a leased stream, unless its creation names a limit.",
        low=1,
    ),
    Setting(
        "segments.bytes",
        parse_size,
        SEGMENT_BYTES,
        "The bytes of a segment of a leased stream, unless its creation names a limit.",
        low=1,
    ),
    Setting(
        "allowed_hosts",
        parse_text,
        "",
        "Host names that a node without access control accepts, separated by commas; `*` accepts "
        "any. Default: IP addresses, `localhost`, "
        "`*.localhost`, the host of `listen` and the hosts of the cluster's nodes. Other requests "
        "get 421, which protects "
        "against DNS rebinding.",
    ),
    Setting(
        "cors_origins",
        parse_text,
        "local",
        "Origins of web pages that may read and write, separated by commas. `local` is every "
        "origin on this machine (loopback) or on a "
        "host of the cluster or of `allowed_hosts`; `*` is any, `none` is none.",
    ),
    Setting(
        "tls.cert",
        parse_text,
        "",
        "A file with the certificate and its intermediate certificates (PEM). It is reloaded when "
        "it changes.",
    ),
    Setting("tls.key", parse_text, "", "A file with its private key (PEM), without a passphrase."),
    Setting(
        "tls.self",
        parse_switch,
        False,
        "Serve TLS with a self-signed certificate in the data folder; its fingerprint is printed. "
        "For development.",
    ),
    Setting(
        "auth.required",
        parse_switch,
        None,
        "Require a token for requests. Default: when `listen` reaches beyond loopback, unless "
        "`unsafe_no_auth`.",
    ),
    Setting("auth.jwt_issuer", parse_text, "", "Accept JWTs with this `iss` as tokens."),
    Setting("auth.jwt_audience", parse_text, "", "The required `aud` of the JWTs."),
    Setting(
        "auth.jwt_keys",
        parse_text,
        "",
        "The issuer's key set (JWKS): a file, or a URL that is fetched every five minutes.",
    ),
    Setting(
        "auth.jwt_claim", parse_text, "scope", "The claim of the JWTs that holds their scopes."
    ),
    Setting(
        "auth.jwt_lifetime_max",
        parse_seconds,
        86_400.0,
        "The maximum lifetime of a JWT, `exp - iat`; without `iat`, its remaining lifetime. "
        "Longer ones are rejected.",
        low=1,
    ),
    Setting(
        "auth.requests_per_second",
        parse_count,
        0,
        "Requests per second of a token without its own limit; 0 is unlimited.",
    ),
    Setting(
        "auth.bytes_per_second",
        parse_size,
        0,
        "Bytes per second of request and response bodies together, likewise.",
    ),
    Setting(
        "auth.streams",
        parse_count,
        0,
        "Streams that may exist under a token's prefixes when it creates one, likewise.",
    ),
    Setting("auth.connections", parse_count, 0, "Open connections, likewise."),
    Setting(
        "cluster.id",
        parse_cluster_id,
        "",
        "The id of the cluster: 32 hexadecimal digits, the same on every node, fixed when a data "
        "folder is created.",
    ),
    Setting(
        "cluster.node",
        parse_count,
        0,
        "The id of this node in `cluster.nodes`; fixed when the data folder is created. 0 is a "
        "standalone node.",
        high=NODE_MAX,
    ),
    Setting(
        "cluster.nodes",
        parse_nodes,
        (),
        "The initial nodes of the cluster, with this one: in TOML `[[cluster.nodes]]` with `id` "
        "(a number), `peer` (HOST:PORT, for the "
        'other nodes), `http` (the URL for clients), an optional `zone`, and `role = "reader"` '
        "for a read replica; elsewhere "
        "`ID=PEER=HTTP`, `ID=PEER=HTTP=ZONE` or `ID=PEER=HTTP=ZONE=reader` separated by commas. "
        "The same on every node. Later, a node uses the list "
        "only to find the others: the cluster map holds the members.",
    ),
    Setting(
        "cluster.replicas",
        parse_count,
        3,
        "The number of replicas of each group: 1, 3 or 5. Fixed when the cluster is created; "
        "`polynya cluster rebalance --replicas` "
        "changes it.",
    ),
    Setting(
        "cluster.history",
        parse_count,
        1,
        "The minimum history of a node without data in a restored cluster: the number that "
        "`polynya restore` printed. It is needed where "
        "the node reaches neither the other nodes nor the object store, from which it otherwise "
        "reads the history. "
        "A node with data keeps its own.",
    ),
    Setting(
        "cluster.join",
        parse_switch,
        False,
        "Join this node to an existing cluster (`polynya cluster add` registers it and prints the "
        "settings). Applies only to an "
        "empty data folder.",
    ),
    Setting(
        "cluster.replace_after",
        parse_seconds,
        0.0,
        "Replace the replicas of a node that is down for this long, on nodes with room. 0 "
        "disables this: an operator "
        "decides with `polynya cluster remove`. The same on every node.",
        low=0,
    ),
    Setting(
        "cluster.leader_follows_writers",
        parse_switch,
        True,
        "Move the leadership of a group to the node through which nearly all its appends arrive. "
        "Otherwise, and when this is off, leaderships stay "
        "evenly spread over the nodes.",
    ),
    Setting(
        "cluster.listen",
        parse_place,
        "",
        "The address of this node's peer port. Default: its `peer` in `cluster.nodes`.",
    ),
    Setting(
        "cluster.ca",
        parse_text,
        "",
        "A file with the certificate of the cluster's authority (PEM); nodes authenticate each "
        "other with certificates signed by it.",
    ),
    Setting(
        "cluster.cert",
        parse_text,
        "",
        "A file with this node's certificate, for the name `node-ID.polynya.internal` (PEM).",
    ),
    Setting(
        "cluster.key", parse_text, "", "A file with its private key (PEM), without a passphrase."
    ),
    Setting(
        "cluster.unsafe_no_tls",
        parse_switch,
        False,
        "Allow a peer port beyond loopback without certificates: any host that reaches it may "
        "then read and write everything.",
    ),
    Setting(
        "kafka.listen",
        parse_text,
        None,
        "Address and port for Kafka clients; `off` for none. Port 0 selects a free port. Default: "
        "127.0.0.1:9092 (a free port where `listen` has "
        "port 0), except with `unsafe_no_auth` and a `listen` beyond loopback; if that port is "
        "taken, the node warns and serves without Kafka. Clients authenticate by SASL where HTTP "
        "needs tokens, and on every address beyond loopback; TLS is that of `listen`.",
    ),
    Setting(
        "kafka.brokers",
        parse_text,
        "core",
        "What Kafka clients see as a broker: each `core`, with a port of its own, or the `node`, "
        "with the port of `kafka.listen` alone and a hop to the right core.",
        ("core", "node"),
    ),
    Setting(
        "kafka.direct",
        parse_count,
        None,
        "The port of core 0 for Kafka clients; core N has the port N after it, on the host of "
        "`kafka.listen`. A node with one core has none. Default: 1000 after the port of "
        "`kafka.listen` (free ports where that is 0); if one of these default ports is taken, the "
        "node warns and is one broker.",
        low=1,
        high=65_535,
    ),
    Setting(
        "kafka.advertised",
        parse_text,
        "",
        "The HOST:PORT at which Kafka clients reach this node, where that differs from "
        "`kafka.listen`: behind NAT, in a container. The ports of the cores (`kafka.direct`) are "
        "reached at the same host under their own numbers.",
    ),
    Setting(
        "kafka.auto_create",
        parse_switch,
        True,
        "Create a Kafka topic when a client that allows it names the topic first.",
    ),
    Setting(
        "kafka.partitions",
        parse_count,
        1,
        "Partitions of a Kafka topic whose creator leaves their number open.",
    ),
    Setting(
        "kafka.offsets_retention",
        parse_seconds,
        OFFSETS_RETENTION_SECONDS,
        "The committed offsets of a consumer group without members expire after this. Use the "
        "same value on all nodes.",
        low=60,
    ),
    Setting(
        "log.level",
        parse_text,
        "info",
        "The minimum severity of log lines.",
        ("debug", "info", "warning", "error"),
    ),
    Setting(
        "log.format", parse_text, "logfmt", "The format of log lines on stderr.", ("logfmt", "json")
    ),
    Setting(
        "lake.interval",
        parse_seconds,
        0.0,
        "The interval at which the node updates all tables with `polynya lake run` as a child "
        "process; 0 disables it.",
        low=0,
    ),
    Setting("lake.master", parse_text, "local[*]", "The Spark master of that process."),
    Setting(
        "lake.merge_files",
        parse_count,
        10,
        "The number of files of a similar size that a table's jobs merge into one; 0 disables "
        "merges.",
        low=0,
        high=1000,
    ),
    Setting(
        "lake.merge_size",
        parse_size,
        128 * MIB,
        "Files of tables from this size on are not merged again; merged ones have up to twice as "
        "much.",
        low=MIB,
        high=512 * MIB,
    ),
    Setting(
        "catalog.s3_access_key_id",
        parse_text,
        "",
        "The S3 access key that the Iceberg catalog gives to clients that may read a table; it "
        "needs to read only objects under `tables/`. Default: clients use their own.",
    ),
    Setting("catalog.s3_secret_access_key", parse_text, "", "The secret of that key.", secret=True),
    Setting(
        "sql.enabled",
        parse_switch,
        True,
        "Answer SQL queries on tables (`POST /v1/sql`, the console). Requires the packages of "
        "`polynya[lake]`.",
    ),
    Setting("sql.timeout", parse_seconds, 30.0, "The timeout of one query.", low=0.1, high=600),
    Setting(
        "sql.memory",
        parse_size,
        512 * MIB,
        "The memory limit of DuckDB for one query.",
        low=64 * MIB,
    ),
    Setting(
        "cold.backend",
        parse_text,
        "local",
        "The object store for packs and tables: the embedded store on the local disk, S3, memory "
        "(for tests: lost on exit), or none.",
        ("local", "s3", "memory", "none"),
    ),
    Setting(
        "cold.root",
        parse_text,
        "",
        "The root of all objects: a key prefix in the bucket, or for `local` a folder (default: "
        "`objects` in the data folder).",
    ),
    Setting(
        "cold.shared",
        parse_switch,
        False,
        "Let other users read a `cold.root` outside the data folder: it keeps its mode, and new "
        "files get the same rights. "
        "Otherwise only the node's user may read the objects.",
    ),
    Setting("cold.s3_bucket", parse_text, "", "The bucket; required for `s3`."),
    Setting(
        "cold.s3_region",
        parse_text,
        "",
        "Default: the standard AWS chain (`AWS_REGION`, profile), else `us-east-1`.",
    ),
    Setting("cold.s3_endpoint", parse_text, "", "The URL of an S3-compatible store; default: AWS."),
    Setting("cold.s3_access_key_id", parse_text, "", "Default: the standard AWS credential chain."),
    Setting(
        "cold.s3_secret_access_key", parse_text, "", "The secret of the access key id.", secret=True
    ),
    Setting("cold.s3_session_token", parse_text, "", "For temporary credentials.", secret=True),
    Setting(
        "cold.flush_interval_ms",
        parse_millis,
        FLUSH_INTERVAL_MS,
        "The interval at which a core checks for a flush; 0 flushes only on demand.",
    ),
    Setting("cold.flush_bytes", parse_size, FLUSH_BYTES, "The target size of a flush.", low=1),
    Setting(
        "cold.flush_min_hot_bytes",
        parse_size,
        None,
        "The hot bytes of a core that trigger a flush. Default: `cold.flush_bytes`.",
        low=1,
    ),
    Setting(
        "cold.flush_max_bytes",
        parse_size,
        None,
        "The maximum payload of one pack. Default: `cold.flush_bytes`.",
        low=1,
    ),
    Setting(
        "cold.flush_max_age_ms",
        parse_millis,
        FLUSH_MAX_AGE_MS,
        "The age at which hot bytes are flushed, whatever their number.",
        low=1,
    ),
    Setting(
        "cold.flush_max_concurrency",
        parse_count,
        FLUSH_MAX_CONCURRENCY,
        "Packs that one core uploads concurrently.",
        low=1,
        high=64,
    ),
    Setting(
        "cold.delete_grace_ms",
        parse_millis,
        DELETE_GRACE_MS,
        "Delay before an unreferenced object is deleted, for readers in progress.",
    ),
    Setting(
        "cold.evict_after_ms",
        parse_millis,
        EVICT_AFTER_MS,
        "Idle time after which the state of a stream moves from memory to the object store, until "
        "the next write. 0 disables it.",
    ),
    Setting(
        "cold.page_slices",
        parse_count,
        PAGE_ENTRIES,
        "Merged slices of a stream whose places move to one object (a page); 0: never.",
        low=0,
        high=16_384,
    ),
    Setting(
        "cold.max_hot_bytes_per_group",
        parse_size,
        HOT_BYTES_PER_GROUP,
        "Hot bytes of a group above which appends are rejected (503 with `Retry-After`) until a "
        "flush frees memory; 0 sets no "
        "limit. A single append above the limit is always rejected (413 "
        "`APPEND_EXCEEDS_MEMORY_LIMIT`), so a limit below 32 MiB is the largest append.",
    ),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}
BY_ENV = {setting.env: setting for setting in SETTINGS}
BY_FLAG = {setting.flag: setting for setting in SETTINGS if setting.flag is not None}
