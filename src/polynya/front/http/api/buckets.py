"""`/v1/buckets`, `/v1/buckets/NAME/retention` and `/v1/buckets/NAME/profile`: the retention of the
streams of a bucket, and the default profile of new ones."""

from __future__ import annotations

import msgspec

from polynya.base.names import BUCKET_RULE, DISKLESS, REPLICATED, is_bucket
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response, json_response, read_json
from polynya.front.http.routes.retention import read_retention, shown
from polynya.service.api import Service
from polynya.service.settings.bucket_profiles import TooManyBuckets

PATH = "/v1/buckets"
RETENTION, PROFILE = "retention", "profile"  # the last segment


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    profile: str


class BucketRoutes:
    """The handler for `PATH`, and the mount below it. `object_store`: this node has one."""

    def __init__(self, service: Service, *, object_store: bool = True) -> None:
        self._service = service
        self._object_store = object_store

    async def list(self, request: Request) -> Response:
        """List the buckets that have a retention or a default profile. Raises `Failure`."""
        if request.method not in ("GET", "HEAD"):
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD"),))
        retentions = await self._service.buckets()
        profiles = await self._service.bucket_profiles.all()
        listed = [
            {
                "name": name,
                "retention": shown(retentions[name]) if name in retentions else None,
            }
            | ({"profile": profiles[name]} if name in profiles else {})
            for name in sorted({*retentions, *profiles})
        ]
        return json_response({"buckets": listed})

    async def handle(self, request: Request) -> Response:
        """Get, set or delete a bucket's retention or default profile. Raises `Failure`."""
        bucket, *rest = request.segments
        if rest not in ([RETENTION], [PROFILE]):
            raise Failure("NO_ROUTE")
        if not is_bucket(bucket):
            raise Failure("INVALID_NAME", BUCKET_RULE)
        if request.method not in ("GET", "HEAD", "PUT", "DELETE"):
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD, PUT, DELETE"),))
        handle = self._retention if rest == [RETENTION] else self._profile
        return await handle(bucket, request)

    async def _retention(self, bucket: str, request: Request) -> Response:
        if request.method == "PUT":
            retention = read_retention(request.body)
            await self._service.set_bucket(bucket, retention)
            return json_response({**shown(retention), "from": "bucket"})
        if request.method == "DELETE":
            await self._service.set_bucket(bucket, None)
            return Response(204)
        found = (await self._service.buckets()).get(bucket)
        return json_response({**shown(found), "from": None if found is None else "bucket"})

    async def _profile(self, bucket: str, request: Request) -> Response:
        profiles = self._service.bucket_profiles
        if request.method == "DELETE":
            await profiles.set(bucket, None)
            return Response(204)
        if request.method == "PUT":
            profile = self._checked(read_json(request.body, _Wanted).profile)
            try:
                await profiles.set(bucket, profile)
            except TooManyBuckets as full:
                raise Failure("PROFILE_CONFLICT", str(full)) from None
            return json_response({"name": bucket, "profile": profile})
        return json_response({"name": bucket, "profile": (await profiles.all()).get(bucket)})

    def _checked(self, profile: str) -> str:
        if profile not in (REPLICATED, DISKLESS):
            raise Failure(
                "INVALID_REQUEST",
                f"the default profile of a bucket is {REPLICATED} or {DISKLESS}, not "
                f"'{profile[:50]}'",
            )
        if profile == DISKLESS and not self._object_store:
            raise Failure(
                "PROFILE_CONFLICT",
                "diskless streams need an object store, and this node has none: set cold.backend",
            )
        return profile
