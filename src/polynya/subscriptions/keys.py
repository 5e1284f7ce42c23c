"""Signing key of the cluster (Ed25519, kept in the meta group), its JWK Set, webhook signatures,
and worker tokens."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Protocol

import msgspec

from polynya.base.msgpack import UNREADABLE
from polynya.stream.command import Command
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.features.settings.commands import MetaSet
from polynya.stream.replies import Reply

KEY_NAME = "webhook-signing-key"
# outlives any lease that is renewed; the generation in the token fences it
TOKEN_MS = 7 * 24 * 3600 * 1000


class Caller(Protocol):
    async def call(self, group: int, command: Command) -> Reply: ...


class Token(msgspec.Struct, frozen=True, gc=False):
    """The content of a worker token: the wake and the subscription incarnation that it was issued
    for."""

    id: str
    uid: int
    generation: int
    expires_ms: int


class Signer:
    """A signer with the key of a 32-byte seed. The token key is derived from the same seed."""

    def __init__(self, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self._token_key = hmac.digest(seed, b"subscription tokens", "sha256")
        x = _text(self._private.public_key().public_bytes_raw())
        thumbprint = f'{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}'  # RFC 7638
        self.kid = "ds_" + _text(hashlib.sha256(thumbprint.encode()).digest())
        self.jwk = {
            "kty": "OKP",
            "crv": "Ed25519",
            "x": x,
            "kid": self.kid,
            "use": "sig",
            "alg": "EdDSA",
        }

    def signature(self, body: bytes) -> str:
        """Return the value of `Webhook-Signature`. It uses wall clock time, because the receiver
        compares it with its own clock."""
        seconds = int(time.time())
        signed = self._private.sign(b"%d." % seconds + body)
        return f"t={seconds},kid={self.kid},ed25519={_text(signed)}"

    def token(self, id: str, uid: int, generation: int, now_ms: int) -> str:  # noqa: A002
        payload = msgspec.json.encode(Token(id, uid, generation, now_ms + TOKEN_MS))
        return f"{_text(payload)}.{_text(hmac.digest(self._token_key, payload, 'sha256'))}"

    def read_token(self, token: str) -> Token | None:
        """Return the content of a token that this cluster issued, also if expired; else None."""
        payload, _, tag = token.partition(".")
        try:
            said = urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
            if not hmac.compare_digest(
                _text(hmac.digest(self._token_key, said, "sha256")).encode(), tag.encode()
            ):
                return None
            return msgspec.json.decode(said, type=Token)
        except (ValueError, *UNREADABLE):
            return None


class Keys:
    """The cluster's signing key. It is created on first use; the first writer to the log sets it
    for the cluster."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._signer: Signer | None = None

    async def signer(self) -> Signer:
        if self._signer is None:
            reply = await self._caller.call(META_GROUP, MetaSet(KEY_NAME, secrets.token_bytes(32)))
            self._signer = Signer(bytes(reply.detail))
        return self._signer

    async def jwks(self) -> dict[str, Any]:
        return {"keys": [(await self.signer()).jwk]}


def _text(data: bytes) -> str:
    """Encode as base64url without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()
