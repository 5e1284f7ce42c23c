"""Attributes of streams in HTTP: a JSON object, its merge patch (RFC 7396), its ETag, and the header
`Stream-Attrs`.

Objects are stored in one form: compact, with the members in the order of their names. Numbers keep
their digits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from polynya.base.limits import ATTRS_BYTES_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.stream.features.attributes.commands import ANY_REVISION, NO_REVISION
from polynya.wire.headers import BadField

HEADER = "stream-attrs"
_JSON = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal)
_ENCODER = msgspec.json.Encoder(decimal_format="number", order="sorted")
_ETAG = re.compile(r'"([0-9a-f]{1,16})\.([0-9a-f]{1,16})-(\d{1,18})"', re.ASCII)
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class TooLarge(BadField):
    """Attributes that are larger than a stream may have."""


class AttributeCondition(msgspec.Struct, frozen=True):
    """The attributes that the stream must have: their revision, and its incarnation (0: any)."""

    revision: int = ANY_REVISION
    incarnation: int = 0

    @property
    def is_any(self) -> bool:
        """Report whether any attributes may be there."""
        return self.revision == ANY_REVISION


def parse_attributes(text: bytes | str) -> dict[str, Any]:
    """Parse an object of attributes, or a merge patch of one. Raises BadField."""
    if len(text) > ATTRS_BYTES_MAX:
        raise _too_large(len(text))
    return _parsed(text)


def _parsed(text: bytes | str) -> dict[str, Any]:
    try:
        return _JSON.decode(text)
    except (*UNREADABLE, ArithmeticError, ValueError) as error:
        raise BadField(f"attributes are one JSON object: {error or 'nested too deeply'}") from None


def encode_attributes(value: Mapping[str, Any]) -> bytes | None:
    """Return attributes as they are stored; None: there are none. Raises BadField."""
    if not value:
        return None
    try:
        data = _ENCODER.encode(value)
    except (RecursionError, ValueError):
        raise BadField("attributes are nested too deeply, or have a number too long") from None
    if len(data) > ATTRS_BYTES_MAX:
        raise _too_large(len(data))
    return data


def patched(value: bytes | None, patch: Mapping[str, Any]) -> bytes | None:
    """Return attributes after a merge patch. Raises BadField."""
    try:
        return encode_attributes(_merge({} if value is None else _JSON.decode(value), patch))
    except RecursionError:
        raise BadField("the merge patch is nested too deeply") from None


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result: dict[str, Any] = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value)
    return result


def parse_header(text: str) -> bytes | None:
    """Parse `Stream-Attrs`; None: an empty object. With escapes it may be longer than what is
    stored. Raises BadField."""
    if not text.isascii():
        raise BadField("Stream-Attrs must be ASCII: write other characters as \\u escapes")
    try:
        return encode_attributes(_parsed(text))
    except BadField as bad:
        raise BadField(f"Stream-Attrs: {bad}") from None


def format_header(value: bytes) -> str:
    """Return stored attributes as the value of `Stream-Attrs`."""
    return _NOT_ASCII.sub(_escape, value.decode())


def _escape(found: re.Match[str]) -> str:
    data = found[0].encode("utf-16-be")
    return "".join(f"\\u{data[at : at + 2].hex()}" for at in range(0, len(data), 2))


def etag_of_attributes(uid: int, history: int, revision: int) -> str:
    """Return the ETag of a stream's attributes; revision 0: there are none."""
    return f'"{uid:x}.{history:x}-{revision}"'


def parse_match(value: str, history: int) -> AttributeCondition:
    """Parse `If-Match`. A tag of before a restore matches nothing. Raises BadField."""
    tag = _ETAG.fullmatch(value.strip())
    if tag is None:
        raise BadField(
            "If-Match must be the ETag of a response with the stream's attributes, not "
            f"'{value[:64]}'"
        )
    uid, of_history, revision = tag.groups()
    known = int(of_history, 16) == history
    return AttributeCondition(int(revision) if known else NO_REVISION, int(uid, 16))


def _too_large(size: int) -> TooLarge:
    return TooLarge(
        f"the attributes have {size:,} bytes; a stream has at most {ATTRS_BYTES_MAX:,} "
        "(ATTRS_BYTES_MAX)"
    )
