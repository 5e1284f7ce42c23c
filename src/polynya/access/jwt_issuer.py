"""JWTs of one issuer: its keys, from a file or a URL, and the mapping of claims to grants (RFC
7519, RFC 7517, RFC 8725)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from polynya.access.grants import BadScope, Grant, Proven, parse_scope
from polynya.base.limits import JWKS_BYTES_MAX, TOKEN_SCOPES_MAX

log = logging.getLogger("polynya.access")

LEEWAY_SECONDS = 30  # clock skew allowed between the issuer and this node
REFRESH_SECONDS = 300.0  # upper bound on the use of a withdrawn key
RETRY_SECONDS = 10.0  # minimum interval of fetches for unknown keys
FETCH_SECONDS = 5.0
_FAMILIES: dict[
    tuple[Any, Any], tuple[str, ...]
] = {  # no symmetric algorithm and no `none`: a public key must not serve as a secret (RFC 8725 3.1)
    ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}


class BadJwt(ValueError):
    """The JWT is invalid; the message has the reason."""


class KeyUnknown(BadJwt):
    """The JWT's signing key is not among the known keys."""


class Expected(msgspec.Struct, frozen=True):
    """The required claims of a JWT. `claim` names the scopes: text with spaces, or a list."""

    issuer: str
    audience: str
    claim: str = "scope"
    lifetime_max: float = 86_400.0  # seconds


