"""Routes of the console on the base port."""

from __future__ import annotations

from polynya.console.assets import AssetResponse, Assets, to_folder
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Handler, Request, Response

PREFIX = "/console/"


def console_handlers() -> dict[str, Handler]:
    """Return handlers by exact path: redirects to the page from `/` and from its path without the
    slash."""

    async def console(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise Failure("NO_ROUTE")
        return _response(to_folder())

    return {PREFIX.rstrip("/"): console, "/": console}


def console_mounts() -> dict[str, Handler]:
    """Return handlers by prefix: the page and its files."""
    assets = Assets()

    async def console(request: Request) -> Response:
        answer = assets.answer(request.method, "/".join(request.segments), request.headers)
        if answer is None:
            raise Failure("NO_ROUTE")
        if answer.status == 405:
            raise Failure("METHOD_NOT_ALLOWED", headers=answer.headers)
        return _response(answer)

    return {PREFIX: console}


def _response(answer: AssetResponse) -> Response:
    return Response(answer.status, answer.body, answer.content_type, answer.headers)
