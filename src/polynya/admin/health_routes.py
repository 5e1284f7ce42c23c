"""The routes of health, metrics and the node's identity."""

from __future__ import annotations

from polynya.admin.health import Health, HealthResponse
from polynya.front.http.protocol.extension import Handler, Request, Response


def health_handlers(health: Health, *, near: bool = False) -> dict[str, Handler]:
    """Return the handlers by path. `near`: of the admin port on loopback."""

    async def livez(request: Request) -> Response:
        return _response(health.livez())

    async def readyz(request: Request) -> Response:
        return _response(await health.readyz(verbose="verbose" in request.query))

    async def findings(request: Request) -> Response:
        return _response(await health.health())

    async def node(request: Request) -> Response:
        return _response(health.node(near=near))

    async def metrics(request: Request) -> Response:
        return _response(await health.metrics())

    return {
        "/livez": livez,
        "/readyz": readyz,
        "/health": findings,
        "/v1/node": node,
        "/metrics": metrics,
    }


def _response(answer: HealthResponse) -> Response:
    return Response(
        answer.status, answer.body, answer.content_type, (("Cache-Control", "no-store"),)
    )
