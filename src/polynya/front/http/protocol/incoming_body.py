"""A request body that arrives in parts. Large ones count against a budget of the core."""

from __future__ import annotations

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.settings import BODY_BYTES_PER_CORE
from polynya.wire.http.http1 import CHUNKED, ChunkedBody, Head

_LARGE_BODY_BYTES = 64 * 1024  # a larger body counts against the core's budget


class BodyBudget:
    """The bytes of the large bodies that one core receives."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0

    def take(self, size: int) -> None:
        """Reserve bytes. Raises `Failure` where too few are left."""
        if self.bytes + size > BODY_BYTES_PER_CORE:
            raise Failure("REQUEST_MEMORY_LIMIT")
        self.bytes += size

    def give_back(self, size: int) -> None:
        """Give reserved bytes back."""
        self.bytes -= size


class IncomingBody:
    """The body of a request, and what it has reserved of the budget until `release`."""

    __slots__ = ("_budget", "_bytes_max", "_data", "_reserved", "head")

    def __init__(self, head: Head, bytes_max: int, budget: BodyBudget) -> None:
        self.head = head
        self._bytes_max = bytes_max
        self._budget = budget
        self._reserved = 0
        self._data = ChunkedBody() if head.length == CHUNKED else bytearray()
        if head.length != CHUNKED:
            self._reserve(head.length)

    @property
    def size(self) -> int:
        """The bytes that have arrived."""
        data = self._data
        return len(data) if isinstance(data, bytearray) else len(data.data)

    def feed(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Add received bytes. Return the body and the bytes after it, once it is complete. Raises
        `BadRequest` and `Failure`."""
        body = self._data
        if isinstance(body, ChunkedBody):
            rest = body.feed(data)
            check_size(body.size, self._bytes_max)
            self._reserve(body.size)
            return (bytes(body.data), rest) if body.done else None
        left = self.head.length - len(body)
        body += data[:left] if len(data) > left else data
        return (bytes(body), data[left:]) if len(body) == self.head.length else None

    def _reserve(self, size: int) -> None:
        more = size - self._reserved
        if size > _LARGE_BODY_BYTES and more > 0:
            self._budget.take(more)
            self._reserved += more

    def release(self) -> None:
        """Return the reserved bytes."""
        self._budget.give_back(self._reserved)
        self._reserved = 0


def check_size(size: int, bytes_max: int) -> None:
    """Raise `Failure` for a body that is larger than its route takes."""
    if size > bytes_max:
        raise Failure("BODY_TOO_LARGE", f"a body has at most {bytes_max} bytes here; split it")
