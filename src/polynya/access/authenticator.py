"""Resolve credentials to principals, and invalidate principals when the token file changes."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable

import msgspec

from polynya.access.grants import NO_LIMITS, Limits, Principal
from polynya.access.jwt_issuer import BadJwt, Issuer, KeyUnknown
from polynya.access.kafka_acls import NOTHING, Allowed
from polynya.access.kafka_rules import KafkaRules
from polynya.access.rate_limits import Meter
from polynya.access.revocations import Revocations
from polynya.access.scram import Verifier, decoy
from polynya.access.short_tokens import PREFIX as SHORT_PREFIX
from polynya.access.short_tokens import (
    BadShortToken,
    check_claims,
    check_signature,
    read_claims,
)
from polynya.access.token_file import Stamp, TokenFile, TokenRecord, proves, split_token
from polynya.base.errors import ConfigError
from polynya.base.limits import CREDENTIAL_BYTES_MAX, CREDENTIALS_KEPT_MAX

log = logging.getLogger("polynya.access")

_FOREVER = float("inf")
Report = dict[str, tuple[int, int, int]]
"""Principal id -> (requests, bytes) admitted since the last report, and connections open now."""


class Denied(Exception):
    """The credential is invalid; the message has the reason and never the credential."""


class KeysUnknown(Denied):
    """The JWT's key is unknown. Fresh issuer keys may help: `await Access.refresh()`, then
    retry."""


class UserRules:
    """The rules of Kafka's tools, by the users that asked since they changed."""

    def __init__(self, rules: KafkaRules) -> None:
        self.rules = rules
        self._allowed: dict[str, Allowed] = {}

    def allowed(self, user: str) -> Allowed:
        """Return what the ACLs of a user allow."""
        if not self.rules.acls:
            return NOTHING
        known = self._allowed.get(user)
        if known is None:
            if len(self._allowed) >= CREDENTIALS_KEPT_MAX:
                self._allowed.clear()
            known = self._allowed[user] = self.rules.allowed(user)
        return known


class AccessCounters:
    __slots__ = ("denied", "forbidden", "limited", "minted", "proven")

    def __init__(self) -> None:
        self.proven = 0  # credentials verified and then cached
        self.denied = 0  # requests without a valid credential
        self.forbidden = 0  # requests beyond the principal's grants
        self.minted = 0  # short tokens
        self.limited = 0  # requests over the principal's limits


