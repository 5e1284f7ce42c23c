"""The token file: `access/tokens.json` in the data folder, read and replaced whole by any process
with write access."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from polynya.access.grants import NO_LIMITS, BadScope, Grant, Limits, check_name, parse_scopes
from polynya.access.kafka_rules import NO_RULES, KafkaRules, newer
from polynya.access.revocations import RevokedJwt, UnwantedJwt, revoke
from polynya.access.scram import SALT_BYTES, Verifier, make_verifiers
from polynya.access.short_tokens import public_key
from polynya.base.errors import ConfigError
from polynya.base.formats import FORMAT, check_format
from polynya.base.limits import TOKENS_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.files import make_folder, write_whole

PREFIX = "polynya"
FOLDER = "access"
FILE = "tokens.json"
KEPT_MS = 30 * 86_400_000  # expired and revoked tokens stay listed this long
_OLDER = (
    "a scope with a prefix of one to three characters before its first slash, such as "
    "'read:iot/', meant names in the bucket 'default' in it. "
    "Move the file away, and make its tokens again with 'polynya token create'"
)
Stamp = tuple[int, int, int]
Made = TypeVar("Made")


class TokenRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A stored token. Times are in ms since 1970."""

    id: str
    name: str
    sha256: str  # of the secret's text, in hexadecimal
    scopes: tuple[str, ...]  # of a user that Kafka's tools made: none, and no secret
    created_ms: int
    expires_ms: int | None = None
    revoked_ms: int | None = None
    limits: Limits = NO_LIMITS
    scram: dict[str, Verifier] = {}  # by mechanism; tokens of older releases have none
    short_key: str = ""  # verifies the short tokens that it signs; "" of older releases
    changes: int = 0  # of the verifiers of a user; the record with more is the newer one

    def state(self, now_ms: int) -> str:
        """Return `active`, `expired` or `revoked`."""
        if self.revoked_ms is not None:
            return "revoked"
        return "expired" if self.expires_ms is not None and now_ms >= self.expires_ms else "active"

    @property
    def is_user(self) -> bool:
        """Report whether Kafka's tools made it: it has a password instead of a secret."""
        return not self.sha256

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Return what it allows, beside ACLs. Raise `BadScope`."""
        return () if self.is_user and not self.scopes else parse_scopes(self.scopes)


class AtRest(msgspec.Struct, frozen=True):
    """The content of the token file."""

    version: int = FORMAT
    tokens: list[TokenRecord] = []
    revoked_jwts: list[RevokedJwt] = []
    kafka: KafkaRules = NO_RULES


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a new token: the body of `POST /v1/admin/tokens`."""

    name: str
    scopes: list[str]
    expires_in_seconds: float | None = None
    limits: Limits = NO_LIMITS


class NoToken(LookupError):
    """No token matches this id or name, or several have the name; the message says which."""


def mint(wanted: Wanted, now_ms: int) -> tuple[TokenRecord, str]:
    """Create a token. Return its record and its text, which cannot be recovered later. Raise
    `BadScope`."""
    parse_scopes(wanted.scopes)
    seconds = wanted.expires_in_seconds
    if seconds is not None and not 0 < seconds < 10**10:
        raise BadScope("a token expires after a positive time")
    if any(value < 0 for value in msgspec.structs.astuple(wanted.limits)):
        raise BadScope("a limit is a positive number; 0 is none")
    key, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    text = f"{PREFIX}_{key}_{secret}"
    record = TokenRecord(
        id=key,
        name=check_name(wanted.name),
        sha256=digest(secret),
        scopes=tuple(scope.strip() for scope in wanted.scopes),
        created_ms=now_ms,
        expires_ms=None if seconds is None else now_ms + round(seconds * 1000),
        limits=wanted.limits,
        scram=make_verifiers(text, secrets.token_bytes(SALT_BYTES)),
        short_key=public_key(text),
    )
    return record, text


