"""`/v1/admin/tokens` and `/v1/admin/jwts`: create, list and revoke tokens, and revoke JWTs, for
tokens with `admin`.

`polynya token` does the same on the node's own machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from polynya.access import Access, BadScope, Denied, Principal
from polynya.access.revocations import RevokedJwt, UnwantedJwt
from polynya.access.token_file import AtRest, NoToken, TokenRecord, Wanted
from polynya.base.errors import ConfigError, Unavailable
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response, json_response, read_json

Made = TypeVar("Made")


class Tokens(Protocol):
    """The token operations. They raise `BadScope`, `NoToken`, `ConfigError` and `Unavailable`."""

    async def load(self) -> AtRest: ...

    async def change(
        self, change: Callable[[AtRest], tuple[AtRest, Made]], now_ms: int
    ) -> Made: ...

    async def add(self, wanted: Wanted, now_ms: int) -> tuple[TokenRecord, str]: ...

    async def revoke(self, which: str, now_ms: int) -> TokenRecord: ...

    async def revoke_jwt(self, unwanted: UnwantedJwt, now_ms: int) -> RevokedJwt: ...


class TokenRoutes:
    """The token handlers. They authenticate every caller, even on loopback, where the rest of the
    admin port needs no token."""

    def __init__(self, tokens: Tokens, access: Access | None) -> None:
        self._tokens = tokens
        self._access = access

    async def handle(self, request: Request) -> Response:
        """Handle a request about tokens; the segments are those after `/v1/admin/tokens`. Raises
        `Failure` and `Unavailable`."""
        self.admin_of(request)
        method, segments = request.method, request.segments
        try:
            if not segments and method == "GET":
                found = await self._tokens.load()
                tokens = [shown(record) for record in found.tokens]
                return json_response({"tokens": tokens, "acls": list(map(str, found.kafka.acls))})
            if not segments and method == "POST":
                return await self._create(request)
            if len(segments) == 1 and method == "DELETE":
                record = await self._tokens.revoke(segments[0], _now_ms())
                self._changed()
                return json_response({"token": shown(record)})
        except BadScope as bad:
            raise Failure("INVALID_REQUEST", str(bad)) from None
        except NoToken as none:
            raise Failure("TOKEN_NOT_FOUND", str(none)) from None
        except ConfigError as error:
            raise Unavailable(str(error)) from None
        raise Failure(
            "METHOD_NOT_ALLOWED",
            "tokens support GET and POST /v1/admin/tokens, and DELETE /v1/admin/tokens/ID",
        )

    async def handle_jwts(self, request: Request) -> Response:
        """List revoked JWTs or revoke one; the segments are those after `/v1/admin/jwts`. Raises
        `Failure` and `Unavailable`."""
        self.admin_of(request)
        if request.segments or request.method not in ("GET", "POST"):
            raise Failure("METHOD_NOT_ALLOWED", "revoked JWTs support GET and POST /v1/admin/jwts")
        try:
            if request.method == "GET":
                found = await self._tokens.load()
                return json_response({"revoked": shown_jwts(found)})
            unwanted = read_json(request.body, UnwantedJwt)
            entry = await self._tokens.revoke_jwt(unwanted, _now_ms())
        except BadScope as bad:
            raise Failure("INVALID_REQUEST", str(bad)) from None
        except ConfigError as error:
            raise Unavailable(str(error)) from None
        self._changed()
        return json_response({"revoked": entry})

    def admin_of(self, request: Request) -> Principal:
        """Return the caller if it is an admin. Raises `Failure`."""
        if self._access is None:
            raise Failure(
                "FORBIDDEN",
                "this node does not require tokens: set auth.required, or create tokens with "
                "'polynya token' on the machine",
            )
        if request.principal is not None:
            principal = request.principal
        else:
            scheme, _, credential = request.headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer":
                raise Failure("UNAUTHORIZED", headers=(("WWW-Authenticate", "Bearer"),))
            try:
                principal = self._access.identify(credential.strip())
            except Denied as denied:
                raise Failure(
                    "TOKEN_REFUSED",
                    str(denied),
                    (("WWW-Authenticate", 'Bearer error="invalid_token"'),),
                ) from None
        if not principal.is_admin:
            raise Failure("FORBIDDEN", "the token does not allow 'admin'")
        request.principal = principal  # for the audit log
        return principal

    async def _create(self, request: Request) -> Response:
        wanted = read_json(request.body, Wanted)
        record, text = await self._tokens.add(wanted, _now_ms())
        self._changed()
        return json_response({"token": {**shown(record), "secret": text}}, 201)

    def _changed(self) -> None:
        """Refresh this core at once; the other cores follow within a quarter of a second."""
        if self._access is not None:
            self._access.reload()


def shown(record: TokenRecord) -> dict[str, Any]:
    """Return a token as it is listed: without its hash."""
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state(_now_ms()),
        "scopes": list(record.scopes),
        "created_ms": record.created_ms,
        "expires_ms": record.expires_ms,
        "revoked_ms": record.revoked_ms,
        "limits": record.limits,
    }


def shown_jwts(found: AtRest) -> list[RevokedJwt]:
    """Return the revocations in force."""
    return [entry for entry in found.revoked_jwts if entry.expires_ms > _now_ms()]


def _now_ms() -> int:
    return int(time.time() * 1000)
