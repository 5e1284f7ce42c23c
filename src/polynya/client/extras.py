"""Custom headers and query parameters, sent with each request besides those of the protocol."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlencode

import msgspec

from polynya.client.messages import HttpRequest

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?|", re.ASCII)
_OWN_HEADERS = frozenset(
    (
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_OWN_PREFIXES = ("stream-", "producer-")
_OWN_PARAMS = frozenset(
    (
        "offset",
        "from_time",
        "from_record_time",
        "record",
        "tail_records",
        "max_records",
        "record_view",
        "live",
        "cursor",
        "max_bytes",
        "consistency",
        "prefix",
        "after",
        "limit",
    )
)


class Extras(msgspec.Struct, frozen=True):
    """Custom headers, with names in lower case, and custom query parameters."""

    headers: dict[str, str] = {}
    params: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self.headers or self.params)

    def joined(self, others: Extras) -> Extras:
        """Merge both; values of `others` win."""
        return Extras(self.headers | others.headers, self.params | others.params)

    def target(self, request: HttpRequest) -> str:
        """Return the target of a request with the parameters added."""
        if not self.params:
            return request.target
        return f"{request.target}{'&' if '?' in request.target else '?'}{urlencode(self.params)}"


def extras_of(headers: Mapping[str, str] | None, params: Mapping[str, str] | None) -> Extras:
    """Validate custom headers and parameters. Raises ValueError for names that the client sets, and
    for invalid names or values."""
    taken: dict[str, str] = {}
    for name, value in (headers or {}).items():
        key = name.lower()
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a header name: use letters, digits and '-'")
        if key in _OWN_HEADERS or key.startswith(_OWN_PREFIXES):
            raise ValueError(f"the header {name!r} is set by the client and cannot be passed")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise ValueError(
                f"the value of the header {name!r} must be printable ASCII text without spaces at "
                "its ends"
            )
        taken[key] = value
    for name, value in (params or {}).items():
        if name in _OWN_PARAMS:
            raise ValueError(
                f"the query parameter {name!r} is set by the client and cannot be passed"
            )
        if not name or not isinstance(value, str):
            raise ValueError(
                f"the query parameter {name!r} needs a name and a string value, not {value!r}"
            )
    return Extras(taken, dict(params or {}))
