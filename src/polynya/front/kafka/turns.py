"""Requests and answers of very many elements: worked on in turns, and coded in a thread.

A handler goes through its request by `in_turns`, so that other connections have turns between some
elements. A large request is decoded, and a large answer encoded, in a thread that gives the
interpreter back every few milliseconds; one at a time for each core.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol, TypeVar

from polynya.base.limits import KAFKA_ELEMENTS_PER_TURN

_T = TypeVar("_T")


class Counted(Protocol):
    """A request whose work is counted."""

    worked: int  # elements of the request, or of the answer


async def in_turns(call: Counted, items: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield the elements of a request, and let others have the loop now and then."""
    for each in items:
        yield each
        if count(call):
            await asyncio.sleep(0)


def count(call: Counted, elements: int = 1) -> bool:
    """Count elements that were worked on; return True if the turn is over."""
    before = call.worked // KAFKA_ELEMENTS_PER_TURN
    call.worked += elements
    return call.worked // KAFKA_ELEMENTS_PER_TURN > before


async def in_thread(coding: asyncio.Lock, work: Callable[[], _T]) -> _T:
    """Decode or encode a large message without taking the loop. `coding`: one at a time."""
    async with coding:
        return await asyncio.to_thread(work)
