"""The parts of an HTTP/1.1 response of this server, as another framing sends them: heads and body,
without the framing of HTTP/1.1."""

from __future__ import annotations

from collections.abc import Callable

Buffer = bytes | bytearray | memoryview
Field = tuple[bytes, bytes]
_DROPPED = frozenset((b"connection", b"keep-alive", b"transfer-encoding"))
_NO_BODY = frozenset((b"204", b"304"))


class ResponseParts:
    """The parts of one response, whose bytes come in pieces. `on_head` gets the fields of a head,
    with `:status` first, an interim one (1xx) too; `on_body` gets bytes of the body. `is_complete`:
    nothing may follow; a body without a length is complete once the connection closes."""

    __slots__ = ("_buffer", "_is_chunked", "_left", "_on_body", "_on_head", "_without", "began")

    def __init__(
        self,
        method: bytes,
        on_head: Callable[[list[Field]], None],
        on_body: Callable[[Buffer], None],
    ) -> None:
        self._without = method == b"HEAD"
        self._on_head, self._on_body = on_head, on_body
        self._buffer = b""
        self.began = False  # the final head is complete
        self._is_chunked = False
        self._left: int | None = None  # bytes of the body or of the chunk; None: until the close

    @property
    def is_complete(self) -> bool:
        return self.began and not self._is_chunked and not self._left

    def feed(self, data: Buffer) -> None:
        """Take the next bytes of the response."""
        if self.began and not self._is_chunked:
            self._take(data)
            return
        self._buffer = self._buffer + data if self._buffer else bytes(data)
        while not self.began and self._buffer:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            self._head(head)
        if self._is_chunked:
            self._chunks()
        elif self._buffer:
            body, self._buffer = self._buffer, b""
            self._take(body)

    def _head(self, block: bytes) -> None:
        first, *lines = block.split(b"\r\n")
        status = first.split(b" ", 2)[1]
        fields: list[Field] = [(b":status", status)]
        length: bytes | None = None
        for line in lines:
            name, _, value = line.partition(b":")
            name, value = name.lower(), value.strip()
            if name == b"content-length":
                length = value
            if name not in _DROPPED:
                fields.append((name, value))
            elif name == b"transfer-encoding":
                self._is_chunked = True
        if status[:1] != b"1":
            self.began = True
            if self._without or status in _NO_BODY:
                self._left, self._is_chunked = 0, False
            elif length is not None:
                self._left = int(length)
        self._on_head(fields)

    def _take(self, data: Buffer) -> None:
        if not data:
            return
        if self._left is not None:
            assert len(data) <= self._left, "a response is longer than its Content-Length"
            self._left -= len(data)
        self._on_body(data)

    def _chunks(self) -> None:
        """Pass on the chunks that are whole. The server writes each of them at once."""
        buffer, position = self._buffer, 0
        while (line := buffer.find(b"\r\n", position)) >= 0:
            size = int(buffer[position:line].partition(b";")[0], 16)
            begin, end = line + 2, line + 2 + size
            if len(buffer) < end + 2:
                break
            if not size:
                self._is_chunked, self._left = False, 0
            else:
                self._on_body(buffer[begin:end])
            position = end + 2
        self._buffer = buffer[position:]
