"""Server-sent events as they come: lines in, events out."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator

import msgspec

EVENT_BYTES_MAX = 64 << 20  # an event holds one append; more than this is no stream of ours


class Event(msgspec.Struct, frozen=True):
    """One event. `id` is the last one seen, as browsers keep it."""

    name: str
    data: str
    id: str


def events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """The events in a body's bytes (WHATWG HTML 9.2.6). An event that the end cuts off is dropped. Raises ValueError over the limit."""
    name, last_id = "", ""
    data: list[str] = []
    size = 0
    for line in _lines(chunks):
        if not line:
            if data:
                yield Event(name or "message", "\n".join(data), last_id)
            name, data, size = "", [], 0
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
            size += len(value)
            if size > EVENT_BYTES_MAX:
                raise ValueError(f"an event has more than {EVENT_BYTES_MAX} bytes")
        elif field == "event":
            name = value
        elif field == "id" and "\0" not in value:
            last_id = value


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines that end in CR LF, LF or CR."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts: list[str] = []
    after_cr = False
    for chunk in chunks:
        text = decoder.decode(chunk)
        if after_cr and text:
            text = text.removeprefix("\n")
        if text:
            after_cr = text.endswith("\r")
        if "\n" not in text and "\r" not in text:
            parts.append(text)
            continue
        *whole, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        whole[0] = "".join(parts) + whole[0]
        parts = [rest]
        yield from whole