def split_token(text: str) -> tuple[str, str] | None:
    """Return (id, secret) of a text in this product's token format, else None."""
    prefix, _, rest = text.partition("_")
    key, found, secret = rest.partition("_")
    return (key, secret) if prefix == PREFIX and found and key and secret else None


def digest(secret: str) -> str:
    """Return one pass of SHA-256. A secret of 256 random bits needs no slow hash, and each first
    request on a connection computes this."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def proves(record: TokenRecord, secret: str) -> bool:
    """Compare the secret with the record's hash in constant time."""
    return hmac.compare_digest(record.sha256, digest(secret))


def tidied(known: AtRest, now_ms: int) -> AtRest:
    """Return the tokens without those that ended over `KEPT_MS` ago, and the JWT revocations in
    force."""
    tokens = [each for each in known.tokens if now_ms - _ended_ms(each, now_ms) < KEPT_MS]
    jwts = [each for each in known.revoked_jwts if each.expires_ms > now_ms]
    return AtRest(FORMAT, tokens, jwts, known.kafka)


def added(known: AtRest, wanted: Wanted, now_ms: int) -> tuple[AtRest, tuple[TokenRecord, str]]:
    """Add a token. Raise `BadScope`."""
    record, text = mint(wanted, now_ms)
    if any(each.name == record.name and each.state(now_ms) == "active" for each in known.tokens):
        raise BadScope(
            f"there is an active token named '{record.name}': revoke it, or choose another name"
        )
    if len(known.tokens) >= TOKENS_MAX:
        raise BadScope(
            f"there are {TOKENS_MAX} tokens already: revoke some, or let an issuer of JWTs make "
            "them"
        )
    return msgspec.structs.replace(known, tokens=[*known.tokens, record]), (record, text)


def marked(known: AtRest, which: str, now_ms: int) -> tuple[AtRest, TokenRecord]:
    """Revoke a token, by id or by name. Raise `NoToken`."""
    found = [
        each for each in known.tokens if which in (each.id, each.name) and each.revoked_ms is None
    ]
    active = [each for each in found if each.state(now_ms) == "active"] or found
    if len(active) != 1:
        raise NoToken(
            f"no token that is not revoked has the id or name '{which}'"
            if not active
            else f"several are named '{which}'"
        )
    revoked = msgspec.structs.replace(active[0], revoked_ms=now_ms)
    return msgspec.structs.replace(
        known, tokens=[revoked if each.id == revoked.id else each for each in known.tokens]
    ), revoked


def jwt_revoked(known: AtRest, unwanted: UnwantedJwt, now_ms: int) -> tuple[AtRest, RevokedJwt]:
    """Revoke JWTs. Raise `BadScope`."""
    entry, entries = revoke(known.revoked_jwts, unwanted, now_ms)
    return msgspec.structs.replace(known, revoked_jwts=entries), entry


def merged(one: AtRest, other: AtRest) -> AtRest:
    """Return the union of two states: every token of either, revoked if either has it revoked. The
    verifiers of a user are those of more changes. `one` is the state of the cluster."""
    tokens = {record.id: record for record in one.tokens}
    for record in other.tokens:
        known = tokens.get(record.id)
        ends = [
            each.revoked_ms
            for each in (record, known)
            if each is not None and each.revoked_ms is not None
        ]
        newer_one = record if known is None or record.changes > known.changes else known
        tokens[record.id] = msgspec.structs.replace(newer_one, revoked_ms=min(ends, default=None))
    jwts = {jwt_key(entry): entry for entry in one.revoked_jwts}
    for entry in other.revoked_jwts:
        same = jwts.get(jwt_key(entry), entry)
        until_ms, at_ms = (
            max(same.expires_ms, entry.expires_ms),
            max(same.revoked_ms, entry.revoked_ms),
        )
        jwts[jwt_key(entry)] = msgspec.structs.replace(entry, expires_ms=until_ms, revoked_ms=at_ms)
    return AtRest(
        FORMAT,
        sorted(tokens.values(), key=lambda record: (record.created_ms, record.id)),
        list(jwts.values()),
        newer(one.kafka, other.kafka),
    )