class Issuer:
    """An issuer of JWTs. `source` of its keys is a file or an http(s) URL."""

    def __init__(
        self, expected: Expected, source: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._expected, self._source = expected, source
        self._clock = clock
        self._keys: dict[tuple[str | None, str], Any] = {}
        self._fetched = float("-inf")  # time of the last fetch
        self._refreshing = asyncio.Lock()

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    @property
    def may_refresh(self) -> bool:
        """Return True if the keys may be fetched again. The rate limit keeps forged key ids from
        flooding the issuer."""
        return self._refreshing.locked() or self._is_old(RETRY_SECONDS)

    @property
    def is_due(self) -> bool:
        return self._is_old(REFRESH_SECONDS)

    async def refresh(self) -> bool:
        """Fetch the keys, shared by concurrent callers. Return True on success; a failure keeps the
        known keys."""
        async with self._refreshing:
            if not self._is_old(RETRY_SECONDS):
                return self.has_keys  # a concurrent call fetched them
            self._fetched = self._clock()
            return await self._read_keys()

    async def _read_keys(self) -> bool:
        try:
            data = await self._fetch() if "://" in self._source else _read(self._source)
            self._keys = _keys_of(data)
        except Exception as fault:  # noqa: BLE001 (an unreachable or faulty issuer must not take the node down)
            log.warning(
                "cannot read the issuer's keys",
                extra={"source": self._source, "error": f"{type(fault).__name__}: {fault}"},
            )
            return False
        return True

    def prove(self, text: str) -> Proven:
        """Verify a JWT. Raise `BadJwt`, or `KeyUnknown` if fresh keys may help."""
        import jwt

        try:
            header = jwt.get_unverified_header(text)
            key = self._key(header)
            claims = jwt.decode(
                text,
                key,
                algorithms=[key.algorithm_name],
                audience=self._expected.audience,
                issuer=self._expected.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            return self._proven(claims)
        except jwt.ExpiredSignatureError:
            raise BadJwt("the JWT has expired") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            raise (
                error
                if isinstance(error, BadJwt)
                else BadJwt(f"the JWT is not valid here: {error}")
            ) from None

    def _proven(self, claims: dict[str, Any]) -> Proven:
        """Return the verified claims. Raise `BadJwt`, or ValueError, TypeError or OverflowError for
        a malformed time."""
        expires, issued = int(claims["exp"]), claims.get("iat")
        lifetime = expires - (time.time() + LEEWAY_SECONDS if issued is None else float(issued))
        if not lifetime <= self._expected.lifetime_max:
            what = (
                "has no iat and lives for another"
                if issued is None
                else "lives, from iat to exp, for"
            )
            raise BadJwt(
                f"the JWT {what} {lifetime:.0f} s; at most {self._expected.lifetime_max:g} s are "
                "allowed (auth.jwt_lifetime_max)"
            )
        return Proven(
            subject=str(claims["sub"]),
            grants=_grants(claims.get(self._expected.claim)),
            expires_ms=(expires + LEEWAY_SECONDS) * 1000,
            issued_ms=0 if issued is None else int(float(issued) * 1000),
            jti=str(claims.get("jti", "")),
        )

    def _is_old(self, seconds: float) -> bool:
        return self._clock() - self._fetched >= seconds

    def _key(self, header: dict[str, Any]) -> Any:
        kid, algorithm = header.get("kid"), header.get("alg")
        if kid is None and len({known for known, _ in self._keys}) == 1:
            kid = next(iter(self._keys))[0]
        key = (
            self._keys.get((kid, algorithm))
            if isinstance(algorithm, str) and isinstance(kid, str | None)
            else None
        )
        if key is None:
            raise KeyUnknown(
                "the JWT is signed with a key or an algorithm that its issuer's key set does not "
                "have"
            )
        return key

    async def _fetch(self) -> bytes:
        import httpx

        async with (
            httpx.AsyncClient(timeout=FETCH_SECONDS, follow_redirects=False) as client,
            client.stream("GET", self._source, headers={"accept-encoding": "identity"}) as answer,
        ):
            answer.raise_for_status()
            data = b""
            async for piece in answer.aiter_raw():
                data += piece
                if len(data) > JWKS_BYTES_MAX:
                    raise ValueError(f"a key set has at most {JWKS_BYTES_MAX} bytes")
            return data


def _read(source: str) -> bytes:
    path = Path(source.removeprefix("file:"))
    if path.stat().st_size > JWKS_BYTES_MAX:
        raise ValueError(f"a key set has at most {JWKS_BYTES_MAX} bytes")
    return path.read_bytes()


def _keys_of(data: bytes) -> dict[tuple[str | None, str], Any]:
    """Return the set's verification keys by (key id, algorithm)."""
    import jwt

    keys: dict[tuple[str | None, str], Any] = {}
    rows = [
        (row, found)
        for row in msgspec.json.decode(data, type=dict[str, Any])["keys"]
        if (found := _algorithms_of(row))
    ]
    nameless = sum(row.get("kid") is None for row, _ in rows) if len(rows) > 1 else 0
    if nameless:
        log.warning(
            "ignoring keys without a kid, as the issuer's set has several keys",
            extra={"keys": nameless},
        )
    for row, algorithms in rows:
        if nameless and row.get("kid") is None:
            continue
        for algorithm in algorithms:
            keys[row.get("kid"), algorithm] = jwt.PyJWK(row, algorithm)
    if not keys:
        which = (
            "with a kid, as a set of several keys needs it"
            if nameless
            else "that may verify signatures"
        )
        raise ValueError(f"the set has no public RSA, EC or Ed25519 key {which}")
    return keys


def _algorithms_of(row: dict[str, Any]) -> list[str]:
    """Return the algorithms that a key may verify; none for private keys or other uses."""
    if row.get("use", "sig") != "sig" or "d" in row:
        return []
    return [
        each
        for each in _FAMILIES.get((row.get("kty"), row.get("crv")), ())
        if row.get("alg", each) == each
    ]


def _grants(claim: object) -> tuple[Grant, ...]:
    """Return the grants of the claim. Foreign scopes such as `openid` are ignored."""
    words = (
        claim.split()
        if isinstance(claim, str)
        else [word for word in claim if isinstance(word, str)]
        if isinstance(claim, list)
        else []
    )
    found = []
    for word in words:
        try:
            found.append(parse_scope(word))
        except BadScope:
            continue
    return tuple(found[:TOKEN_SCOPES_MAX])
