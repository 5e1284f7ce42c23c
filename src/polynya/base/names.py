"""Stream names: the canonical form, reserved words, and the mapping from name to group."""

from collections.abc import Sequence
from zlib import crc32

from polynya.base.limits import PATH_BYTES_MAX

DEFAULT_BUCKET = "default"
# streams of the product itself: no client can name them, and no pattern or table has them
INTERNAL = "_"
COMPANION = (
    "_snapshots/"  # before the name of a stream: the stream with the bodies of its snapshots
)
FORMER_CURSORS = "walrus-cursors"  # where an earlier release kept the cursors of Walrus topics
RESERVED_FIRST = frozenset(
    [
        "v1",
        "livez",
        "readyz",
        "health",
        "metrics",
        "iceberg",
        "console",
        "schemas",
        "debug",
        "favicon.ico",
        FORMER_CURSORS,
    ]
)
RESERVED_LATER = frozenset(
    [
        "snapshot",
        "snapshots",
        "bootstrap",
        "attrs",
        "retention",
        "incarnation",
        "chunk",
        "parts",
        "append-batch",
    ]
)
RESERVED_LAST = frozenset(["state"])  # at the end of a name of several segments
REPLICATED, LEASED, DISKLESS = "replicated", "leased", "diskless"
PROFILES = (REPLICATED, LEASED, DISKLESS)  # of streams
KAFKA_BUCKET = "kafka"
KAFKA_PREFIX = "kafka/"  # partition N of topic T is the stream `kafka/T/N`
SCHEMAS_TOPIC = "_schemas"  # of the schema registry
SPARK_STAGING = "spark-staging"  # the streams of the Spark sink …
SPARK_CURSORS = "spark-cursors"  # … and those with the offsets of Spark's readers
# streams of the product that clients may name: a wider prefix of a table or of Spark has none
OWN_FOLDERS = (
    f"{KAFKA_PREFIX}{SCHEMAS_TOPIC}/",
    f"{SPARK_STAGING}/",
    f"{SPARK_CURSORS}/",
    f"{FORMER_CURSORS}/",
)
BUCKET_RULE = (
    "a bucket's name is 1 to 64 of a-z, 0-9, _ and -, does not begin with _, and is not a "
    "reserved word"
)
_BUCKET_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")


class BadName(ValueError):
    """The path is not a valid stream name; the message gives the reason."""


def is_bucket(segment: str) -> bool:
    """Report whether `segment` is a valid bucket name: `[a-z0-9_-]{1,64}`, and not reserved."""
    return (
        1 <= len(segment) <= 64
        and _BUCKET_CHARACTERS.issuperset(segment)
        and not is_reserved(segment)
    )


def is_reserved(segment: str) -> bool:
    """Report whether the segment is reserved as the first of a name."""
    return segment in RESERVED_FIRST or segment.startswith(INTERNAL)


def is_internal(name: str) -> bool:
    """Report whether a stream of this canonical name is one of the product itself."""
    return name.startswith(INTERNAL)


def unnamed_folders(prefixes: Sequence[str]) -> list[str]:
    """Return the folders of `OWN_FOLDERS` that no prefix names; those are left out."""
    return [
        folder
        for folder in OWN_FOLDERS
        if not any(prefix.startswith(folder[:-1]) for prefix in prefixes)
    ]


def companion_of(name: str) -> str:
    """Return the name of the stream that has the bodies of a stream's snapshots."""
    return COMPANION + name


def owner_of(name: str) -> str:
    """Return the name of the stream whose snapshots a stream has; "": it is no companion."""
    return name[len(COMPANION) :] if name.startswith(COMPANION) else ""


def is_public(name: str) -> bool:
    """Report whether clients may know of a stream of this canonical name."""
    return not is_reserved(bucket_of(name))


def bucket_of(name: str) -> str:
    """Return the bucket of a canonical name."""
    return name.partition("/")[0]


