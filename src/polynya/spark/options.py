"""The options of `format("polynya")`, checked before anything is read or written."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

import msgspec

from polynya.base.errors import ConfigError
from polynya.base.msgpack import UNREADABLE
from polynya.base.names import SPARK_CURSORS, SPARK_STAGING
from polynya.client.values import SERVER_DEFAULT
from polynya.spark.kafka_names import hint, translated
from polynya.spark.starts import Start, ending, starting

STORE, SERVER = "store", "server"
PARTITION_BYTES = 32 << 20
_OWN = "POLYNYA_COLD_S3_"
_CONNECTION = ("server", "token")
_KEYS = ("s3AccessKeyId", "s3SecretAccessKey", "s3SessionToken")
_SOURCE = (
    *_CONNECTION,
    *("stream", "prefix", "subscribe", "subscribePattern", "assign"),
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "failOnDataLoss"),
    *("maxRecordsPerTrigger", "maxBytesPerTrigger"),
    *("readFrom", "partitionBytes", "columns", "pushdown", "cursors"),
    *_KEYS,
)
_SELECTIONS = ("stream", "prefix", "subscribe", "subscribePattern", "assign")
_NO_OPTIONS = (
    "format('polynya') got no options. Spark passes those of a table (create table ... using polynya) "
    "to no Python source. Name the streams in the query: select * from t with ('stream'='orders'), "
    "insert into t with ('stream'='orders') ...; or use polynya.spark.catalog.create_view, or create "
    "temporary view ... using polynya options (...). A DataFrame needs at least one option, such as "
    "'server' or 'stream', or for a write a column 'stream' and the option 'server'"
)
_SPARKS = ("checkpointLocation", "queryName")  # Spark's own, which a sink gets as well
_SINK = (*_CONNECTION, "stream", "topic", "staging", "jobId", *_SPARKS)


class Connection(msgspec.Struct, frozen=True):
    """The server and the token."""

    server: str
    token: str = ""


class StoreKeys(msgspec.Struct, frozen=True):
    """The reader's credentials of an S3 store, which tasks get; "" for the executors' own."""

    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""

    def __repr__(self) -> str:
        return f"StoreKeys({self.access_key_id!r}, …)"

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables of the environment that have the same meaning."""
        found = msgspec.structs.asdict(self)
        if not self.access_key_id:
            return {}
        return {f"{_OWN}{name.upper()}": value for name, value in found.items()}


class Topics(msgspec.Struct, frozen=True):
    """Topics of Kafka: those of these names, or all whose names match a pattern. `partitions`:
    only these of a topic."""

    names: list[str] = []
    pattern: str = ""
    partitions: dict[str, list[int]] = {}

    def has(self, topic: str) -> bool:
        if self.pattern:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.names


class SourceOptions(msgspec.Struct, frozen=True):
    """The options of a read. Streams are those of `streams`, or all under `prefix`."""

    connection: Connection
    streams: list[str]
    prefix: str | None
    starting: Start
    ending: Start
    fail_on_data_loss: bool
    records_max: int  # of a micro-batch; 0: unlimited
    read_from: str
    partition_bytes: int
    pushdown: bool
    keys: StoreKeys = StoreKeys()
    topics: Topics | None = None  # instead of `streams` and `prefix`
    bytes_max: int = 0  # of a micro-batch, about; 0: unlimited
    cursors: str = SPARK_CURSORS

    @property
    def limited(self) -> bool:
        return bool(self.records_max or self.bytes_max)


