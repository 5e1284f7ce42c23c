"""Calls of clients to a node of a simulated cluster, which may die while it works on them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from sim.cluster import Node

from polynya.base.errors import OutcomeUnknown, Unavailable

T = TypeVar("T")


async def answer_of(node: Node, call: Coroutine[Any, Any, T], seconds: float) -> T | None:
    """Return what a node answers; None: the answer is unknown, or did not come."""
    life = node.life
    try:
        async with asyncio.timeout(seconds):
            found: T = await node.process.drive(call)
    except (Unavailable, OutcomeUnknown, TimeoutError):
        return None
    return found if node.life == life and node.alive else None
