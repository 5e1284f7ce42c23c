"""JSON bodies: validated and split into records once, byte for byte, and joined again for readers.

A record is one element of the array (flattened once): its exact bytes without surrounding
whitespace. The stored form is each record followed by one comma, so `[` + stored form without its
last comma + `]` is an array again. Nothing is re-serialized: numbers of any size, key order,
duplicate keys and escapes stay unchanged.

`msgspec.Raw` checks the grammar but accepts invalid UTF-8 and recurses into nested brackets, so
both are checked first. It also rejects escapes of lone surrogates, which JavaScript writes for text
cut inside a character. They are legal JSON and are accepted here.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from itertools import accumulate, compress
from operator import countOf

import msgspec

from polynya.base.limits import JSON_DEPTH_MAX
from polynya.base.msgpack import UNREADABLE

# limit of one body; each record costs some 60 bytes while it is split
RECORDS_PER_APPEND_MAX = 1_000_000

_PART = 64 * 1024  # of a text, looked at in one call: other threads run between two of them

_WHITESPACE = b" \t\n\r"
# also an unterminated one: every quote is scanned once
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
# one level deeper or less deep, as signed bytes
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_STEPS_AND_COMMAS = bytes.maketrans(b"[{]},", b"\x01\x01\xff\xff\x00")
_COMMAS = bytes(each == 0x2C for each in range(256))
_BUT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
_BUT_BRACKETS_AND_COMMAS = bytes(set(_BUT_BRACKETS) - set(b","))
_SURROGATES = re.compile(rb"\\\\|\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_value = msgspec.json.Decoder(msgspec.Raw).decode
_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class BadJson(ValueError):
    """The body is invalid JSON; the message has the reason."""


class TooManyRecords(ValueError):
    """The body holds more records than one append may."""


def parse_records(body: bytes) -> tuple[int, bytes, bytes]:
    """Split a body into one record, or one for each array element. Return (records, payload in
    stored form, lengths).

    `lengths` is empty for up to one record, else packed little-endian u32, each including its
    comma. An empty array is (0, b"", b""). Raises `BadJson`, `TooManyRecords`.
    """
    text = body.strip(_WHITESPACE)
    check_text(text)
    if text[:1] == b"[":
        if (
            text.count(b",") >= RECORDS_PER_APPEND_MAX
            and _count_elements(text) > RECORDS_PER_APPEND_MAX
        ):
            raise TooManyRecords(
                f"one append takes at most {RECORDS_PER_APPEND_MAX} JSON values; send them in "
                "several"
            )
        return _stored(_elements(text))
    try:
        _value(text)
    except UNREADABLE as error:
        _retry_with_surrogates(text, error)
    return 1, text + b",", b""


def valid_value(text: bytes) -> bytes | None:
    """Return one JSON value without surrounding whitespace; None: the text is none, or too deep."""
    text = text.strip(_WHITESPACE)
    try:
        check_text(text)
        _value(text)
    except BadJson:
        return None
    except UNREADABLE as error:
        try:
            _retry_with_surrogates(text, error)
        except BadJson:
            return None
    return text


def elements_of(parts: Sequence[bytes | memoryview]) -> Sequence[bytes | msgspec.Raw]:
    """Return stored records one by one."""
    return _elements(as_array(parts))


def values_of(parsed: tuple[int, bytes, bytes]) -> list[bytes]:
    """Return the records that `parse_records` found, one by one, without their commas."""
    records, payload, lengths = parsed
    ends = [*accumulate(memoryview(lengths).cast("I"))] if lengths else [len(payload)]
    begins = [0, *ends]
    return [payload[begins[at] : ends[at] - 1] for at in range(records)]


def as_array(parts: Sequence[bytes | memoryview]) -> bytes:
    """Return stored records as a JSON array."""
    return b"".join(array_parts(parts))


def array_parts(parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return stored records as the parts of a JSON array, without a copy."""
    return [b"[", *parts[:-1], memoryview(parts[-1])[:-1], b"]"] if parts else [b"[]"]


