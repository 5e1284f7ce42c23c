"""Whole records as a server shows them: `application/vnd.polynya.records+json`."""

from __future__ import annotations

from base64 import b64decode

import msgspec


class _Coded(msgspec.Struct, rename={"data": "$base64"}):
    data: str


class WholeRecord(msgspec.Struct, frozen=True):
    """A record as `application/vnd.polynya.records+json` shows it."""

    offset: int
    timestamp: int | None
    key: str | _Coded | None
    headers: list[tuple[str, str | _Coded | None]]
    value: msgspec.Raw

    def data(self, *, as_json: bool) -> bytes:
        """Return the bytes of the value; of a record without one `null` in JSON, else none."""
        if as_json:
            return bytes(self.value)
        return bytes_of(_coded(self.value)) or b""

    @property
    def key_bytes(self) -> bytes | None:
        return bytes_of(self.key)

    @property
    def header_pairs(self) -> tuple[tuple[str, bytes | None], ...]:
        return tuple((name, bytes_of(value)) for name, value in self.headers)


_coded = msgspec.json.Decoder(str | _Coded | None).decode
whole_record = msgspec.json.Decoder(WholeRecord).decode


def bytes_of(shown: str | _Coded | None) -> bytes | None:
    """Return the bytes of a text or of base64; None for null."""
    if isinstance(shown, _Coded):
        return b64decode(shown.data)
    return None if shown is None else shown.encode()
