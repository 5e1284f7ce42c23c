"""The configs of topics: names, types, defaults and checks, as Kafka 4.3 has them.

All of Kafka's names are accepted and kept, so that its tools and connectors work. Those with
`effect` change something here; `content.type`, `mirror.from`, `profile` and `records.check` are our
own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from polynya.base.limits import APPEND_BYTES_MAX, CONTENT_TYPE_BYTES_MAX
from polynya.base.names import DISKLESS, LEASED, PROFILES, REPLICATED
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import SegmentLimits

CLEANUP_POLICY = "cleanup.policy"
CONTENT_TYPE = "content.type"
PROFILE = "profile"
RECORDS_CHECK = "records.check"
URSA_STORAGE = "ursa.storage.enable"  # Ursa's name of the two profiles; it is not kept
CHECK_QUICK, CHECK_FULL = "quick", "full"
SEGMENT_BYTES = "segment.bytes"
MAX_MESSAGE_BYTES = "max.message.bytes"
TIMESTAMP_TYPE = "message.timestamp.type"
TIMES_BEFORE, TIMES_AFTER = "message.timestamp.before.max.ms", "message.timestamp.after.max.ms"
MIN_REPLICAS = "min.insync.replicas"
MIRROR_FROM = "mirror.from"  # the brokers whose topic this one mirrors, until the cut-over
LOG_APPEND_TIME = "LogAppendTime"
# the numbers of config types in DescribeConfigs
BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
_TYPE_BYTES_MAX = CONTENT_TYPE_BYTES_MAX - 64  # the stored one names it inside Kafka's own
_TYPE = re.compile(r"[!#$&^_.+\w-]+/[!#$&^_.+\w-]+(; ?[\w-]+=[\w.+-]+)*", re.ASCII)
_BROKERS = re.compile(r"[\[\]\w.:-]+:[0-9]+(,[\[\]\w.:-]+:[0-9]+)*", re.ASCII)
_BROKERS_MAX = 1000
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1

Check = Callable[[str], str]
"""Return what was expected instead of a value; "" for a valid one."""


class InvalidConfig(ValueError):
    """A config is unknown or has an invalid value; the message says which and what is expected."""


class Config(msgspec.Struct, frozen=True, gc=False):
    """One config of a topic."""

    type: int
    default: str
    check: Check
    effect: bool = False


def _number(low: int, high: int) -> Check:
    def check(value: str) -> str:
        is_number = re.fullmatch(r"-?[0-9]{1,19}", value) is not None
        return "" if is_number and low <= int(value) <= high else f"a number from {low} to {high}"

    return check


def _ratio(value: str) -> str:
    is_number = re.fullmatch(r"[0-9]*\.?[0-9]+", value) is not None
    return "" if is_number and float(value) <= 1 else "a number from 0 to 1"


def _one_of(*values: str) -> Check:
    return lambda value: "" if value in values else f"one of {', '.join(values)}"


def _only(value: str, why: str) -> Check:
    """Return the check of a config of which Kafka has more values than are served here."""
    return lambda given: "" if given == value else f"{value}: {why}"


def _listed(*values: str) -> Check:
    def check(value: str) -> str:
        return "" if set(list_of(value)) <= {*values} else f"a list of {', '.join(values)}"

    return check


def _throttled(value: str) -> str:
    valid = re.fullmatch(r"(\*|([0-9]+:[0-9]+)?(,[0-9]+:[0-9]+)*)", value) is not None
    return "" if valid else "* or a list of PARTITION:BROKER"


def _content_type(value: str) -> str:
    if not value or (len(value) <= _TYPE_BYTES_MAX and _TYPE.fullmatch(value) is not None):
        return ""
    return (
        f"a media type of at most {_TYPE_BYTES_MAX} characters without quotes, such as "
        "application/json"
    )


def _brokers(value: str) -> str:
    if len(value) <= _BROKERS_MAX and (not value or _BROKERS.fullmatch(value) is not None):
        return ""
    return f"brokers as HOST:PORT,HOST:PORT, of at most {_BROKERS_MAX} characters"


def normal(name: str, value: str) -> str:
    """Return the value of a config as it is kept and shown: a list has no blanks, and each element
    once."""
    config = CONFIGS.get(name)
    if config is None or config.type != LIST:
        return value
    return ",".join(dict.fromkeys(list_of(value)))


def list_of(value: str) -> list[str]:
    """Return the elements of a config that is a list."""
    return [each.strip() for each in value.split(",") if each.strip()]


_BOOLEAN = _one_of("true", "false")
CONFIGS = {
    CLEANUP_POLICY: Config(LIST, "delete", _listed("delete", "compact"), effect=True),
    "compression.gzip.level": Config(INT, "-1", _number(-1, 9)),
    "compression.lz4.level": Config(INT, "9", _number(1, 17)),
    "compression.type": Config(
        STRING,
        "producer",
        _only(
            "producer",
            "batches are stored as they were compressed; set compression.type of the producers",
        ),
        effect=True,
    ),
    "compression.zstd.level": Config(INT, "3", _number(-131072, 22)),
    CONTENT_TYPE: Config(STRING, "", _content_type, effect=True),
    "delete.retention.ms": Config(LONG, "86400000", _number(0, _LONG_MAX), effect=True),
    "file.delete.delay.ms": Config(LONG, "60000", _number(0, _LONG_MAX)),
    "flush.messages": Config(LONG, "1", _number(1, _LONG_MAX)),
    "flush.ms": Config(LONG, "0", _number(0, _LONG_MAX)),
    "follower.replication.throttled.replicas": Config(LIST, "", _throttled),
    "index.interval.bytes": Config(INT, "4096", _number(0, _INT_MAX)),
    "leader.replication.throttled.replicas": Config(LIST, "", _throttled),
    "local.retention.bytes": Config(LONG, "-2", _number(-2, _LONG_MAX)),
    "local.retention.ms": Config(LONG, "-2", _number(-2, _LONG_MAX)),
    "max.compaction.lag.ms": Config(LONG, str(_LONG_MAX), _number(1, _LONG_MAX), effect=True),
    MAX_MESSAGE_BYTES: Config(
        INT, str(APPEND_BYTES_MAX), _number(0, APPEND_BYTES_MAX), effect=True
    ),
    TIMES_AFTER: Config(LONG, str(_LONG_MAX), _number(0, _LONG_MAX), effect=True),
    TIMES_BEFORE: Config(LONG, str(_LONG_MAX), _number(0, _LONG_MAX), effect=True),
    TIMESTAMP_TYPE: Config(
        STRING, "CreateTime", _one_of("CreateTime", LOG_APPEND_TIME), effect=True
    ),
    "min.cleanable.dirty.ratio": Config(DOUBLE, "0.5", _ratio, effect=True),
    "min.compaction.lag.ms": Config(LONG, "0", _number(0, _LONG_MAX), effect=True),
    MIN_REPLICAS: Config(INT, "1", _number(1, _INT_MAX), effect=True),
    MIRROR_FROM: Config(STRING, "", _brokers, effect=True),
    PROFILE: Config(STRING, REPLICATED, _one_of(*PROFILES), effect=True),
    "preallocate": Config(BOOLEAN, "false", _BOOLEAN),
    RECORDS_CHECK: Config(STRING, CHECK_QUICK, _one_of(CHECK_QUICK, CHECK_FULL), effect=True),
    "remote.log.copy.disable": Config(BOOLEAN, "false", _BOOLEAN),
    "remote.log.delete.on.disable": Config(BOOLEAN, "false", _BOOLEAN),
    "remote.storage.enable": Config(
        BOOLEAN,
        "false",
        _only(
            "false",
            "Kafka's tiered storage is disabled here; with cold.backend each topic's old data is in "
            "the object store without a config",
        ),
        effect=True,
    ),
    "retention.bytes": Config(LONG, "-1", _number(-1, _LONG_MAX), effect=True),
    "retention.ms": Config(LONG, "-1", _number(-1, _LONG_MAX), effect=True),
    SEGMENT_BYTES: Config(INT, "1073741824", _number(14, _INT_MAX), effect=True),
    "segment.index.bytes": Config(INT, "10485760", _number(4, _INT_MAX)),
    "segment.jitter.ms": Config(LONG, "0", _number(0, _LONG_MAX)),
    "segment.ms": Config(LONG, "604800000", _number(1, _LONG_MAX)),
    "unclean.leader.election.enable": Config(BOOLEAN, "false", _BOOLEAN),
}


def check_config(name: str, value: str) -> None:
    """Check one config of a topic. Raises InvalidConfig."""
    config = CONFIGS.get(name)
    if config is None:
        raise InvalidConfig(f"unknown topic config name: {name}")
    expected = config.check(value)
    if expected:
        raise InvalidConfig(f"invalid value '{value[:100]}' for config {name}: expected {expected}")


def with_profile(configs: Iterable[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """Return configs with the profile that `ursa.storage.enable` means in its place. Raises
    InvalidConfig."""
    given = list(configs)
    named = [value for name, value in given if name == URSA_STORAGE]
    if not named:
        return given
    if len(named) > 1:
        raise InvalidConfig(f"config {URSA_STORAGE} is given twice")
    profile = profile_named(named[0])
    found = [(name, value) for name, value in given if name != URSA_STORAGE]
    explicit = [value for name, value in found if name == PROFILE]
    if not explicit:
        found.append((PROFILE, profile))
    elif profile is not None and explicit != [profile]:
        raise InvalidConfig(
            f"{URSA_STORAGE}={named[0]} means {PROFILE}={profile}, and the request has "
            f"{PROFILE}={explicit[0]} too; leave one of them out"
        )
    return found


def profile_named(enable: str | None) -> str | None:
    """Return the profile that a value of `ursa.storage.enable` means. Raises InvalidConfig."""
    if enable is None:
        return None
    if enable not in ("true", "false"):
        raise InvalidConfig(
            f"invalid value '{enable[:100]}' for config {URSA_STORAGE}: expected one of true, false"
        )
    return DISKLESS if enable == "true" else REPLICATED


def checked(
    configs: Iterable[tuple[str, str | None]], before: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return all configs of a topic; a null value is the default. `before`: those that it has,
    which an older release may have allowed. Raises InvalidConfig."""
    found: dict[str, str] = {}
    for name, value in with_profile(configs):
        if name in found:
            raise InvalidConfig(f"config {name} is given twice")
        if value is None or before is None or before.get(name) != value:
            default = CONFIGS[name].default if name in CONFIGS else ""
            check_config(name, default if value is None else normal(name, value))
        if value is not None:
            found[name] = normal(name, value)
    return found


