"""SCRAM (RFC 5802) with SHA-256 and SHA-512: verifiers of a token, and the server's side. Pure.

A verifier proves a password without holding it. A token gets its verifiers when it is minted, as
its secret is known only then. The password is the whole text of the token.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec

ITERATIONS = 4096  # RFC 7677's minimum; a secret of 256 random bits needs no more
SALT_BYTES = 16
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_CHANNEL_BINDINGS = ("n", "y")  # the client does not use channel binding


class ScramFailed(Exception):
    """The exchange failed; the message has the reason and no secret."""


class Verifier(msgspec.Struct, frozen=True):
    """The verifier of one password under one hash. The values are in base64."""

    salt: str
    stored_key: str
    server_key: str
    iterations: int = ITERATIONS


def make_verifiers(password: str, salt: bytes) -> dict[str, Verifier]:
    """Return the verifiers of a password, by mechanism."""
    made = {}
    for mechanism, name in HASHES.items():
        salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, ITERATIONS)
        made[mechanism] = verifier_of(mechanism, salt, salted, ITERATIONS)
    return made


def verifier_of(mechanism: str, salt: bytes, salted: bytes, iterations: int) -> Verifier:
    """Return the verifier of a salted password."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    return Verifier(
        _text(salt),
        _text(hashlib.new(name, client_key).digest()),
        _text(hmac.digest(salted, b"Server Key", name)),
        iterations,
    )


def decoy(mechanism: str, user: str, secret: bytes) -> Verifier:
    """Return the verifier of a user who does not exist: always the same one, as a real one is, and
    of no password. `secret` is the node's."""
    salt = hmac.digest(secret, user.encode(), "sha256")[:SALT_BYTES]
    key = _text(hmac.digest(secret, user.encode() + b"\0", HASHES[mechanism]))
    return Verifier(_text(salt), key, key)


class ScramServer:
    """The server's side of one exchange: `begin` with the first message, `finish` with the
    second."""

    def __init__(self, mechanism: str, nonce: str) -> None:
        self.user = ""
        self._hash = HASHES[mechanism]
        self._nonce = nonce
        self._header = self._bare = self._first = ""
        self._verifier: Verifier | None = None

    def read_first(self, message: bytes) -> str:
        """Return the user of the client's first message. Raises `ScramFailed`."""
        parts = _decoded(message).split(",", 2)
        if len(parts) != 3 or parts[0] not in _CHANNEL_BINDINGS:
            raise ScramFailed("the first message begins with 'n,' or 'y,': no channel binding")
        self._header = f"{parts[0]},{parts[1]},"
        self._bare = parts[2]
        fields = _fields(self._bare)
        if "m" in fields or not fields.get("n") or not fields.get("r"):
            raise ScramFailed("the first message needs n= and r=, and no extension m=")
        self.user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        if parts[1] not in ("", f"a={fields['n']}"):
            raise ScramFailed("a user cannot act as another one")
        self._nonce = fields["r"] + self._nonce
        return self.user

    def challenge(self, verifier: Verifier) -> bytes:
        """Return the server's first message for the user's verifier."""
        self._verifier = verifier
        self._first = f"r={self._nonce},s={verifier.salt},i={verifier.iterations}"
        return self._first.encode()

    def finish(self, message: bytes) -> bytes:
        """Check the proof, and return the server's signature. Raises `ScramFailed`."""
        assert self._verifier is not None
        text = _decoded(message)
        unproved, _, proof_text = text.rpartition(",p=")
        fields = _fields(unproved)
        # as Kafka: librdkafka before 2.6.1 writes its own nonce a second time before the whole one
        is_ours = fields.get("r", "").endswith(self._nonce)
        if not is_ours or fields.get("c") != _text(self._header.encode()):
            raise ScramFailed("the second message belongs to another exchange")
        signed = f"{self._bare},{self._first},{unproved}".encode()
        stored = base64.b64decode(self._verifier.stored_key)
        signature = hmac.digest(stored, signed, self._hash)
        proof = _bytes(proof_text)
        if len(proof) != len(signature):
            raise ScramFailed("the proof has the wrong length")
        key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash, key).digest(), stored):
            raise ScramFailed("the proof is wrong")
        server_key = base64.b64decode(self._verifier.server_key)
        return b"v=" + base64.b64encode(hmac.digest(server_key, signed, self._hash))


def _decoded(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramFailed("a message is UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    """Return the attributes `k=value` of a message; the first of each name counts."""
    found: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if len(name) != 1 or not equals:
            raise ScramFailed("a message is a list of attributes such as r=…")
        found.setdefault(name, value)
    return found


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramFailed("the proof is not base64") from None