class SinkOptions(msgspec.Struct, frozen=True):
    """The options of a write. `stream` may be "": the column `stream` then names each row's."""

    connection: Connection
    stream: str
    staging: str
    job: str
    topic: str = ""  # whose partitions get the rows, instead of `stream`


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the checked options of a read. Raises ConfigError."""
    options = _checked(options, _SOURCE)
    chosen = [name for name in _SELECTIONS if _is_given(options, name)]
    if len(chosen) != 1:
        raise ConfigError(
            "format('polynya') needs one of the options 'stream' (names, separated by commas), "
            "'prefix' ('' is every stream), 'subscribe' (topics, separated by commas), "
            f"'subscribePattern' and 'assign'; got {' and '.join(chosen) or 'none'}"
        )
    read_from = options.get("readfrom", STORE)
    if read_from not in (STORE, SERVER):
        raise ConfigError(f"readFrom is '{read_from}'; expected '{STORE}' or '{SERVER}'")
    return SourceOptions(
        _connection(options),
        _list(options, "stream"),
        options.get("prefix"),
        starting(options),
        ending(options),
        _switch(options, "failOnDataLoss", default=True),
        _number(options, "maxRecordsPerTrigger", 0),
        read_from,
        max(1, _number(options, "partitionBytes", PARTITION_BYTES)),
        _switch(options, "pushdown", default=False),
        _keys(options),
        _topics(options),
        _number(options, "maxBytesPerTrigger", 0),
        options.get("cursors", SPARK_CURSORS).strip("/"),
    )


def _is_given(options: Mapping[str, str], name: str) -> bool:
    return bool(options.get(name.lower(), "").strip(", ")) or (
        name == "prefix" and "prefix" in options
    )


def _list(options: Mapping[str, str], name: str) -> list[str]:
    return [each.strip() for each in options.get(name.lower(), "").split(",") if each.strip()]


def _topics(options: Mapping[str, str]) -> Topics | None:
    """Return the topics of Kafka's options, if there is one of them. Raises ConfigError."""
    if names := _list(options, "subscribe"):
        return Topics(names)
    if pattern := options.get("subscribepattern"):
        try:
            re.compile(pattern)
        except re.error as wrong:
            raise ConfigError(
                f"subscribePattern is '{pattern}'; expected a regular expression: {wrong}"
            ) from None
        return Topics(pattern=pattern)
    if not (text := options.get("assign")):
        return None
    try:
        partitions = msgspec.json.decode(text, type=dict[str, list[int]])
    except UNREADABLE:
        raise ConfigError(
            f"assign is '{text}'; expected JSON such as {{\"topic\": [0, 1]}}"
        ) from None
    return Topics(sorted(partitions), partitions=partitions)


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return the checked options of a write. Raises ConfigError."""
    options = _checked(options, _SINK)
    return SinkOptions(
        _connection(options),
        options.get("stream", ""),
        options.get("staging", SPARK_STAGING).strip("/"),
        options.get("jobid", ""),
        options.get("topic", ""),
    )


def _checked(options: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Return the options under lower-case names, since Spark ignores their case. Raises ConfigError
    for one that has no meaning."""
    given = translated(options)
    if not given:
        raise ConfigError(_NO_OPTIONS)
    wrong = given.keys() - {name.lower() for name in known}
    if wrong:
        name = min(wrong)
        advice = hint(name) or f"expected some of {', '.join(known)}"
        raise ConfigError(f"format('polynya') has no option '{name}' here; {advice}")
    return given


def _connection(options: Mapping[str, str]) -> Connection:
    return Connection(
        options.get("server") or os.environ.get("POLYNYA_SERVER", SERVER_DEFAULT),
        options.get("token") or os.environ.get("POLYNYA_TOKEN", ""),
    )


def _keys(options: Mapping[str, str]) -> StoreKeys:
    """Return the keys of the options, else those of the driver's environment."""
    names = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")
    for found in (
        StoreKeys(*(options.get(name.lower(), "") for name in _KEYS)),
        StoreKeys(*(os.environ.get(f"{_OWN}{name}", "") for name in names)),
    ):
        if bool(found.access_key_id) != bool(found.secret_access_key):
            raise ConfigError(
                "set both the S3 access key id and the S3 secret access key, or neither"
            )
        if found.access_key_id:
            return found
    found = StoreKeys(*(os.environ.get(f"AWS_{name}", "") for name in names))
    return found if found.access_key_id and found.secret_access_key else StoreKeys()


def _switch(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} is '{text}'; expected true or false")
    return text == "true"


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower(), str(default))
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"{name} is '{text}'; expected a whole number")
    return int(text)
