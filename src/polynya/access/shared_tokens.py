"""The encoding of a cluster's tokens in the meta group. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from polynya.access.kafka_rules import decode_rules, encode_rules, is_rules_key
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
        rules = decode_rules({key: each for key, each in values.items() if is_rules_key(key)})
        for key in sorted(values):
            if key.startswith("token/"):
                tokens.append(msgspec.json.decode(values[key], type=TokenRecord))
            elif not is_rules_key(key):
                jwts.append(msgspec.json.decode(values[key], type=RevokedJwt))
    except UNREADABLE as error:
        raise CorruptData(f"the cluster's tokens cannot be read: {error}") from None
    tokens.sort(key=lambda record: (record.created_ms, record.id))
    return AtRest(FORMAT, tokens, jwts, rules)


def encode(known: AtRest) -> dict[str, bytes]:
    """Encode tokens as meta group values."""
    values = {f"token/{record.id}": msgspec.json.encode(record) for record in known.tokens}
    values |= {jwt_key(entry): msgspec.json.encode(entry) for entry in known.revoked_jwts}
    return values | encode_rules(known.kafka)


def difference(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Changes:
    """Return the changes from `before` to `after`."""
    changes: Changes = [(key, value) for key, value in after.items() if before.get(key) != value]
    return changes + [(key, None) for key in before if key not in after]
