"""Calls from one core to all others of a cluster."""

from __future__ import annotations

import asyncio

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.transport import Transport, address, node_of

ASK_AGAIN_SECONDS = 0.05


def other_cores(transport: Transport, own: int) -> dict[tuple[int, int], int]:
    """Return the address of each reachable core by (node, core). `own`: this node's number."""
    core_ids = {(own, core): core for core in transport.others}
    links = transport.node_links
    if links is None:
        return core_ids
    raft = links.raft
    for node in links.nodes:  # includes a removed node that does not know it yet
        if raft.is_up(node):
            core_ids |= {(node, core): address(node, core) for core in range(raft.cores_of(node))}
    return core_ids


async def ask_core(transport: Transport, core_id: int, kind: int, body: bytes = b"") -> bytes:
    """Call a connected core. Retry until its connection is lost, as the request's connection may
    still be opening. Raises PolynyaError."""
    while True:
        try:
            return await transport.call(core_id, kind, body)
        except (Unavailable, OutcomeUnknown):
            if transport.raft is None or not transport.raft.is_up(node_of(core_id)):
                raise
            await asyncio.sleep(ASK_AGAIN_SECONDS)
