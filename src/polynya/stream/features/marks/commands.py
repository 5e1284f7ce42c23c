"""The commands of the snapshots of a stream: tags 17 and 18."""

from __future__ import annotations

from polynya.base.levels import SNAPSHOTS_LEVEL
from polynya.base.limits import (
    CONTENT_TYPE_BYTES_MAX,
    SNAPSHOT_BYTES_MAX,
    SNAPSHOT_PARTS_MAX,
    SNAPSHOTS_KEPT_MAX,
)
from polynya.stream.command import Command, command, its_name
from polynya.stream.command_validation import COUNTER, TIME, WIDE

OVERDUE = -1  # `DropSnapshot.record`: those whose grace is over
_ORIGIN_CHARACTERS_MAX = 128
_ORIGINS_BOUND_MAX = 64
_KEPT = (1, SNAPSHOTS_KEPT_MAX)


def _check_publish(command: PublishSnapshot) -> str:
    if len(command.sha256) != 32:
        return f"the SHA-256 of a snapshot has {len(command.sha256)} bytes; expected 32"
    if len(command.content_type) > CONTENT_TYPE_BYTES_MAX:
        return f"the content type of a snapshot has more than {CONTENT_TYPE_BYTES_MAX} characters"
    if bool(command.parts) != bool(command.size) or len(command.parts) > SNAPSHOT_PARTS_MAX:
        return f"a snapshot of {command.size} bytes has {len(command.parts)} parts"
    low, high = COUNTER
    if not all(low <= number <= high for part in command.parts for number in part):
        return f"PublishSnapshot.parts has {command.parts}; expected {low} to {high}"
    if sum(size for _, _, size in command.parts) != command.size:
        return f"the parts of a snapshot of {command.size} bytes are {command.parts}"
    return _check_origins(command)


def _check_origins(command: PublishSnapshot | DropSnapshot) -> str:
    bound = command.bound or []
    if len(bound) > _ORIGINS_BOUND_MAX:
        return f"a trim waits for {len(bound)} origins; at most {_ORIGINS_BOUND_MAX}"
    if any(len(origin) > _ORIGIN_CHARACTERS_MAX for origin in (command.origin, *bound)):
        return f"the origin of a snapshot has more than {_ORIGIN_CHARACTERS_MAX} characters"
    return ""


@command(
    since=SNAPSHOTS_LEVEL,
    bounds={
        "uid": WIDE,
        "record": COUNTER,
        "byte": COUNTER,
        "companion_uid": WIDE,
        "size": (0, SNAPSHOT_BYTES_MAX),
        "kept": _KEPT,
        "now_ms": TIME,
    },
    check=_check_publish,
    names=its_name,
)
class PublishSnapshot(Command, tag=17, frozen=True, gc=False):
    """Add the snapshot of a stream at `record`, which begins at `byte`. Level 4.

    `companion_uid` is that of the stream with the body, whose `parts` are (record, byte, size).
    `kept`: the newest snapshots of the origin to keep. `bound`: with it the stream is trimmed to the oldest
    snapshot that can still be read, of those of each of these origins."""

    name: str
    uid: int
    record: int
    byte: int
    companion_uid: int
    parts: tuple[tuple[int, int, int], ...]
    size: int
    sha256: bytes
    content_type: str
    origin: str
    kept: int
    bound: list[str] | None
    now_ms: int


@command(
    since=SNAPSHOTS_LEVEL,
    bounds={"uid": WIDE, "record": (OVERDUE, COUNTER[1]), "kept": _KEPT, "now_ms": TIME},
    check=_check_origins,
    names=its_name,
)
class DropSnapshot(Command, tag=18, frozen=True, gc=False):
    """Remove the snapshot of an origin at `record`. OVERDUE: those of all origins whose grace is
    over, and what only they needed; with `bound` also trim as a publish does. Level 4."""

    name: str
    uid: int
    origin: str
    record: int
    kept: int
    bound: list[str] | None
    now_ms: int
