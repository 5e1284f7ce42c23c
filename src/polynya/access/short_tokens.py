"""Short tokens: signed by another token for one stream or prefix and some minutes, for a web page.

No node keeps them. They are signed (Ed25519) with a key that only the text of the token yields; its
record has the public half, so that a reader of the token file can sign nothing. The signature
proves the minter alone: that the claims lie within its grants, and end soon, is judged at each use.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import msgspec

from polynya.access.grants import BadScope, Grant, Principal, Verb
from polynya.base.limits import SHORT_TOKEN_SECONDS_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.base.names import BadName, canonical_name, canonical_prefix

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PREFIX = "polynya-short."
# what lasts beyond the token, as a subscription does, or reaches beyond streams is for its minter
SHORT_VERBS = frozenset((Verb.READ, Verb.APPEND, Verb.CREATE))
CLOCK_SECONDS = 30  # by which the clocks of nodes may differ
_CONTEXT = b"polynya short tokens\n"  # the key signs nothing else


class BadShortToken(ValueError):
    """The token is invalid; the message has the reason."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a short token: the body of `POST /v1/tokens/short`."""

    stream: str | None = None
    prefix: str | None = None
    verbs: tuple[str, ...] = (Verb.READ,)
    expires_in_seconds: float = 600.0


class Claims(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The claims of a short token. `at` is a canonical name or prefix; times are in ms since 1970."""

    by: str  # id of the token that signed it
    verbs: tuple[str, ...]
    at: str
    exact: bool  # `at` is one stream
    issued_ms: int
    expires_ms: int

    @property
    def grant(self) -> Grant:
        return Grant(frozenset(self.verbs), self.at, self.exact)


def claims_of(wanted: Wanted, by: str, now_ms: int, until_ms: int | None) -> Claims:
    """Return the claims of a request, which end at `until_ms` at the latest. Raise `BadScope`."""
    if (wanted.stream is None) == (wanted.prefix is None):
        raise BadScope("name what the token is for: either 'stream' or 'prefix'")
    verbs = tuple(dict.fromkeys(wanted.verbs))
    unknown = sorted(set(verbs) - SHORT_VERBS)
    if unknown or not verbs:
        said = f"'{unknown[0][:32]}' is none of its verbs" if unknown else "'verbs' is empty"
        raise BadScope(
            f"a short token reads, appends or creates: {said}, which are read, append, create"
        )
    seconds = wanted.expires_in_seconds
    if not 0 < seconds <= SHORT_TOKEN_SECONDS_MAX:
        raise BadScope(
            f"a short token lives for up to {SHORT_TOKEN_SECONDS_MAX} seconds, not {seconds:g}"
        )
    spelled = wanted.prefix if wanted.stream is None else wanted.stream
    assert spelled is not None
    try:
        at = canonical_prefix(spelled) if wanted.stream is None else canonical_name(spelled)
    except BadName as bad:
        raise BadScope(f"'{spelled[:64]}' is no stream or prefix: {bad}") from None
    if not at:
        raise BadScope("the prefix is empty; name the streams that the page needs, such as 'runs/'")
    end_ms = now_ms + round(seconds * 1000)
    return Claims(
        by=by,
        verbs=verbs,
        at=at,
        exact=wanted.stream is not None,
        issued_ms=now_ms,
        expires_ms=end_ms if until_ms is None else min(end_ms, until_ms),
    )


def public_key(text: str) -> str:
    """Return the public half of a token's signing key, as its record has it."""
    return _encoded(_signing_key(text).public_key().public_bytes_raw())


def sign(claims: Claims, text: str) -> str:
    """Return a short token, signed by the token with this text."""
    payload = msgspec.json.encode(claims)
    signature = _signing_key(text).sign(_CONTEXT + payload)
    return f"{PREFIX}{_encoded(payload)}.{_encoded(signature)}"


def read_claims(token: str) -> tuple[Claims, bytes, bytes]:
    """Return the claims of a short token, not yet proven, with the signed bytes and the signature.
    Raise `BadShortToken`."""
    payload, _, signature = token.removeprefix(PREFIX).partition(".")
    try:
        signed = _decoded(payload)
        return msgspec.json.decode(signed, type=Claims), signed, _decoded(signature)
    except (ValueError, *UNREADABLE):
        raise BadShortToken("the short token is damaged") from None


def check_signature(signed: bytes, signature: bytes, key: str) -> None:
    """Check a signature against a record's key. Raise `BadShortToken`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not key:
        raise BadShortToken(
            "its token has no key to sign with, as it is of an older release: create a new one"
        )
    try:
        Ed25519PublicKey.from_public_bytes(_decoded(key)).verify(signature, _CONTEXT + signed)
    except (InvalidSignature, ValueError):
        raise BadShortToken("the short token is not signed by the token that it names") from None


def check_claims(claims: Claims, minter: Principal, now_ms: int) -> None:
    """Check the claims of a proven short token: a holder of the token may have signed anything.
    Raise `BadShortToken`."""
    if now_ms >= claims.expires_ms:
        raise BadShortToken("the short token has expired")
    if claims.issued_ms > now_ms + CLOCK_SECONDS * 1000:
        raise BadShortToken("the short token is issued in the future")
    if claims.expires_ms - claims.issued_ms > SHORT_TOKEN_SECONDS_MAX * 1000:
        raise BadShortToken(f"a short token lives for up to {SHORT_TOKEN_SECONDS_MAX} seconds")
    if not (claims.verbs and claims.at and SHORT_VERBS.issuperset(claims.verbs)):
        raise BadShortToken(
            "a short token has some of the verbs read, append and create, at a place"
        )
    if (verb := excess(claims, minter)) is not None:
        raise BadShortToken(f"the token that signed it does not allow '{verb}' there")


def excess(claims: Claims, minter: Principal) -> str | None:
    """Return a verb that the minter does not have on all that is claimed; None if it has them."""
    may = minter.may if claims.exact else minter.covers
    return next((verb for verb in claims.verbs if not may(verb, claims.at)), None)


def _signing_key(text: str) -> Ed25519PrivateKey:
    """Return the key of a token, whose text has 256 random bits."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    seed = hashlib.sha256(_CONTEXT + text.encode("utf-8", "surrogatepass")).digest()
    return Ed25519PrivateKey.from_private_bytes(seed)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    """Decode strictly: one text for some bytes. Raise ValueError."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _encoded(data) != text:
        raise ValueError("not the one encoding of its bytes")
    return data
