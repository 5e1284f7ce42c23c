"""Revocation of validly signed JWTs: by `jti`, or all of a `sub` issued up to a moment. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from polynya.access.grants import BadScope, Proven
from polynya.access.jwt_issuer import LEEWAY_SECONDS
from polynya.base.limits import REVOKED_JWT_BYTES_MAX, REVOKED_JWTS_MAX

KEPT_SECONDS_DEFAULT = 30 * 86_400  # an entry must outlive the JWTs that it revokes


class RevokedJwt(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A stored entry: either `jti` or `sub`. Times are in ms since 1970; the entry is dropped after
    `expires_ms`."""

    jti: str = ""
    sub: str = ""
    revoked_ms: int
    expires_ms: int


class UnwantedJwt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to revoke: the body of `POST /v1/admin/jwts`."""

    jti: str = ""
    sub: str = ""
    expires_in_seconds: float = KEPT_SECONDS_DEFAULT


class Revocations:
    """The revocations in force, checked for each verified JWT."""

    def __init__(self, entries: Iterable[RevokedJwt] = ()) -> None:
        entries = tuple(entries)
        self._ids = {entry.jti for entry in entries if entry.jti}
        self._subjects = {entry.sub: entry.revoked_ms for entry in entries if entry.sub}

    def refuse(self, proven: Proven) -> bool:
        """Return True if the JWT is revoked. One without `iat` counts as old."""
        if proven.jti and proven.jti in self._ids:
            return True
        revoked_ms = self._subjects.get(proven.subject)
        return revoked_ms is not None and proven.issued_ms <= revoked_ms + LEEWAY_SECONDS * 1000


def revoke(
    known: Iterable[RevokedJwt], unwanted: UnwantedJwt, now_ms: int
) -> tuple[RevokedJwt, list[RevokedJwt]]:
    """Return the new entry, and all entries in force with it. Raise `BadScope`."""
    if bool(unwanted.jti) == bool(unwanted.sub):
        raise BadScope("a JWT is revoked by its 'jti', or all of a 'sub' are: name one of them")
    if len((unwanted.jti or unwanted.sub).encode()) > REVOKED_JWT_BYTES_MAX:
        raise BadScope(
            f"a 'jti' or 'sub' that can be revoked has at most {REVOKED_JWT_BYTES_MAX} bytes"
        )
    if not 0 < unwanted.expires_in_seconds < 10**10:
        raise BadScope(
            "a JWT stays revoked for a positive time, which should be longer than its life"
        )
    until_ms = now_ms + round(unwanted.expires_in_seconds * 1000)
    same = [entry for entry in known if (entry.jti, entry.sub) == (unwanted.jti, unwanted.sub)]
    others = [entry for entry in known if entry not in same and entry.expires_ms > now_ms]
    if len(others) >= REVOKED_JWTS_MAX:
        raise BadScope(
            f"{REVOKED_JWTS_MAX} JWTs are revoked already: shorten their lives at the issuer, or "
            "change its keys"
        )
    entry = RevokedJwt(
        jti=unwanted.jti,
        sub=unwanted.sub,
        revoked_ms=now_ms,
        expires_ms=max([until_ms, *(each.expires_ms for each in same)]),
    )
    return entry, [*others, entry]