def jwt_key(entry: RevokedJwt) -> str:
    """Return the key of an entry."""
    return f"jti/{entry.jti}" if entry.jti else f"sub/{entry.sub}"


class TokenFile:
    """The token file, one instance per process. Writers hold a lock; readers see the old or the new
    file, never a part."""

    def __init__(self, data: str | Path) -> None:
        self.folder = Path(data) / FOLDER
        self.path = self.folder / FILE

    def stamp(self) -> Stamp | None:
        """Return a stamp that differs between versions of the file, or None without a file."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def read(self) -> list[TokenRecord]:
        """Return the tokens. Raise `ConfigError`."""
        return self.load().tokens

    def load(self) -> AtRest:
        """Return the content. Raise `ConfigError` if the file is damaged or unreadable."""
        try:
            return self._decode(self.path.read_bytes())
        except FileNotFoundError:
            return AtRest()
        except OSError as error:
            raise ConfigError(
                f"{self.path}: {error.strerror}; the node must be able to read it"
            ) from None

    def add(self, wanted: Wanted, now_ms: int) -> tuple[TokenRecord, str]:
        """Add a token. Raise `BadScope` or `ConfigError`."""
        return self.change(lambda known: added(known, wanted, now_ms), now_ms)

    def revoke(self, which: str, now_ms: int) -> TokenRecord:
        """Revoke a token, by id or by name. Raise `NoToken` or `ConfigError`."""
        return self.change(lambda known: marked(known, which, now_ms), now_ms)

    def revoke_jwt(self, unwanted: UnwantedJwt, now_ms: int) -> RevokedJwt:
        """Revoke one JWT by its id, or all present JWTs of a subject. Raise `BadScope` or
        `ConfigError`."""
        return self.change(lambda known: jwt_revoked(known, unwanted, now_ms), now_ms)

    def take(self, known: AtRest, now_ms: int) -> AtRest:
        """Merge tokens into the file and return its new content, which may hold more. Raise
        `ConfigError`."""

        def both(file: AtRest) -> tuple[AtRest, AtRest]:
            found = merged(known, file)
            return found, found

        return self.change(both, now_ms)

    def change(self, change: Callable[[AtRest], tuple[AtRest, Made]], now_ms: int) -> Made:
        """Apply a change under the lock; write only if the content changed. Raise `ConfigError`."""
        try:
            with locked(self.folder, "tokens.lock"):
                found = self.load()
                after, made = change(tidied(found, now_ms))
                if after != found:
                    self._replace(msgspec.json.format(msgspec.json.encode(after)))
                return made
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}; nothing was changed") from None

    def _replace(self, data: bytes) -> None:
        """Replace the file atomically and durably: a revocation must survive a power cut."""
        write_whole(
            self.path, data, prepare=lambda descriptor: give_to_owner(descriptor, self.folder)
        )

    def _decode(self, data: bytes) -> AtRest:
        try:
            found = msgspec.json.decode(data, type=AtRest)
            check_format(str(self.path), found.version, older=_OLDER)
            for record in found.tokens:
                _ = record.grants
        except (BadScope, *UNREADABLE) as error:
            raise ConfigError(
                f"{self.path} is damaged: {error}; restore it from a copy, or remove it and make "
                "new tokens"
            ) from None
        return found


def _ended_ms(record: TokenRecord, now_ms: int) -> int:
    ends = [at for at in (record.revoked_ms, record.expires_ms) if at is not None]
    return min([*ends, now_ms])


@contextlib.contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Hold an exclusive lock of this name among all processes. Create the folder if it is
    missing."""
    if not folder.exists():
        make_folder(folder, mode=0o700)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        give_to_owner(descriptor, folder)
        os.close(descriptor)
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        give_to_owner(descriptor, folder)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def give_to_owner(descriptor: int, folder: Path) -> None:
    """Give a file made by root, for instance in a container's shell, to the owner of the data
    folder around `folder`."""
    if os.geteuid() == 0:
        owner = os.stat(folder.parent)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
