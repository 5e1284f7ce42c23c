"""Encode the header fields of responses for HTTP/2 as literals (HPACK, RFC 7541 6.2.2).

No field enters the table that both sides would keep: its upkeep costs more than all else of a
response, and its size is the client's choice. Fields repeat across responses, so encoded ones are
kept in a bounded cache.
"""

from __future__ import annotations

from collections.abc import Iterable

from polynya.wire.http.response_parts import Field

_CACHE_FIELDS_MAX = 4096
_CACHED_BYTES_MAX = 1024
_TABLE_OF_NOTHING = b"\x20"  # a table of size 0 (6.3), which is within whatever the client allows
_STATUS = {  # of the static table (appendix A)
    status: bytes((0x80 | index,))
    for index, status in enumerate((b"200", b"204", b"206", b"304", b"400", b"404", b"500"), 8)
}
_STATUS_NAME = b"\x08"  # its name is the eighth of the static table


class LiteralEncoder:
    """The encoder of one connection, in place of the library's. `header_table_size` is what the
    client allows, and means nothing here."""

    _known: dict[Field, bytes] = {}  # noqa: RUF012 (shared by all connections, and bounded)

    def __init__(self) -> None:
        self.header_table_size = 4096
        self._lead = _TABLE_OF_NOTHING  # before the first block

    def encode(self, headers: Iterable[Field], huffman: bool = True) -> bytes:
        """Return the header block of a list of fields; `huffman` is the library's, and means
        nothing."""
        lead, self._lead = self._lead, b""
        known = self._known
        return lead + b"".join([known.get(field) or self._add(field) for field in headers])

    def _add(self, field: Field) -> bytes:
        name, value = field
        if name == b":status":
            encoded = _STATUS.get(value) or _STATUS_NAME + _text(value)
        else:
            encoded = b"\0" + _text(name) + _text(value)
        if len(encoded) <= _CACHED_BYTES_MAX:
            if len(self._known) >= _CACHE_FIELDS_MAX:
                self._known.clear()
            self._known[name, value] = encoded
        return encoded


def _text(data: bytes) -> bytes:
    """Return a string literal (5.2), not Huffman coded: its length with a prefix of 7 bits."""
    size = len(data)
    if size < 127:
        return bytes((size,)) + data
    found, size = bytearray((127,)), size - 127
    while size >= 128:
        found.append(128 | size & 127)
        size >>= 7
    found.append(size)
    return bytes(found) + data
