"""The options of `format("polynya")`, checked before anything is read or written."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from polynya.base.errors import ConfigError
from polynya.base.msgpack import UNREADABLE
from polynya.client.values import SERVER_DEFAULT

EARLIEST, LATEST = "earliest", "latest"
STORE, SERVER = "store", "server"
PARTITION_BYTES = 32 << 20
Start = str | dict[str, int]
_OWN = "POLYNYA_COLD_S3_"
_CONNECTION = ("server", "token")
_KEYS = ("s3AccessKeyId", "s3SecretAccessKey", "s3SessionToken")
_SOURCE = (
    *_CONNECTION,
    *("stream", "prefix", "startingOffsets", "endingOffsets", "failOnDataLoss"),
    *("maxRecordsPerTrigger", "readFrom", "partitionBytes", "pushdown"),
    *_KEYS,
)
_SPARKS = ("checkpointLocation", "queryName")  # Spark's own, which a sink gets as well
_SINK = (*_CONNECTION, "stream", "staging", "jobId", *_SPARKS)


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


class SinkOptions(msgspec.Struct, frozen=True):
    """The options of a write. `stream` may be "": the column `stream` then names each row's."""

    connection: Connection
    stream: str
    staging: str
    job: str


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Return the checked options of a read. Raises ConfigError."""
    _check_names(options, _SOURCE)
    streams = [name.strip() for name in options.get("stream", "").split(",") if name.strip()]
    prefix = options.get("prefix")
    if bool(streams) == (prefix is not None):
        raise ConfigError(
            "format('polynya') needs one of the options 'stream' (names, separated by commas) and "
            "'prefix' ('' is every stream)"
        )
    read_from = options.get("readFrom", STORE)
    if read_from not in (STORE, SERVER):
        raise ConfigError(f"readFrom is '{read_from}'; expected '{STORE}' or '{SERVER}'")
    return SourceOptions(
        _connection(options),
        streams,
        prefix,
        _offsets(options, "startingOffsets", EARLIEST),
        _offsets(options, "endingOffsets", LATEST),
        _switch(options, "failOnDataLoss", default=True),
        _number(options, "maxRecordsPerTrigger", 0),
        read_from,
        max(1, _number(options, "partitionBytes", PARTITION_BYTES)),
        _switch(options, "pushdown", default=False),
        _keys(options),
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return the checked options of a write. Raises ConfigError."""
    _check_names(options, _SINK)
    return SinkOptions(
        _connection(options),
        options.get("stream", ""),
        options.get("staging", "spark-staging").strip("/"),
        options.get("jobId", ""),
    )


def _check_names(options: Mapping[str, str], known: Sequence[str]) -> None:
    """Raise ConfigError for an option that has no meaning. Spark ignores the case of names."""
    wrong = {name.lower() for name in options} - {name.lower() for name in known}
    if wrong:
        raise ConfigError(
            f"format('polynya') has no option '{min(wrong)}' here; expected some of "
            f"{', '.join(known)}"
        )


def _connection(options: Mapping[str, str]) -> Connection:
    return Connection(
        options.get("server") or os.environ.get("POLYNYA_SERVER", SERVER_DEFAULT),
        options.get("token") or os.environ.get("POLYNYA_TOKEN", ""),
    )


def _keys(options: Mapping[str, str]) -> StoreKeys:
    """Return the keys of the options, else those of the driver's environment."""
    names = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")
    for found in (
        StoreKeys(*(options.get(name, "") for name in _KEYS)),
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


def _offsets(options: Mapping[str, str], name: str, default: str) -> Start:
    text = options.get(name, default)
    if text in (EARLIEST, LATEST):
        return text
    try:
        return msgspec.json.decode(text, type=dict[str, int])
    except UNREADABLE:
        raise ConfigError(
            f"{name} is '{text}'; expected '{EARLIEST}', '{LATEST}' or JSON such as "
            '{"orders": 100}'
        ) from None


def _switch(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} is '{text}'; expected true or false")
    return text == "true"


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"{name} is '{text}'; expected a whole number")
    return int(text)