def as_lines(parts: Sequence[bytes | memoryview]) -> bytes:
    """Return stored records as NDJSON. CR and LF inside a record, which are whitespace there,
    become spaces."""
    found: list[bytes] = []
    for record in _elements(as_array(parts)):
        found += (bytes(record).replace(b"\r", b" ").replace(b"\n", b" "), b"\n")
    return b"".join(found)


def check_text(text: bytes) -> None:
    """Check what the parser does not: UTF-8, and the depth of nesting. Raises `BadJson`."""
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise BadJson(f"the body is not valid UTF-8 (byte {error.start})") from None
    if text.count(b"[") + text.count(b"{") > JSON_DEPTH_MAX and _deeper_than_allowed(text):
        raise BadJson(f"JSON may be nested at most {JSON_DEPTH_MAX} deep")


def _deeper_than_allowed(text: bytes) -> bool:
    """Return whether the text is nested too deeply. For malformed text the answer may be wrong, but
    it is rejected anyway. Up to the malformed position the count is right."""
    steps = _outside_strings(text, _BUT_BRACKETS).translate(_STEPS)
    depth = 0
    for at in range(0, len(steps), _PART):
        depths = [*accumulate(memoryview(steps)[at : at + _PART].cast("b"), initial=depth)]
        if max(depths) > JSON_DEPTH_MAX:
            return True
        depth = depths[-1]
    return False


def _outside_strings(text: bytes, without: bytes) -> bytes:
    """Return the bytes outside strings, less the bytes of `without`, which excludes quotes.

    Only strings with other bytes are matched one by one. Of the other strings two adjacent quotes
    remain; removing both keeps every other byte inside or outside. Matching all strings took longer
    than the rest of an append: seconds for the largest.
    """
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    rest = text.translate(None, without).replace(b'""', b"")
    if b'"' not in rest:
        return rest
    found, at = [], 0
    while at < len(rest):
        end = at + _PART
        if rest.count(b'"', at, end) % 2:  # inside a string: to its end
            end = rest.find(b'"', end) + 1 or len(rest)
        found.append(_STRING.sub(b"", rest[at:end]))
        at = end
    return b"".join(found)


def _count_elements(text: bytes) -> int:
    """Count the elements of the outermost array without building them, up to one more than the
    limit. The text is known not to be too deep."""
    rest = _outside_strings(text, _BUT_BRACKETS_AND_COMMAS)
    steps, commas = rest.translate(_STEPS_AND_COMMAS), rest.translate(_COMMAS)
    depth, found = 0, 1
    for at in range(0, len(steps), _PART):
        part = memoryview(steps)[at : at + _PART].cast("b")
        depths = [*accumulate(part, initial=depth)]
        depth = depths[-1]
        found += countOf(compress(depths, b"\0" + commas[at : at + _PART]), 1)
        if found > RECORDS_PER_APPEND_MAX:
            break
    return found


def _elements(text: bytes) -> list[msgspec.Raw] | list[bytes]:
    try:
        return _array(text)
    except UNREADABLE as error:
        twin = _retry_with_surrogates(text, error)
    found: list[bytes] = []
    position = 1
    for element in _array(twin):
        begin = twin.index(bytes(element), position)
        position = begin + len(bytes(element))
        found.append(text[begin:position])
    return found


def _retry_with_surrogates(text: bytes, error: Exception) -> bytes:
    """Validate a copy of equal length whose surrogate escapes are replaced by spaces, and return
    it. Raises `BadJson` if they were not the reason."""
    twin = _SURROGATES.sub(lambda match: match[0] if match[0] == b"\\\\" else b"\\u0020", text)
    if twin != text:
        try:
            _value(twin)
        except UNREADABLE:
            pass
        else:
            return twin
    raise BadJson(f"the body is not valid JSON: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return (
        "nested too deeply"
        if isinstance(error, RecursionError)
        else str(error).removeprefix("JSON is malformed: ")
    )


def _stored(elements: Sequence[msgspec.Raw] | Sequence[bytes]) -> tuple[int, bytes, bytes]:
    records = [bytes(element) for element in elements]
    if not records:
        return 0, b"", b""
    payload = b",".join(records) + b","
    if len(records) == 1:
        return 1, payload, b""
    return len(records), payload, array("I", [len(record) + 1 for record in records]).tobytes()
