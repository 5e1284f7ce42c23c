"""Values of records inside of the JSON of a state. Pure."""

from __future__ import annotations

from base64 import b64encode

import msgspec

from polynya.wire.json_records import valid_value

JSON = "application/json"


def json_of(value: bytes) -> bytes:
    """Return a value as JSON: its own bytes if it is JSON, else a string, else
    `{"$base64": "…"}`."""
    found = valid_value(value)
    if found is not None:
        return found
    try:
        return msgspec.json.encode(value.decode())
    except UnicodeDecodeError:
        return b'{"$base64":"' + b64encode(value) + b'"}'
