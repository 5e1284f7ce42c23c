"""The settings of the object tier: the store and the flushes to it."""

from __future__ import annotations

from polynya.base import limits
from polynya.config import setting
from polynya.config.sections import COMPRESSIONS, ZSTD

COLD = (
    setting.text(
        "cold.backend",
        "local",
        "The object store for packs and tables: the embedded store on the local disk, S3, memory "
        "(for tests: lost on exit), or none.",
        ("local", "s3", "memory", "none"),
    ),
    setting.text(
        "cold.root",
        "",
        "The root of all objects: a key prefix in the bucket, or for `local` a folder (default: "
        "`objects` in the data folder).",
    ),
    setting.switch(
        "cold.shared",
        False,
        "Let other users read a `cold.root` outside the data folder: it keeps its mode, and new "
        "files get the same rights. "
        "Otherwise only the node's user may read the objects.",
    ),
    setting.text("cold.s3_bucket", "", "The bucket; required for `s3`."),
    setting.text(
        "cold.s3_region",
        "",
        "Default: the standard AWS chain (`AWS_REGION`, profile), else `us-east-1`.",
    ),
    setting.text("cold.s3_endpoint", "", "The URL of an S3-compatible store; default: AWS."),
    setting.text("cold.s3_access_key_id", "", "Default: the standard AWS credential chain."),
    setting.text("cold.s3_secret_access_key", "", "The secret of the access key id.", secret=True),
    setting.text("cold.s3_session_token", "", "For temporary credentials.", secret=True),
    setting.millis(
        "cold.flush_interval_ms",
        limits.FLUSH_INTERVAL_MS,
        "The interval at which a core checks for a flush; 0 flushes only on demand.",
    ),
    setting.size("cold.flush_bytes", limits.FLUSH_BYTES, "The target size of a flush.", low=1),
    setting.size(
        "cold.flush_min_hot_bytes",
        None,
        "The hot bytes of a core that trigger a flush. Default: `cold.flush_bytes`.",
        low=1,
    ),
    setting.size(
        "cold.flush_max_bytes",
        None,
        "The maximum payload of one pack. Default: `cold.flush_bytes`.",
        low=1,
    ),
    setting.millis(
        "cold.flush_max_age_ms",
        limits.FLUSH_MAX_AGE_MS,
        "The age at which hot bytes are flushed, whatever their number.",
        low=1,
    ),
    setting.count(
        "cold.flush_max_concurrency",
        limits.FLUSH_MAX_CONCURRENCY,
        "Packs that one core uploads concurrently.",
        low=1,
        high=64,
    ),
    setting.text(
        "cold.compression",
        ZSTD,
        "The compression of new packs: `zstd`, where it saves a tenth, or `none`. Both kinds are "
        "read whatever this says.",
        COMPRESSIONS,
    ),
    setting.millis(
        "cold.delete_grace_ms",
        limits.DELETE_GRACE_MS,
        "Delay before an unreferenced object is deleted, for readers in progress.",
    ),
    setting.millis(
        "cold.evict_after_ms",
        limits.EVICT_AFTER_MS,
        "Idle time after which the state of a stream moves from memory to the object store, until "
        "the next write. 0 disables it.",
    ),
    setting.count(
        "cold.page_slices",
        limits.PAGE_ENTRIES,
        "Merged slices of a stream whose places move to one object (a page); 0: never.",
        low=0,
        high=16_384,
    ),
    setting.size(
        "cold.max_hot_bytes_per_group",
        limits.HOT_BYTES_PER_GROUP,
        "Hot bytes of a group above which appends are rejected (503 with `Retry-After`) until a "
        "flush frees memory; 0 sets no "
        "limit. A single append above the limit is always rejected (413 "
        "`APPEND_EXCEEDS_MEMORY_LIMIT`), so a limit below 32 MiB is the largest append.",
    ),
)
