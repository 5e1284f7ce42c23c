"""The configs of consumer groups, as Kafka's tools set them: of the consumer protocol.

The meta group has them, as the scope `kafka-group-configs` of its settings; a group need not exist
to have some. A coordinator reads them at most once a second.
"""

from __future__ import annotations

import asyncio

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.limits import (
    GROUP_CONFIGS_MAX,
    GROUP_HEARTBEAT_MS_MIN,
    GROUP_SESSION_MS_MAX,
    GROUP_SESSION_MS_MIN,
)
from polynya.service.settings.bucket_profiles import MetaSettings
from polynya.service.settings.named_configs import Configs, Limit, NamedConfigs
from polynya.stream.features.consumer_groups.modern import HEARTBEAT_MS, SESSION_MS

SCOPE = "kafka-group-configs"
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


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
        self._stored = NamedConfigs(
            meta_group,
            SCOPE,
            checked=checked,
            limit=Limit(
                GROUP_CONFIGS_MAX,
                InvalidGroupConfig,
                f"{GROUP_CONFIGS_MAX} groups have configs, which is the limit: delete some",
            ),
            what="the configs of groups",
        )
        self.all, self.alter = self._stored.all, self._stored.alter
        self._reading: asyncio.Task[None] | None = None

    def timeouts(self, group: str) -> tuple[int, int]:
        """Return the timeouts of a group, as last read."""
        return timeouts_of(self._stored.known.get(group, {}))

    async def refresh(self, *, waits: bool) -> None:
        """Read the configs unless they are of the last second. `waits`: until they are read, if the
        meta group answers."""
        if self._reading is None and not self._stored.reads.is_fresh:
            self._reading = asyncio.get_running_loop().create_task(self._stored.reads.refresh())
            self._reading.add_done_callback(self._is_read)
        if waits and self._reading is not None:
            await asyncio.wait([self._reading])

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    def _is_read(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        if not task.cancelled():
            task.result()
