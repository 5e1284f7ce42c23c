"""The settings of the object tier: the store and the flushes to it."""

from __future__ import annotations

from polynya.base.limits import (
    DELETE_GRACE_MS,
    EVICT_AFTER_MS,
    FLUSH_BYTES,
    FLUSH_INTERVAL_MS,
    FLUSH_MAX_AGE_MS,
    FLUSH_MAX_CONCURRENCY,
    HOT_BYTES_PER_GROUP,
    PAGE_ENTRIES,
)
from polynya.config.setting import (
    Setting,
    parse_count,
    parse_millis,
    parse_size,
    parse_switch,
    parse_text,
)

COLD = (
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
