"""The key of a record, for reducers that keep something for each key. Pure."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from typing import Any

import msgspec

from polynya.base.msgpack import UNREADABLE
from polynya.reducers.reducer import Record

BASE64 = "base64:"  # before a key that is no text, or begins with this word
DELETE = "delete"  # the operation of a change message
RESET = "reset"  # the control of a change message: all keys are gone
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode


# a key and its value. Without a value the key is gone; without a key all of them are
Change = tuple[str | None, bytes | None]


def change_of(record: Record, pointer: tuple[str, ...]) -> Change | None:
    """Return what a record says of a key; None: it has no key.

    The key is at the JSON pointer, of whose parts there may be none. Otherwise it is the record's own, or that of a
    change message of the State Protocol: `{"type", "key", "value", "headers": {"operation"}}`."""
    if pointer:
        return _at_pointer(record.value, pointer)
    if record.key is not None:
        return key_text(record.key), record.value
    return _of_message(record.value)


def _at_pointer(value: bytes | None, pointer: tuple[str, ...]) -> Change | None:
    found = None if value is None else value_at(value, pointer)
    if found is None or found[:1] in (b"{", b"[", b"n"):
        return None
    try:
        text = _text(found) if found[:1] == b'"' else found.decode()
    except UNREADABLE:
        return None
    return _marked(text), value


def _of_message(value: bytes | None) -> Change | None:
    if value is None or value[:1] != b"{":
        return None
    try:
        fields = _fields(value)
        headers: Any = msgspec.json.decode(fields["headers"])
        if not isinstance(headers, dict):
            return None
        if "control" in headers:
            return (None, None) if headers["control"] == RESET else None
        if "operation" not in headers:
            return None
        kind = _text(fields["type"])
        key = _text(fields["key"])
    except (*UNREADABLE, KeyError):
        return None
    gone = headers["operation"] == DELETE
    found = None if gone else bytes(fields.get("value", b"null"))
    return _marked(f"{kind}/{key}"), None if found == b"null" else found


def key_text(key: bytes) -> str:
    """Return a key as text: of other bytes, `base64:` and their base64."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return BASE64 + b64encode(key).decode()
    return _marked(text)


def _marked(text: str) -> str:
    """Return a key that is text. One that begins with `base64:` is told apart by its base64."""
    return BASE64 + b64encode(text.encode()).decode() if text.startswith(BASE64) else text


def key_bytes(text: str) -> bytes:
    """Return the bytes of a key as `key_text` spells it."""
    if text.startswith(BASE64):
        try:
            return b64decode(text[len(BASE64) :], validate=True)
        except (Error, ValueError):
            pass
    return text.encode()


def check_pointer(pointer: str) -> str:
    """Return why a text is no JSON pointer (RFC 6901); "": it is one, or empty."""
    if pointer and not pointer.startswith("/"):
        return f"'{pointer[:64]}' is no JSON pointer: it must begin with '/', such as /user/id"
    if len(pointer) > 256:
        return "a JSON pointer of a key has at most 256 characters"
    return ""


def pointer_parts(pointer: str) -> tuple[str, ...]:
    """Return the unescaped parts of a JSON pointer."""
    parts = pointer.split("/")[1:]
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def value_at(value: bytes, pointer: tuple[str, ...]) -> bytes | None:
    """Return the JSON at a pointer, byte for byte; None: there is nothing, or the value is no
    JSON."""
    found = value.strip()
    try:
        for name in pointer:
            if found[:1] == b"{":
                found = bytes(_fields(found)[name])
            elif found[:1] == b"[" and name.isdecimal() and name.isascii() and len(name) < 10:
                found = bytes(_items(found)[int(name)])
            else:
                return None
    except (*UNREADABLE, LookupError):
        return None
    return found
