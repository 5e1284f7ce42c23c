"""The configs of consumer groups, as Kafka's tools set them: of the consumer protocol.

The meta group has them, as the scope `kafka-group-configs` of its settings; a group need not exist
to have some. A coordinator reads them at most once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from polynya.base.errors import PolynyaError, Unavailable
from polynya.base.limits import (
    GROUP_CONFIGS_MAX,
    GROUP_HEARTBEAT_MS_MIN,
    GROUP_SESSION_MS_MAX,
    GROUP_SESSION_MS_MIN,
)
from polynya.service.bucket_profiles import MetaSettings
from polynya.stream.features.consumer_groups.modern import HEARTBEAT_MS, SESSION_MS
from polynya.stream.features.settings.commands import MetaChange
from polynya.stream.features.settings.rules import values_of, version_of
from polynya.stream.replies import Code

SCOPE = "kafka-group-configs"
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
_FRESH_SECONDS = 1.0
_READ_SECONDS = 2.0  # a member does not wait longer for a meta group without a leader
_ATTEMPTS = 5
Configs = dict[str, str]


class GroupConfig(msgspec.Struct, frozen=True, gc=False):
    """A config that groups have: a whole number of milliseconds."""

    default: int
    least: int
    most: int
    documentation: str


CONFIGS = {
    HEARTBEAT: GroupConfig(
        HEARTBEAT_MS,
        GROUP_HEARTBEAT_MS_MIN,
        GROUP_SESSION_MS_MAX,
        "The interval at which members send heartbeats.",
    ),
    SESSION: GroupConfig(
        SESSION_MS,
        GROUP_SESSION_MS_MIN,
        GROUP_SESSION_MS_MAX,
        "The time after which a member that was not heard is removed.",
    ),
}


class InvalidGroupConfig(PolynyaError):
    """A config cannot be set; the message says why."""


def checked(configs: Configs) -> Configs:
    """Return the configs of a group, if they are valid. Raises InvalidGroupConfig."""
    for name, value in configs.items():
        config = CONFIGS.get(name)
        if config is None:
            names = ", ".join(CONFIGS)
            raise InvalidGroupConfig(f"unknown group config name: {name[:100]}; known are {names}")
        is_number = value.isascii() and value.isdigit() and len(value) < 19
        if not is_number or not config.least <= int(value) <= config.most:
            raise InvalidGroupConfig(
                f"{name} is '{value[:50]}'; expected {config.least} to {config.most}"
            )
    session_ms, heartbeat_ms = timeouts_of(configs)
    if session_ms <= heartbeat_ms:
        raise InvalidGroupConfig(
            f"{SESSION} is {session_ms}; expected more than {HEARTBEAT}, {heartbeat_ms}"
        )
    return configs


def timeouts_of(configs: Configs) -> tuple[int, int]:
    """Return the session timeout and the interval of heartbeats, in ms."""
    return int(configs.get(SESSION, SESSION_MS)), int(configs.get(HEARTBEAT, HEARTBEAT_MS))


class GroupConfigs:
    """The configs of groups, as one core knows them."""

    def __init__(self, meta_group: MetaSettings) -> None:
        self._meta_group = meta_group
        self._known: dict[str, Configs] = {}
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    def timeouts(self, group: str) -> tuple[int, int]:
        """Return the timeouts of a group, as last read."""
        return timeouts_of(self._known.get(group, {}))

    async def refresh(self, *, waits: bool) -> None:
        """Read the configs unless they are of the last second. `waits`: until they are read, if the
        meta group answers."""
        now = asyncio.get_running_loop().time()
        if self._reading is None and now - self._read_at >= _FRESH_SECONDS:
            self._reading = asyncio.get_running_loop().create_task(self._try_to_read())
            self._reading.add_done_callback(self._is_read)
        if waits and self._reading is not None:
            await asyncio.wait([self._reading])

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def all(self) -> dict[str, Configs]:
        """Return the configs of each group that has some. Raises Unavailable."""
        await self._read()
        return self._known

    async def alter(self, group: str, change: Callable[[Configs], Configs]) -> None:
        """Change the configs of a group. `change` gets the present ones. Raises Unavailable,
        InvalidGroupConfig."""
        for _ in range(_ATTEMPTS):
            version = await self._read()
            before = self._known.get(group, {})
            after = checked(change(dict(before)))
            if after == before:
                return
            if not before and len(self._known) >= GROUP_CONFIGS_MAX:
                raise InvalidGroupConfig(
                    f"{GROUP_CONFIGS_MAX} groups have configs, which is the limit: delete some"
                )
            value = msgspec.json.encode(after) if after else None
            # the key is in hexadecimal digits: a group's id may have any character
            changes = [(group.encode().hex(), value)]
            reply = await self._meta_group.call(MetaChange(SCOPE, version, changes))
            if reply.code == Code.OK:
                return
        raise Unavailable("concurrent changes to the configs of groups; retry")

    async def _try_to_read(self) -> None:
        try:
            async with asyncio.timeout(_READ_SECONDS):
                await self._read()
        except (PolynyaError, TimeoutError):
            self._read_at = asyncio.get_running_loop().time()

    def _is_read(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        if not task.cancelled():
            task.result()

    async def _read(self) -> int:
        """Read the configs; return the number of their last change."""
        meta = await self._meta_group.entries(SCOPE)
        self._known = {
            bytes.fromhex(key).decode(): msgspec.json.decode(value, type=Configs)
            for key, value in values_of(meta, SCOPE).items()
        }
        self._read_at = asyncio.get_running_loop().time()
        return version_of(meta, SCOPE)
