"""Access control of one core: built from the settings, reloaded on change, and shared with the
other cores."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

import msgspec

from polynya.access import Access, Limits
from polynya.access.authenticator import Report
from polynya.access.jwt_issuer import Expected, Issuer
from polynya.access.token_file import TokenFile
from polynya.admin.audit import AuditFile, AuditLog
from polynya.admin.token_store import FileTokens, SharedTokens, TokenCopy
from polynya.config.core_start import CoreStart
from polynya.config.model import Config
from polynya.config.tls import Tls
from polynya.front.http.api.tokens import Tokens
from polynya.jobs import repeat
from polynya.observability.metrics import Samples
from polynya.routing.answers import MetaGroup
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.machine import Machine
from polynya.transport import Reply, Transport

TICK_SECONDS = 0.25  # delay until a revoked token is rejected, at most
KIND_USAGE = 1002  # message kind between cores
SLOW_EVERY = 4  # ticks between checks of certificates and keys


class Keeper:
    """Owns the token store, the audit log, the TLS context and the limits of one core. `access` is
    None where requests need no token. `known` may still be set then, for the remote admin port."""

    def __init__(self, start: CoreStart, transport: Transport | None) -> None:
        config = start.config
        self.file = TokenFile(config.data)
        self.tokens: Tokens = FileTokens(self.file)
        self._copy: TokenCopy | None = None
        self._copying: asyncio.Task[None] | None = None
        self._ticks = 0
        self.audit = AuditLog(AuditFile(config.data))
        self.tls = Tls(start.tls) if start.tls is not None else None
        self.known = open_access(config, self.file) if config.has_tokens else None
        self.access = self.known if config.needs_token else None
        self._start = start
        self._transport = transport
        self._refreshing: asyncio.Task[bool] | None = None
        self._decoder = msgspec.msgpack.Decoder(Report)
        if transport is not None:
            transport.on(KIND_USAGE, self._hear)

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of this core's ports, or None without TLS."""
        return None if self.tls is None else self.tls.context

    def join(self, meta_group: MetaGroup, machines: Mapping[int, Machine]) -> None:
        """Switch to the tokens of the cluster. `machines`: the groups of this core."""
        self.tokens = shared = SharedTokens(self.file, meta_group)
        if self._start.core == 0:
            self._copy = TokenCopy(
                self.file,
                shared,
                lambda: machines[META_GROUP].meta.settings if META_GROUP in machines else None,
            )

    async def start(self) -> None:
        """Read the issuer's keys, if configured, so that the first requests do not wait for
        them."""
        if self.known is not None and self.known.issuer is not None:
            await self.known.issuer.refresh()

    async def run(self) -> None:
        """Run until cancelled."""
        await repeat(self._tick, TICK_SECONDS, at_once=False)

    async def _tick(self) -> None:
        self._ticks += 1
        if self.known is not None:
            self.known.tick()
            self.known.settle()
            self._broadcast(self.known)
        if self._copy is not None and (self._copying is None or self._copying.done()):
            self._copying = asyncio.get_running_loop().create_task(self._copy.look())
        if self._ticks % SLOW_EVERY == 0:
            self._look()

    def reload(self) -> None:
        """Reload tokens, keys and certificate after SIGHUP."""
        if self.known is not None:
            self.known.reload()
            self._refresh()
        if self.tls is not None:
            self._took_certificate(self.tls.reload())

    def close(self) -> None:
        if self._copying is not None:
            self._copying.cancel()
        self.audit.close()

    def samples(self) -> Samples:
        counters = None if self.known is None else self.known.counters
        return {
            "polynya_access_denied_total": counters.denied if counters else 0,
            "polynya_access_forbidden_total": counters.forbidden if counters else 0,
            "polynya_access_limited_total": counters.limited if counters else 0,
            "polynya_access_short_tokens_total": counters.minted if counters else 0,
            "polynya_audit_lines_total": self.audit.written,
            "polynya_audit_lost_total": self.audit.lost,
        }

    def _look(self) -> None:
        if self.tls is not None and self.tls.tick():
            self._took_certificate(True)
        if self.known is not None and self.known.issuer is not None and self.known.issuer.is_due:
            self._refresh()

    def _refresh(self) -> None:
        if (
            self.known is not None
            and self.known.issuer is not None
            and (self._refreshing is None or self._refreshing.done())
        ):
            self._refreshing = asyncio.get_running_loop().create_task(self.known.issuer.refresh())

    def _took_certificate(self, taken: bool) -> None:
        if self._start.core == 0 and self._start.tls is not None:
            outcome = "ok" if taken else "failed"
            self.audit.record("tls.reload", self._start.tls.cert, "node", "", outcome, "")

    def _broadcast(self, access: Access) -> None:
        """Send this core's usage of limits to the other cores. A core that misses a report misses a
        quarter of a second of usage."""
        if self._transport is None or not access.has_meters:
            return
        body = msgspec.msgpack.encode(access.report())
        for core in self._transport.others:
            self._transport.call_nowait(core, KIND_USAGE, body, _ignore)

    def _hear(self, body: bytes, reply: Reply, core: int) -> None:
        if self.known is not None:
            self.known.hear(core, self._decoder.decode(body))
        reply(b"")


def open_access(config: Config, tokens: TokenFile) -> Access:
    """Build access control from the settings. Raise `ConfigError`."""
    auth = config.auth
    expected = Expected(auth.jwt_issuer, auth.jwt_audience, auth.jwt_claim, auth.jwt_lifetime_max)
    issuer = Issuer(expected, auth.jwt_keys) if auth.jwt_issuer else None
    defaults = Limits(
        requests_per_second=auth.requests_per_second,
        bytes_per_second=auth.bytes_per_second,
        streams=auth.streams,
        connections=auth.connections,
    )
    return Access(tokens, issuer=issuer, defaults=defaults)


def check_access(config: Config) -> str | None:
    """Return a warning for the operator before the cores start, or None. Raise `ConfigError` if the
    tokens are unreadable."""
    if not config.has_tokens:
        return None
    if open_access(config, TokenFile(config.data)).is_empty:
        return (
            "no valid token exists: run polynya token create admin --allow all,admin --data "
            f"{config.data}"
        )
    return None


def _ignore(answer: bytes | BaseException) -> None:
    """Ignore the outcome: the next report follows."""
