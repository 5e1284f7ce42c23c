"""The encoding of a cluster's tokens in the meta group. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from polynya.access.revocations import RevokedJwt
from polynya.access.token_file import AtRest, TokenRecord, jwt_key
from polynya.base.errors import CorruptData
from polynya.base.formats import FORMAT
from polynya.base.msgpack import UNREADABLE

SCOPE = "access"  # scope in the meta group
Changes = list[tuple[str, bytes | None]]


def decode(values: Mapping[str, bytes]) -> AtRest:
    """Decode the meta group's values. Raise CorruptData."""
    tokens, jwts = [], []
    try:
        for key in sorted(values):
            if key.startswith("token/"):
                tokens.append(msgspec.json.decode(values[key], type=TokenRecord))
            else:
                jwts.append(msgspec.json.decode(values[key], type=RevokedJwt))
    except UNREADABLE as error:
        raise CorruptData(f"the cluster's tokens cannot be read: {error}") from None
    return AtRest(FORMAT, sorted(tokens, key=lambda record: (record.created_ms, record.id)), jwts)


def encode(known: AtRest) -> dict[str, bytes]:
    """Encode tokens as meta group values."""
    values = {f"token/{record.id}": msgspec.json.encode(record) for record in known.tokens}
    return values | {jwt_key(entry): msgspec.json.encode(entry) for entry in known.revoked_jwts}


def difference(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Changes:
    """Return the changes from `before` to `after`."""
    changes: Changes = [(key, value) for key, value in after.items() if before.get(key) != value]
    return changes + [(key, None) for key in before if key not in after]
