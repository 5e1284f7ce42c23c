"""Remove superseded snapshots of streams whose grace is over, and bodies that nothing names.

A publish does the same; this is for streams that get no more of them.
"""

from __future__ import annotations

import asyncio

from polynya.base.names import bucket_of, owner_of
from polynya.service.node_service import NodeService
from polynya.service.snapshots import rule_of
from polynya.stream.features.marks.commands import OVERDUE, DropSnapshot
from polynya.stream.features.marks.held import is_overdue
from polynya.stream.features.pages.eviction import evicted_view
from polynya.stream.features.retention.rules import retention_of
from polynya.stream.state.model import Stream

_LOOKED_AT_ONCE = 256  # companions; then the loop runs
_DROPS_MAX = 256  # of one sweep of a group


async def sweep_snapshots(service: NodeService) -> int:
    """Sweep the groups that this core leads. Return how many streams had something to remove."""
    found: list[tuple[int, Stream]] = []
    for group, machine in tuple(service.local.led.items()):
        most = len(found) + _DROPS_MAX
        for number, own in enumerate(tuple(machine.directory.companions.values()), 1):
            if number % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            owner = owner_of(own.name)
            stream = machine.directory.streams.get(owner) or evicted_view(machine, owner)
            if stream is not None and is_overdue(stream, own, service.now_ms()):
                found.append((group, stream))
                if len(found) == most:
                    break
    buckets = await service.buckets() if found else {}
    for group, stream in found:
        retention = retention_of(stream) or buckets.get(bucket_of(stream.name))
        kept, bound = await rule_of(service.reducers, stream.name, retention)
        now_ms = service.now_ms()
        command = DropSnapshot(stream.name, stream.uid, "", OVERDUE, kept, bound, now_ms)
        await service.call(group, command)
    return len(found)
