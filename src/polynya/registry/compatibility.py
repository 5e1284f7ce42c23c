"""Compatibility levels: which earlier versions a new schema is compared with, and in which
direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from polynya.registry.refused import Incompatibility

LEVELS = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
NONE = "NONE"
_TRANSITIVE = "_TRANSITIVE"
MESSAGE_CHARACTERS_MAX = 4096  # of an old schema in a message


class Earlier(msgspec.Struct, frozen=True):
    """An earlier version: its number, its text, and its parsed schema."""

    version: int
    text: str
    schema: object


def compared(level: str, earlier: int) -> int:
    """Return how many of the earlier versions, the newest first, a level looks at."""
    if level == NONE:
        return 0
    return earlier if level.endswith(_TRANSITIVE) else min(1, earlier)


def complaints(
    level: str,
    schema: object,
    earlier: Sequence[Earlier],
    differences: Callable[[object, object], list[Incompatibility]],
) -> list[str]:
    """Return why a schema may not follow earlier ones, the newest first; empty: it may.
    `differences(reader, writer)` compares two."""
    direction = level.removesuffix(_TRANSITIVE)
    for each in earlier:
        found: list[Incompatibility] = []
        if direction in ("BACKWARD", "FULL"):
            found += differences(schema, each.schema)
        if direction in ("FORWARD", "FULL"):
            found += differences(each.schema, schema)
        if found:
            text = each.text
            if len(text) > MESSAGE_CHARACTERS_MAX:
                text = f"{text[:MESSAGE_CHARACTERS_MAX]} …"
            return [
                *dict.fromkeys(map(str, found)),
                f"{{oldSchemaVersion: {each.version}}}",
                f"{{oldSchema: '{text}'}}",
                f"{{compatibility: '{level}'}}",
            ]
    return []
