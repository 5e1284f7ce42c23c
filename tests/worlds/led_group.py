"""A core that leads one group, as the workers see it that copy states to the object store."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from worlds.stream import World, raw_batch

from polynya.backup.copies import CompleteMark
from polynya.base.names import group_of
from polynya.service.outbox_sender import OutboxSender
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.packs.commands import PublishSlices, ReleasePack
from polynya.stream.parts import Encoding

GROUPS = 2
NAME = next(f"docs/{n}" for n in range(9) if group_of(f"docs/{n}", GROUPS) == 1)
WHOLE = CompleteMark("c1", 1, GROUPS)


class Led:
    """A core that leads group 1, as a copier and an outbox sender see it."""

    def __init__(self) -> None:
        self.world = World(GROUPS)
        self.world.checks_copies = False
        self.group = SimpleNamespace(term=1, applied_index=0, machine=self.world.machines[1])
        self.snapshotter = SimpleNamespace(encoding=asyncio.Lock())
        self.sent: list[tuple[int, Any]] = []
        self.asked: list[tuple[int, Any, Any]] = []  # what was sent, and whom to answer
        led = {1: self.world.machines[1]}
        self.local = SimpleNamespace(led=led, machines=led, turns=0)
        self.service: Any = SimpleNamespace(
            now_ms=lambda: 99,
            local=self.local,
            proposals=SimpleNamespace(propose_to=self._propose),
        )
        self.outbox_sender = OutboxSender(self.service)
        self.storage = SimpleNamespace(core_replicas=SimpleNamespace(groups={1: self.group}))

    def _propose(self, group: int, command: Any, done: Any) -> None:
        self.sent.append((group, command))
        self.asked.append((group, command, done))

    def apply(self, command: Any) -> Any:
        self.group.applied_index += 1
        self.local.turns += 1
        return self.world.apply(1, command)

    def a_stream_in_a_pack_goes(self) -> None:
        self.apply(Create(NAME, 1, "text/plain", Encoding.BYTES, batch=raw_batch(b"x")))
        stream = self.world.machines[1].directory.streams[NAME]
        cold = self.world.slice_of(stream, 1, "p")
        self.apply(PublishSlices("p", 2, 1, [(stream.uid, cold)]))
        self.apply(Delete(NAME, 2))

    def releases(self) -> list[str]:
        return [command.pack for _, command in self.sent if isinstance(command, ReleasePack)]


async def owned() -> bool:
    return True
