"""The sections of the configuration file, with their defaults."""

from __future__ import annotations

import msgspec

from polynya.base import limits
from polynya.objectstore.settings import StoreSettings

ZSTD = "zstd"
COMPRESSIONS = (ZSTD, "none")  # of new packs


class ColdConfig(StoreSettings, frozen=True, kw_only=True):
    """The object tier: the store and the flush policy. Sizes in bytes."""

    flush_interval_ms: int = limits.FLUSH_INTERVAL_MS
    flush_bytes: int = limits.FLUSH_BYTES
    flush_min_hot_bytes: int | None = None
    flush_max_bytes: int | None = None
    flush_max_age_ms: int = limits.FLUSH_MAX_AGE_MS
    flush_max_concurrency: int = limits.FLUSH_MAX_CONCURRENCY
    delete_grace_ms: int = limits.DELETE_GRACE_MS
    evict_after_ms: int = limits.EVICT_AFTER_MS
    page_slices: int = limits.PAGE_ENTRIES
    max_hot_bytes_per_group: int = limits.HOT_BYTES_PER_GROUP
    compression: str = ZSTD

    @property
    def is_compressed(self) -> bool:
        """Report whether new packs are compressed."""
        return self.compression == ZSTD

    @property
    def flush_from_bytes(self) -> int:
        """Return the hot bytes of a core that trigger a flush."""
        return self.flush_bytes if self.flush_min_hot_bytes is None else self.flush_min_hot_bytes

    @property
    def pack_bytes_max(self) -> int:
        """Return the maximum payload of one pack."""
        return self.flush_bytes if self.flush_max_bytes is None else self.flush_max_bytes


class KafkaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The Kafka listener. `listen` None is the default, which a taken port turns off."""

    listen: str | None = None
    direct: int | None = None  # the port of core 0
    brokers: str = "core"
    advertised: str = ""
    auto_create: bool = True
    partitions: int = 1
    offsets_retention: float = limits.OFFSETS_RETENTION_SECONDS


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    level: str = "info"
    format: str = "logfmt"


class TracesConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling of requests, and the spans of a core that wait for the export."""

    ratio: float = 0.0
    follow_clients: bool = True
    queue: int = limits.TRACE_SPANS_MAX


class LakeConfig(msgspec.Struct, frozen=True, kw_only=True):
    interval: float = 0.0  # seconds; 0 disables it
    master: str = "local[*]"
    merge_files: int = 10  # 0 disables merges
    merge_size: int = 128 << 20
    run_timeout: float = 3600.0  # seconds; 0 disables runs


class ReduceConfig(msgspec.Struct, frozen=True, kw_only=True):
    workers: int = 0
    token_file: str = ""


class ConsoleConfig(msgspec.Struct, frozen=True, kw_only=True):
    acts: bool = True


class CatalogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The S3 keys that the Iceberg catalog gives to readers."""

    s3_access_key_id: str = ""
    s3_secret_access_key: str = ""


class SqlConfig(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = True
    timeout: float = 30.0  # seconds
    memory: int = 512 * limits.MIB


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The TLS settings: paths of PEM files, or a self-signed certificate."""

    cert: str = ""
    key: str = ""
    self: bool = False

    @property
    def is_on(self) -> bool:
        return bool(self.cert) or self.self


class AuthConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Access control. The limits apply to tokens without their own; 0 is unlimited."""

    required: bool | None = None
    cookie: str = ""
    jwt_issuer: str = ""
    jwt_audience: str = ""
    jwt_keys: str = ""
    jwt_claim: str = "scope"
    jwt_lifetime_max: float = 86_400.0  # seconds
    requests_per_second: int = 0
    bytes_per_second: int = 0
    streams: int = 0
    connections: int = 0


class DisklessConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The packs of diskless streams."""

    interval: int = limits.DISKLESS_INTERVAL_MS  # ms
    pack_size: int = limits.DISKLESS_PACK_BYTES
    copy_interval: int = limits.DISKLESS_COPY_MS  # ms


class SegmentsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the segments of leased streams that name none."""

    records: int = limits.SEGMENT_RECORDS
    bytes: int = limits.SEGMENT_BYTES
