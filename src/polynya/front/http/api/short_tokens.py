"""`POST /v1/tokens/short`: a server that has a token mints one for a page, for one stream or prefix
and some minutes."""

from __future__ import annotations

import time

from polynya.access import BadScope, Principal
from polynya.access.authenticator import AccessCounters
from polynya.access.short_tokens import Wanted, claims_of, excess, sign
from polynya.access.token_file import split_token
from polynya.base.names import spelled_name
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response, json_response, read_json

PATH = "/v1/tokens/short"


class ShortTokenRoute:
    """The route, which counts its tokens. `counters` None: the node has no access control."""

    def __init__(self, counters: AccessCounters | None) -> None:
        self._counters = counters

    async def handle(self, request: Request) -> Response:
        """Mint a short token. Raises `Failure`."""
        response = _mint(request)
        if self._counters is not None:
            self._counters.minted += 1
        return response


def _mint(request: Request) -> Response:
    if request.method != "POST":
        raise Failure("METHOD_NOT_ALLOWED", "short tokens support POST", (("Allow", "POST"),))
    principal, text = _minter(request)
    wanted = read_json(request.body, Wanted)
    try:
        claims = claims_of(wanted, principal.id, int(time.time() * 1000), principal.expires_ms)
    except BadScope as bad:
        raise Failure("INVALID_REQUEST", str(bad)) from None
    if (verb := excess(claims, principal)) is not None:
        where = spelled_name(claims.at) if claims.exact else f"all streams under {claims.at}"
        raise Failure("FORBIDDEN", f"the token does not allow '{verb}' on {where}")
    answer = {"token": sign(claims, text), "expires_ms": claims.expires_ms}
    return json_response(answer, 201)


def _minter(request: Request) -> tuple[Principal, str]:
    """Return the caller and the text of its token. Raises `Failure`: only a token of this cluster in
    the header signs others, so that a page cannot."""
    if request.principal is None:
        raise Failure(
            "FORBIDDEN",
            "this node does not require tokens, so that pages need none: see auth.required",
        )
    text = request.headers.get("authorization", "").partition(" ")[2].strip()
    if split_token(text) is None:
        raise Failure(
            "FORBIDDEN",
            "only a token of 'polynya token create', in the header Authorization, mints short "
            "tokens; the issuer of a JWT makes shorter ones itself",
        )
    return request.principal, text
