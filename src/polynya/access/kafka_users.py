"""Users that Kafka's tools make: tokens without a secret and without scopes, whose SCRAM verifiers
are those of a password. What they may do is said by ACLs. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from polynya.access.grants import BadScope, check_name
from polynya.access.kafka_acls import EVERYBODY
from polynya.access.scram import HASHES, Verifier, verifier_of
from polynya.access.token_file import AtRest, TokenRecord
from polynya.base.limits import SCRAM_SALT_BYTES_MAX, TOKENS_MAX

ITERATIONS = range(4096, 16_385)  # Kafka's bounds (org.apache.kafka.common.security.scram)
_SIZES = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
assert _SIZES.keys() == HASHES.keys()


class BadUser(ValueError):
    """A user or a password that cannot be stored; the message says why and what to do."""


class NoCredential(LookupError):
    """The user has no password for this mechanism."""


def checked_verifier(mechanism: str, salt: bytes, salted: bytes, iterations: int) -> Verifier:
    """Return the verifier of a salted password. Raises BadUser."""
    if iterations not in ITERATIONS:
        raise BadUser(
            f"{iterations} iterations; expected {ITERATIONS.start} to {ITERATIONS.stop - 1}"
        )
    if not 0 < len(salt) <= SCRAM_SALT_BYTES_MAX:
        raise BadUser(f"a salt of {len(salt)} bytes; expected 1 to {SCRAM_SALT_BYTES_MAX}")
    if len(salted) != _SIZES[mechanism]:
        raise BadUser(
            f"a salted password of {len(salted)} bytes; {mechanism} has {_SIZES[mechanism]}"
        )
    return verifier_of(mechanism, salt, salted, iterations)


def alter_user(
    known: AtRest,
    name: str,
    *,
    gone: Collection[str],
    put: Mapping[str, Verifier],
    new_id: str,
    now_ms: int,
) -> AtRest:
    """Delete and set passwords of a user, by mechanism. One without any is revoked. `new_id`: of the
    token, if the user is new. Raises BadUser and NoCredential."""
    record = active_record(known, name, now_ms)
    if record is not None and not record.is_user:
        raise BadUser(
            f"'{name}' is a token, whose password is its secret: see 'polynya token', or choose "
            "another name"
        )
    missing = [each for each in gone if record is None or each not in record.scram]
    if missing:
        raise NoCredential(f"the user '{name[:100]}' has no password for {missing[0]}")
    if record is None:
        record = _new(known, name, new_id, now_ms)
    kept = {each: verifier for each, verifier in record.scram.items() if each not in gone}
    after = msgspec.structs.replace(record, scram=kept | dict(put), changes=record.changes + 1)
    if not after.scram:
        after = msgspec.structs.replace(after, revoked_ms=now_ms)
    others = [each for each in known.tokens if each.id != after.id]
    return msgspec.structs.replace(known, tokens=[*others, after])


def active_record(known: AtRest, name: str, now_ms: int) -> TokenRecord | None:
    """Return the active token of this name."""
    return next(
        (each for each in known.tokens if each.name == name and each.state(now_ms) == "active"),
        None,
    )


def _new(known: AtRest, name: str, new_id: str, now_ms: int) -> TokenRecord:
    if name == EVERYBODY:
        raise BadUser("'*' means all users: choose another name")
    if any(each.id == name for each in known.tokens):
        raise BadUser(f"'{name}' is the id of a token: choose another name")
    if len(known.tokens) >= TOKENS_MAX:
        raise BadUser(f"there are {TOKENS_MAX} tokens and users already: revoke some")
    try:
        check_name(name)
    except BadScope as bad:
        raise BadUser(str(bad)) from None
    return TokenRecord(id=new_id, name=name, sha256="", scopes=(), created_ms=now_ms)