def check_change(known: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Check that a topic may get these configs. Raises InvalidConfig.

    The content type is a part of each partition's stream, so it stays, as a leased profile does."""
    profiles = {known.get(PROFILE, REPLICATED), wanted.get(PROFILE, REPLICATED)}
    if LEASED in profiles and len(profiles) > 1:
        raise InvalidConfig(
            f"{PROFILE} '{LEASED}' is set when a topic is created and stays: it is "
            f"'{known.get(PROFILE, REPLICATED)}'"
        )
    source, kept = known.get(MIRROR_FROM, ""), wanted.get(MIRROR_FROM, "")
    if kept and source != kept:
        raise InvalidConfig(
            f"{MIRROR_FROM} is set when 'polynya mirror' creates a topic, and can only be removed: it "
            f"is '{source}'"
        )
    if kept and len(profiles) > 1:
        raise InvalidConfig(
            f"{PROFILE} stays '{known.get(PROFILE, REPLICATED)}' while the topic mirrors {source}: "
            "change it after 'polynya mirror --cut-over'"
        )
    before, after = known.get(CONTENT_TYPE, ""), wanted.get(CONTENT_TYPE, "")
    if before != after:
        raise InvalidConfig(
            f"{CONTENT_TYPE} is set when a topic is created and stays: it is '{before}'"
        )


def check_replicas(before: Mapping[str, str], wanted: Mapping[str, str], acks: int) -> None:
    """Check that each batch is on so many replicas when it is acknowledged. `acks`: the replicas
    that an acknowledgement waits for, a majority. Raises InvalidConfig."""
    value = wanted.get(MIN_REPLICAS, "1")
    if value != before.get(MIN_REPLICAS) and int(value) > acks:
        raise InvalidConfig(
            f"invalid value '{value}' for config {MIN_REPLICAS}: expected a number from 1 to "
            f"{acks}: a batch is acknowledged when a majority of the replicas has it on disk, here "
            f"{acks}; leave the config out, or add nodes"
        )


def is_compacted(configs: Mapping[str, str]) -> bool:
    """Report whether of the records with one key only the newest is kept."""
    return "compact" in list_of(configs.get(CLEANUP_POLICY, ""))


def notes_of(configs: Mapping[str, str], *, object_store: bool = True) -> list[str]:
    """Return what a topic's owner may expect of its configs and does not get, in sentences.
    `object_store`: this node has one."""
    if object_store or not is_compacted(configs):
        return []
    policy = configs[CLEANUP_POLICY]
    kept = "retention applies" if "delete" in list_of(policy) else "all records stay"
    return [
        f"{CLEANUP_POLICY}={policy}: keys are compacted in the object store alone, and this node has "
        f"none; {kept}. Set cold.backend"
    ]


def segments_of(configs: Mapping[str, str]) -> SegmentLimits | None:
    """Return the size of the segments of a leased topic's partitions; None for other topics."""
    if configs.get(PROFILE) != LEASED:
        return None
    return SegmentLimits(0, int(configs.get(SEGMENT_BYTES, "0")))


def profile_of(configs: Mapping[str, str]) -> int:
    """Return the `Profile` of a topic's partitions."""
    return Profile.DISKLESS if configs.get(PROFILE) == DISKLESS else Profile.REPLICATED


class NodeProfiles(msgspec.Struct, frozen=True, gc=False):
    """The profiles that a node gives to new topics."""

    default: str = REPLICATED
    object_store: bool = True  # else no topic may be diskless

    def completed(self, configs: Mapping[str, str], of_bucket: str | None) -> dict[str, str]:
        """Return the configs of a new topic, which keeps the profile that is the default now.
        `of_bucket`: the default of the bucket of topics. Raises InvalidConfig."""
        found = dict(configs)
        if (default := of_bucket or self.default) != REPLICATED:
            found.setdefault(PROFILE, default)
        if found.get(PROFILE) == DISKLESS and not self.object_store:
            raise InvalidConfig(
                f"{PROFILE}={DISKLESS} needs an object store, and this node has none: set "
                "cold.backend, or create the topic as replicated"
            )
        return found


class ProduceRules(msgspec.Struct, frozen=True, gc=False):
    """The configs of a topic that are enforced when records arrive."""

    batch_bytes_max: int = APPEND_BYTES_MAX
    log_append_time: bool = False
    diskless: bool = False  # any broker takes the batches
    is_decoded: bool = False  # compressed records are decoded too
    has_times: bool = False  # the times of all records are to be known
    before_ms_max: int = _LONG_MAX  # how far a record's time may be before that of the server
    after_ms_max: int = _LONG_MAX  # and after it
    mirror_from: str = ""  # the brokers whose topic it mirrors: nothing else is appended
    needs_keys: bool = False  # its keys are compacted, so each record has one


DEFAULT_RULES = ProduceRules()


def rules_of(configs: Iterable[tuple[str, str]]) -> ProduceRules:
    """Return the enforced configs of a topic."""
    known = dict(configs)
    limit = min(int(known.get(MAX_MESSAGE_BYTES, APPEND_BYTES_MAX)), APPEND_BYTES_MAX)
    is_stamped = known.get(TIMESTAMP_TYPE) == LOG_APPEND_TIME
    before, after = (int(known.get(each, _LONG_MAX)) for each in (TIMES_BEFORE, TIMES_AFTER))
    has_times = min(before, after) < _LONG_MAX and not is_stamped
    needs_keys = is_compacted(known)
    found = ProduceRules(
        limit,
        is_stamped,
        known.get(PROFILE) == DISKLESS,
        known.get(RECORDS_CHECK) == CHECK_FULL or has_times or needs_keys,
        has_times,
        before,
        after,
        known.get(MIRROR_FROM, ""),
        needs_keys,
    )
    return DEFAULT_RULES if found == DEFAULT_RULES else found
