"""The memory of large requests: taken as their bytes arrive, and shared while it is short.

A caller is a token, or the network of an address without one. While the core's budget has room,
anyone may use it. When it is used up, those that hold less than an equal share are read on, so
that the others wait for themselves alone. A request that has begun may always grow if it is the
oldest one of its caller: so requests complete, and return what they hold.
"""

from __future__ import annotations

from collections.abc import Callable

from polynya.base.limits import KAFKA_REQUESTS_BYTES_PER_CORE, KIB, MIB

# shares shrink as callers come, while others still hold larger ones: the limit of all together, as
# a multiple of the budget
_TOTAL_SHARES = 2
_FIRST_BYTES = 64 * KIB  # of a buffer whose request has barely begun
_AHEAD = 16  # times the bytes that came, in one buffer …
_AHEAD_BYTES = 1 * MIB  # … up to this, which most clients never exceed; then twice the bytes


class _Caller:
    """The bytes of one caller's requests, and those requests that are incomplete, oldest first."""

    __slots__ = ("arriving", "bytes", "key", "requests")

    def __init__(self, key: str) -> None:
        self.key = key
        self.bytes = self.requests = 0
        self.arriving: dict[Holding, None] = {}


class Holding:
    """The memory of one request, from its first bytes to its answer."""

    __slots__ = ("_memory", "bytes", "caller")

    def __init__(self, memory: RequestMemory, caller: _Caller) -> None:
        self._memory = memory
        self.caller = caller
        self.bytes = 0

    def release(self) -> None:
        """End the request."""
        self._memory.release(self)


class RequestMemory:
    """The budget of one core. `on_room` is called after a request has ended while it was short."""

    def __init__(self, on_room: Callable[[], None] = lambda: None) -> None:
        self._on_room = on_room
        self.bytes = 0
        self.is_short = False  # the budget is used up, so that shares count
        self._callers: dict[str, _Caller] = {}
        self._arriving: dict[Holding, None] = {}  # incomplete requests, oldest first

    def is_full_for(self, key: str) -> bool:
        """Report whether a caller may begin no further request."""
        if not self.is_short:
            return False
        caller = self._callers.get(key)
        share = KAFKA_REQUESTS_BYTES_PER_CORE // (len(self._callers) + (caller is None))
        held = 0 if caller is None else caller.bytes
        return held >= share or self.bytes >= _TOTAL_SHARES * KAFKA_REQUESTS_BYTES_PER_CORE

    def begin(self, key: str) -> Holding:
        """Begin a request of a caller."""
        caller = self._callers.setdefault(key, _Caller(key))
        caller.requests += 1
        holding = Holding(self, caller)
        caller.arriving[holding] = self._arriving[holding] = None
        return holding

    def take(self, holding: Holding, size: int) -> bool:
        """Let an incomplete request hold `size` bytes; return False if it has to wait."""
        caller = holding.caller
        if holding.bytes and self.is_full_for(caller.key):
            is_over = self.bytes >= _TOTAL_SHARES * KAFKA_REQUESTS_BYTES_PER_CORE
            if next(iter(self._arriving if is_over else caller.arriving)) is not holding:
                return False
        self._add(holding, size - holding.bytes)
        return True

    def complete(self, holding: Holding) -> None:
        """Count a request that has arrived."""
        holding.caller.arriving.pop(holding, None)
        self._arriving.pop(holding, None)

    def release(self, holding: Holding) -> None:
        """End a request."""
        was_short = self.is_short
        self.complete(holding)
        self._add(holding, -holding.bytes)
        caller = holding.caller
        caller.requests -= 1
        if not caller.requests:
            del self._callers[caller.key]
        if was_short:
            self._on_room()

    def _add(self, holding: Holding, size: int) -> None:
        holding.bytes += size
        holding.caller.bytes += size
        self.bytes += size
        self.is_short = self.bytes >= KAFKA_REQUESTS_BYTES_PER_CORE


class Frame:
    """A large request that arrives: its buffer grows with the bytes that came."""

    __slots__ = ("_data", "_got", "_memory", "_size", "holding", "is_stuck")

    def __init__(self, memory: RequestMemory, key: str, first: memoryview, size: int) -> None:
        self.holding = memory.begin(key)
        self.is_stuck = False  # there is no memory for more of it
        self._memory = memory
        self._size = size
        self._data = bytearray()
        self._got = 0
        self._grow(len(first))
        self._data[: len(first)] = first
        self._got = len(first)

    def room(self) -> memoryview:
        """Return the place of the next bytes."""
        return memoryview(self._data)[self._got :]

    def received(self, size: int) -> memoryview | None:
        """Count bytes that came into `room`; return the whole request after its last byte."""
        self._got += size
        if self._got == self._size:
            self._memory.complete(self.holding)
            return memoryview(self._data)
        self.go_on()
        return None

    def go_on(self) -> None:
        """Take more memory if the buffer is full."""
        if self._got == len(self._data):
            self._grow(self._got)

    def _grow(self, came: int) -> None:
        size = max(_FIRST_BYTES, min(_AHEAD * came, _AHEAD_BYTES), 2 * came)
        size = min(size, self._size)
        self.is_stuck = not self._memory.take(self.holding, size)
        if not self.is_stuck:
            data = bytearray(size)
            data[: self._got] = memoryview(self._data)[: self._got]
            self._data = data
