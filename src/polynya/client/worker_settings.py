"""The settings of a worker group, and its names on the server."""

from __future__ import annotations

from typing import Literal, TypeAlias
from urllib.parse import quote
from zlib import crc32

import msgspec

from polynya.base.limits import (
    SUBSCRIPTION_ATTEMPTS_MAX,
    SUBSCRIPTION_LANES_MAX,
    SUBSCRIPTION_STREAMS_MAX,
)
from polynya.client.values import Json

By: TypeAlias = Literal["record", "stream"]
LANES_MAX = SUBSCRIPTION_LANES_MAX


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all workers of a group share. Raises ValueError when they are invalid."""

    group: str
    sources: tuple[str, ...]
    lanes: int = 8
    by: By = "record"
    lease_seconds: float = 30.0
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        if not self.group or "/" in self.group:
            raise ValueError("a group needs a name without slashes")
        if not self.sources or sum("*" in source for source in self.sources) > 1:
            raise ValueError(
                "a group needs at least one stream, and at most one pattern ('*' is one segment, "
                "'**' any number)"
            )
        if len(self.sources) > SUBSCRIPTION_STREAMS_MAX:
            raise ValueError(
                f"a group can name at most {SUBSCRIPTION_STREAMS_MAX} streams; use a pattern for "
                "more"
            )
        if not 1 <= self.lanes <= LANES_MAX:
            raise ValueError(f"a group needs 1 to {LANES_MAX} lanes")
        if self.by not in ("record", "stream"):
            raise ValueError("by= must be 'record' or 'stream'")
        if self.max_attempts is not None and not 1 <= self.max_attempts <= (
            SUBSCRIPTION_ATTEMPTS_MAX
        ):
            raise ValueError(f"max_attempts= must be 1 to {SUBSCRIPTION_ATTEMPTS_MAX}")

    @property
    def dead_letter_stream(self) -> str | None:
        """The stream for records that failed `max_attempts` times."""
        return None if self.max_attempts is None else f"{self.wake_stream}/dead-letters"

    @property
    def wake_stream(self) -> str:
        """The stream on which the server announces work."""
        return wake_stream(self.group)

    def lane_of(self, stream: str, record: int) -> int:
        """Return the lane of a record. `record` is its number in the stream."""
        return (crc32(stream.encode()) + (record if self.by == "record" else 0)) % self.lanes

    def subscription(self) -> bytes:
        pattern = next((source for source in self.sources if "*" in source), None)
        shape: dict[str, Json] = {
            "type": "pull-wake",
            "wake_stream": self.wake_stream,
            "lease_ttl_ms": int(self.lease_seconds * 1000),
            "description": f"{self.lanes} lanes by {self.by}",
            "streams": [source for source in self.sources if "*" not in source],
            **({"pattern": pattern} if pattern else {}),
            **(
                {
                    "max_attempts": self.max_attempts,
                    "dead_letter_stream": self.dead_letter_stream,
                }
                if self.max_attempts is not None
                else {}
            ),
        }
        return msgspec.json.encode(shape)


def wake_stream(group: str) -> str:
    return f"groups/{group}"


def lane_target(group: str, lane: int) -> str:
    return f"/v1/stream/__ds/subscriptions/{quote(f'{group}.{lane}', safe='')}"