class Access:
    """The authenticator of one core. `defaults` are the limits of principals without their own.
    Call `tick` a few times a second."""

    def __init__(
        self,
        tokens: TokenFile,
        *,
        issuer: Issuer | None = None,
        defaults: Limits = NO_LIMITS,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = AccessCounters()
        self.issuer = issuer
        self.on_deaths: list[
            Callable[[], None]
        ] = []  # called after principals were invalidated, to end their requests
        self.on_settle: list[
            Callable[[], None]
        ] = []  # called to charge bytes that are counted late
        self.now = clock
        self._tokens = tokens
        self._defaults = defaults
        self._wall = wall
        self._stamp: Stamp | None = tokens.stamp()
        self._unread: Stamp | None = None  # of a file that cannot be read; `tick` tries it again
        found = tokens.load()
        self._records = {record.id: record for record in found.tokens}
        self._revoked = Revocations(found.revoked_jwts)
        self._rules = UserRules(found.kafka)
        self._proven: dict[str, Principal] = {}
        self._living: weakref.WeakSet[Principal] = weakref.WeakSet()
        self._meters: weakref.WeakValueDictionary[str, Meter] = weakref.WeakValueDictionary()
        self._next_expiry = _FOREVER
        self._has_meters = False

    @property
    def is_empty(self) -> bool:
        """Return True if no credential can be valid."""
        now_ms = self.wall_ms()
        return self.issuer is None and not any(
            record.state(now_ms) == "active" for record in self._records.values()
        )

    def identify(self, credential: str, *, short: bool = False) -> Principal:
        """Return the principal of a credential. `short`: also of a short token, which is for HTTP.
        Raise `Denied`, or `KeysUnknown` if fresh keys may help."""
        if credential.startswith(SHORT_PREFIX) and not short:
            raise Denied("a short token is for HTTP alone")
        known = self._proven.get(credential)
        if (
            known is not None
            and known.alive
            and (known.expires_ms is None or self.wall_ms() < known.expires_ms)
        ):
            return known
        if len(credential) > CREDENTIAL_BYTES_MAX:
            raise Denied(f"a token has at most {CREDENTIAL_BYTES_MAX} bytes")
        self.counters.proven += 1
        if credential.startswith(SHORT_PREFIX):
            principal = self._of_short(credential)
        else:
            parts = split_token(credential)
            principal = self._of_token(*parts) if parts is not None else self._of_jwt(credential)
        if len(self._proven) >= CREDENTIALS_KEPT_MAX:
            self._proven.clear()  # open requests keep their principals, which `_living` tracks
        self._proven[credential] = principal
        return self._watched(principal)

    def verifier(self, user: str, mechanism: str) -> tuple[str, Verifier] | None:
        """Return the id and the SCRAM verifier of the active token with this id or name. None:
        there is no such token, or it has no verifier."""
        now_ms = self.wall_ms()
        known = self._record(user)
        named = None
        for record in self._records.values():  # all of them: the time does not tell where it is
            if named is None and record.name == user and record.state(now_ms) == "active":
                named = record
        if known is not None:
            named = known if known.state(now_ms) == "active" else None
        found = None if named is None else named.scram.get(mechanism)
        return None if named is None or found is None else (named.id, found)

    def decoy(self, user: str, mechanism: str) -> Verifier:
        """Return the SCRAM verifier of a user without one: the same on all cores and nodes, as that
        of a token is."""
        tokens = (record for record in self._records.values() if not record.is_user)
        oldest = min(tokens, key=lambda record: record.id, default=None)
        secret = b"" if oldest is None else oldest.sha256.encode()
        return decoy(mechanism, user, secret)

    def proven(self, key: str) -> Principal:
        """Return the principal of a token whose secret was proven without being sent. Raise
        `Denied`."""
        record = self._record(key)
        if record is None:
            raise Denied("the token is not known here")
        self.counters.proven += 1
        return self._watched(self._of_record(record))

    async def refresh(self) -> bool:
        """Read the issuer's keys again unless that is too soon. Return True if they were read."""
        return self.issuer is not None and self.issuer.may_refresh and await self.issuer.refresh()

    def tick(self) -> None:
        """Reload a changed token file and invalidate expired principals."""
        stamp = self._tokens.stamp()
        if stamp != self._stamp:
            self._reload(stamp)
        if self.wall_ms() >= self._next_expiry:
            self._bury()

    def reload(self) -> None:
        """Reload now: this process has just changed the file."""
        self._reload(self._tokens.stamp())

    @property
    def has_meters(self) -> bool:
        """Return True if a limit was ever in force on this core."""
        return self._has_meters

    def allowed(self, principal: Principal) -> Allowed:
        """Return what ACLs allow a principal, beside its grants."""
        return self._rules.allowed(principal.name)

    def quota_meter(self, principal: Principal, kind: str) -> Meter | None:
        """Return the meter of a user's quota, which all its connections share; None: it has no such
        quota. `kind`: a field of `Quota`."""
        quota = self._rules.rules.quota(principal.name)
        rate = 0 if quota is None else getattr(quota, kind)
        if not rate:
            return None
        return self._meter(f"{kind} of {principal.name}", Limits(bytes_per_second=rate))

    # --- limits over all cores --------------------------------------------------------------------

    def settle(self) -> None:
        """Charge the bytes sent since the last call; called a few times a second."""
        if self._has_meters:
            for count in self.on_settle:
                count()

    def report(self) -> Report:
        """Return the usage since the last report, for the other cores."""
        return {key: (*meter.drain(), meter.connections) for key, meter in self._meters.items()}

    def hear(self, core: int, report: Report) -> None:
        """Charge the usage that another core reported."""
        for key, meter in self._meters.items():
            requests, size, connections = report.get(key, (0, 0, 0))
            meter.spend(requests, size)
            meter.elsewhere[core] = connections

    # --- proving ----------------------------------------------------------------------------------

    def _record(self, key: str) -> TokenRecord | None:
        """Return the token with this id. One that is unknown may have been created just now, so
        that a changed file is read at once."""
        if key not in self._records:
            stamp = self._tokens.stamp()
            if stamp not in (self._stamp, self._unread):
                self._reload(stamp)
        return self._records.get(key)

    def _of_token(self, key: str, secret: str) -> Principal:
        record = self._record(key)
        if record is None or not proves(record, secret):
            raise Denied("the token is not known here")
        return self._of_record(record)

    def _of_short(self, text: str) -> Principal:
        """Return the principal of a short token, which shares the limits and the end of its minter.
        Raise `Denied`."""
        try:
            claims, signed, signature = read_claims(text)
            record = self._record(claims.by)
            if record is None:
                raise BadShortToken("the token that signed it is not known here")
            check_signature(signed, signature, record.short_key)
            minter = self._of_record(record)
            check_claims(claims, minter, self.wall_ms())
        except BadShortToken as bad:
            raise Denied(str(bad)) from None
        ends = [each for each in (claims.expires_ms, minter.expires_ms) if each is not None]
        return msgspec.structs.replace(
            minter,
            name=f"{minter.name} (short)",
            grants=(claims.grant,),
            expires_ms=min(ends),
            minter=minter,
        )

    def _of_record(self, record: TokenRecord) -> Principal:
        """Return the principal of a token whose secret is proven. Raise `Denied`."""
        state = record.state(self.wall_ms())
        if state != "active":
            raise Denied(f"the token is {state}")
        limits = _merged(record.limits, self._defaults)
        return Principal(
            id=record.id,
            name=record.name,
            grants=record.grants,
            expires_ms=record.expires_ms,
            limits=limits,
            meter=self._meter(record.id, limits),
        )

    def _watched(self, principal: Principal) -> Principal:
        """Invalidate the principal when it expires or is revoked."""
        self._living.add(principal)
        if principal.expires_ms is not None:
            self._next_expiry = min(self._next_expiry, principal.expires_ms)
        return principal

    def _of_jwt(self, text: str) -> Principal:
        issuer = self.issuer
        if issuer is None:
            raise Denied("the token is not known here")
        try:
            proven = issuer.prove(text)
        except KeyUnknown as unknown:
            raise (KeysUnknown if issuer.may_refresh else Denied)(str(unknown)) from None
        except BadJwt as bad:
            raise Denied(str(bad)) from None
        if self._revoked.refuse(proven):
            raise Denied("the JWT is revoked")
        key = f"jwt:{proven.subject}"
        return Principal(
            id=key,
            name=proven.subject,
            grants=proven.grants,
            expires_ms=proven.expires_ms,
            limits=self._defaults,
            meter=self._meter(key, self._defaults),
            jwt=proven,
        )

    def _meter(self, key: str, limits: Limits) -> Meter | None:
        """Return the meter that all credentials of one principal share, or None without limits."""
        if not (limits.requests_per_second or limits.bytes_per_second or limits.connections):
            return None
        known = self._meters.get(key)
        if known is None or known.rates != (limits.requests_per_second, limits.bytes_per_second):
            self._has_meters = True
            known = self._meters[key] = Meter(
                limits.requests_per_second, limits.bytes_per_second, self.now()
            )
        return known

    # --- changes ----------------------------------------------------------------------------------

    def _reload(self, stamp: Stamp | None) -> None:
        """Reload the file. An unreadable file changes nothing and is retried."""
        try:
            found = self._tokens.load()
        except ConfigError as error:
            log.error(
                "cannot reload the token file; the known tokens stay valid",
                extra={"error": str(error)},
            )
            self._unread = stamp
            return
        self._stamp = stamp
        records = {record.id: record for record in found.tokens}
        self._revoked = Revocations(found.revoked_jwts)
        self._rules = UserRules(found.kafka)
        changed = {key for key, record in self._records.items() if records.get(key) != record}
        self._records = records
        for principal in tuple(self._living):
            if principal.id in changed or (
                principal.jwt is not None and self._revoked.refuse(principal.jwt)
            ):
                principal.alive = False
        self._bury()

    def _bury(self) -> None:
        """Drop invalidated and expired principals, and notify `on_deaths`."""
        now_ms = self.wall_ms()
        self._next_expiry = _FOREVER
        dead = False
        for principal in tuple(self._living):
            if principal.expires_ms is not None and now_ms >= principal.expires_ms:
                principal.alive = False
            elif principal.expires_ms is not None:
                self._next_expiry = min(self._next_expiry, principal.expires_ms)
            if not principal.alive:
                dead = True
                self._living.discard(principal)
        if dead:
            self._proven = {
                credential: principal
                for credential, principal in self._proven.items()
                if principal.alive
            }
            for look in self.on_deaths:
                look()

    def wall_ms(self) -> int:
        return int(self._wall() * 1000)


def _merged(own: Limits, defaults: Limits) -> Limits:
    """Return the token's own limits, with defaults for those it lacks."""
    return Limits(
        **{name: getattr(own, name) or getattr(defaults, name) for name in Limits.__struct_fields__}
    )
