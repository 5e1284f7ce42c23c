"""`/v1/buckets` and `/v1/buckets/NAME/retention`: the retention of the streams of a bucket."""

from __future__ import annotations

from typing import Any

import msgspec

from polynya.base.names import BUCKET_RULE, is_bucket
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response
from polynya.front.http.routes.retention import read_retention, shown
from polynya.service.api import Service

PATH = "/v1/buckets"
_NO_STORE = (("Cache-Control", "no-store"),)


class BucketRoutes:
    """The handler for `PATH`, and the mount below it."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, request: Request) -> Response:
        """List the buckets that have a retention. Raises `Failure`."""
        if request.method not in ("GET", "HEAD"):
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD"),))
        buckets = await self._service.buckets()
        return _json(
            {
                "buckets": [
                    {"name": name, "retention": shown(buckets[name])} for name in sorted(buckets)
                ]
            }
        )

    async def handle(self, request: Request) -> Response:
        """Get, set or delete a bucket's retention. Raises `Failure`."""
        bucket, *rest = request.segments
        if rest != ["retention"]:
            raise Failure("NO_ROUTE")
        if not is_bucket(bucket):
            raise Failure("INVALID_NAME", BUCKET_RULE)
        if request.method == "PUT":
            retention = read_retention(request.body)
            await self._service.set_bucket(bucket, retention)
            return _json({**shown(retention), "from": "bucket"})
        if request.method == "DELETE":
            await self._service.set_bucket(bucket, None)
            return Response(204)
        if request.method not in ("GET", "HEAD"):
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD, PUT, DELETE"),))
        found = (await self._service.buckets()).get(bucket)
        return _json({**shown(found), "from": None if found is None else "bucket"})


def _json(value: Any) -> Response:
    return Response(200, msgspec.json.encode(value), headers=_NO_STORE)