def canonical_name(path: str) -> str:
    """Return the canonical `bucket/rest` of a decoded path without its prefix and leading slash.

    `a/b/c` stays as it is when `a` is a valid bucket. A single segment, or an invalid first one,
    makes the whole path a name in the bucket `default`. Raises `BadName` for empty, dot and
    reserved segments, NUL, and names over the limit."""
    segments = path.split("/")
    for segment in segments:
        if segment in ("", ".", ".."):
            raise BadName("a stream path has no empty, '.' or '..' segments")
    if "\0" in path:
        raise BadName("a stream path cannot contain NUL")
    if (
        len(segments) > 1
        and segments[0] == DEFAULT_BUCKET
        and not (len(segments) > 2 and is_bucket(segments[1]))
    ):
        del segments[0]  # explicit default bucket: check the name in its short spelling
    first = segments[0]
    if is_reserved(first):
        raise BadName(f"'{first}' is reserved as the first segment of a stream path")
    for segment in segments[1:]:
        if segment in RESERVED_LATER or segment.startswith("$"):
            raise BadName(f"'{segment}' is a reserved segment of a stream path")
    if len(segments) > 1 and segments[-1] in RESERVED_LAST:
        raise BadName(f"'{segments[-1]}' is reserved as the last segment of a stream path")
    written_out = path.startswith(DEFAULT_BUCKET + "/")
    name = (
        path
        if written_out or (len(segments) > 1 and is_bucket(first))
        else f"{DEFAULT_BUCKET}/{path}"
    )
    if len(name.encode()) > PATH_BYTES_MAX:
        raise BadName(f"a stream path has at most {PATH_BYTES_MAX} bytes")
    return name


def canonical_prefix(prefix: str) -> str:
    """Return the canonical prefix for one spelled as under `/v1/stream/`. A bucket needs its slash:
    `flights/`. Raises `BadName`."""
    if prefix == "":
        return ""
    bucket, slash, rest = prefix.partition("/")
    if slash and is_bucket(bucket):
        if rest:
            canonical_name(prefix.removesuffix("/"))
        return prefix
    return canonical_name(prefix.rstrip("/")) + ("/" if prefix.endswith("/") else "")


def canonical_prefixes(prefix: str) -> list[str]:
    """Return the canonical prefixes of a table's prefix: a word also means the bucket of that name.

    `trust` covers the names in the bucket `default` that begin with it, and all of `trust/…`.
    Raises `BadName`.
    """
    first = canonical_prefix(prefix)
    if "/" in prefix or not is_bucket(prefix):
        return [first]
    return [prefix + "/"] if prefix == DEFAULT_BUCKET else [first, prefix + "/"]


def spelled_name(name: str) -> str:
    """Return the name as shown, and as globs match it, under `/v1/stream/`: without the bucket
    `default`."""
    rest = name.removeprefix(DEFAULT_BUCKET + "/")
    if rest is not name and "/" in rest and is_bucket(rest.split("/", 1)[0]):
        return name
    return rest


def partition_name(topic: str, number: int) -> str:
    """Return the canonical name of a partition's stream. A topic whose name is a reserved segment
    gets a `~`."""
    return f"{KAFKA_PREFIX}{f'~{topic}' if topic in RESERVED_LATER else topic}/{number}"


def topic_folder(topic: str) -> str:
    """Return the prefix of the partitions of a topic, which grants are checked against."""
    return partition_name(topic, 0)[:-1]


def consumer_group_folder(group: str) -> str:
    """Return the prefix that grants for a consumer group are checked against. No stream is in
    it."""
    return f"{KAFKA_PREFIX}{group}/"


def transactional_id_folder(id_: str) -> str:
    """Return the prefix that grants for a transactional id are checked against. A topic of that
    name has the same."""
    return f"{KAFKA_PREFIX}{id_}/"


# transactional ids of the nodes themselves begin so; clients cannot use them
APPEND_ALL_ID = "_append-all."


def partition_of(name: str) -> tuple[str, int] | None:
    """Return the topic and the number of a partition's canonical name; None: it is none."""
    if not name.startswith(KAFKA_PREFIX):
        return None
    topic, _, number = name[len(KAFKA_PREFIX) :].rpartition("/")
    if not topic or "/" in topic or not number.isascii() or not number.isdigit():
        return None
    return (topic, int(number)) if str(int(number)) == number else None


def hash_tag(name: str) -> str:
    """Return the part of a name that determines its group: the first non-empty `{…}`, else the
    whole name."""
    begin = name.find("{")
    while begin >= 0:
        end = name.find("}", begin + 1)
        if end < 0:
            break
        if end > begin + 1:
            return name[begin + 1 : end]
        begin = name.find("{", begin + 1)
    return name


def group_of(name: str, groups: int) -> int:
    """Return the group (1 … `groups`) of a canonical name; group 0 is the meta group and holds no
    streams.

    The hash is CRC-32 (ISO-HDLC, as in zlib) of the UTF-8 hash tag: stable, available in every
    language, and one C call here. The partitions of a Kafka topic, `kafka/TOPIC/N`, lie in
    consecutive groups: a hash would crowd some of few. A companion is in the group of its owner."""
    name = name.removeprefix(COMPANION)
    if name.startswith(KAFKA_PREFIX) and (found := partition_of(name)) is not None:
        topic, number = found
        return 1 + (crc32(topic.encode()) + number) % groups
    return 1 + crc32(hash_tag(name).encode()) % groups
