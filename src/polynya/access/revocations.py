"""JWTs that are refused although their issuer signed them: by `jti`, or all that a `sub` was given up to a moment. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from polynya.access.grants import BadScope, Proven
from polynya.access.jwt_issuer import LEEWAY_SECONDS
from polynya.base.limits import REVOKED_JWT_BYTES_MAX, REVOKED_JWTS_MAX

KEPT_SECONDS_DEFAULT = 30 * 86_400  # an entry must outlive what it revokes, and no issuer of sense signs for longer


class RevokedJwt(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An entry as it rests: one of `jti` and `sub`. Times are in ms since 1970; after `expires_ms` it is forgotten."""

    jti: str = ""
    sub: str = ""
    revoked_ms: int
    expires_ms: int


class UnwantedJwt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to revoke: the body of `POST /v1/admin/jwts`."""

    jti: str = ""
    sub: str = ""
    expires_in_seconds: float = KEPT_SECONDS_DEFAULT


class Revocations:
    """The entries, to be asked for each JWT that is proven."""

    def __init__(self, entries: Iterable[RevokedJwt] = ()) -> None:
        entries = tuple(entries)
        self._ids = {entry.jti for entry in entries if entry.jti}
        self._subjects = {entry.sub: entry.revoked_ms for entry in entries if entry.sub}

    def refuse(self, proven: Proven) -> bool:
        """A JWT without `iat` counts as an old one."""
        if proven.jti and proven.jti in self._ids:
            return True
        revoked_ms = self._subjects.get(proven.subject)
        return revoked_ms is not None and proven.issued_ms <= revoked_ms + LEEWAY_SECONDS * 1000


def revoke(known: Iterable[RevokedJwt], unwanted: UnwantedJwt, now_ms: int) -> tuple[RevokedJwt, list[RevokedJwt]]:
    """The new entry, and all that are in force with it. Raises `BadScope`."""
    if bool(unwanted.jti) == bool(unwanted.sub):
        raise BadScope("a JWT is revoked by its 'jti', or all of a 'sub' are: name one of them")
    if len((unwanted.jti or unwanted.sub).encode()) > REVOKED_JWT_BYTES_MAX:
        raise BadScope(f"a 'jti' or 'sub' that can be revoked has at most {REVOKED_JWT_BYTES_MAX} bytes")
    if not 0 < unwanted.expires_in_seconds < 10**10:
        raise BadScope("a JWT stays revoked for a positive time, which should be longer than its life")
    until_ms = now_ms + round(unwanted.expires_in_seconds * 1000)
    same = [entry for entry in known if (entry.jti, entry.sub) == (unwanted.jti, unwanted.sub)]
    others = [entry for entry in known if entry not in same and entry.expires_ms > now_ms]
    if len(others) >= REVOKED_JWTS_MAX:
        raise BadScope(f"{REVOKED_JWTS_MAX} JWTs are revoked already: shorten their lives at the issuer, or change its keys")
    entry = RevokedJwt(
        jti=unwanted.jti, sub=unwanted.sub, revoked_ms=now_ms, expires_ms=max([until_ms, *(each.expires_ms for each in same)])
    )
    return entry, [*others, entry]
