"""An incremental parser of server-sent events (WHATWG HTML 9.2.6)."""

from __future__ import annotations

import codecs

import msgspec

# an event holds one append or one page; a larger one is not from a Polynya server
EVENT_BYTES_MAX = 64 << 20


class Event(msgspec.Struct, frozen=True):
    """One event. `id` is the last event id seen, as in browsers."""

    name: str
    data: str
    id: str


class EventParser:
    """Parses a body fed in pieces. An event that the end cuts off is dropped."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []  # of an incomplete line
        self._after_cr = False
        self._name = self._last_id = ""
        self._data: list[str] = []
        self._size = 0
        self._line_size = 0

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that this piece completes. Raises ValueError when an event is too
        large."""
        found = []
        for line in self._lines(piece):
            if line:
                self._field(line)
                continue
            if self._data:
                found.append(Event(self._name or "message", "\n".join(self._data), self._last_id))
            self._name, self._data, self._size = "", [], 0
        return found

    def _field(self, line: str) -> None:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
            self._grow(len(value))
        elif field == "event":
            self._name = value
        elif field == "id" and "\0" not in value:
            self._last_id = value

    def _grow(self, characters: int) -> None:
        self._size += characters
        if self._size > EVENT_BYTES_MAX:
            raise ValueError(f"an event has more than {EVENT_BYTES_MAX} bytes")

    def _lines(self, piece: bytes) -> list[str]:
        """Split into lines that end in CR LF, LF or CR."""
        text = self._decoder.decode(piece)
        if self._after_cr and text:
            text = text.removeprefix("\n")
            self._after_cr = False
        if text:
            self._after_cr = text.endswith("\r")
        if "\n" not in text and "\r" not in text:
            self._parts.append(text)
            self._line_size += len(text)
            if self._line_size > EVENT_BYTES_MAX:
                raise ValueError(f"a line has more than {EVENT_BYTES_MAX} bytes")
            return []
        *whole, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        whole[0] = "".join(self._parts) + whole[0]
        self._parts, self._line_size = [rest], len(rest)
        return whole
