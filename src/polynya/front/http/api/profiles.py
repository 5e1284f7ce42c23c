"""`/v1/profile/NAME`: the profile of a stream, and its change while the stream is in use."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from polynya.access.grants import Verb
from polynya.base.names import (
    DISKLESS,
    LEASED,
    REPLICATED,
    partition_of,
    spelled_name,
)
from polynya.front.http.protocol.errors import REFUSALS, Failure
from polynya.front.http.protocol.extension import Request, Response, json_response, read_json
from polynya.front.http.protocol.named import stream_to_see_or_change
from polynya.local.api import Refusal, StreamInfo
from polynya.routing.handle import StreamHandle
from polynya.routing.proposals import reply_to
from polynya.service.api import Service
from polynya.stream.features.profiles.commands import Profile, SetProfile
from polynya.stream.replies import Code

PREFIX = "/v1/profile/"


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    profile: str


class ProfileRoute:
    """The handler below `PREFIX`. `object_store`: this node has one."""

    def __init__(self, service: Service, *, object_store: bool) -> None:
        self._service = service
        self._object_store = object_store

    async def handle(self, request: Request) -> Response:
        """Get (`read`) or change (`create`) the profile of a stream. Raises `Failure`."""
        stream = self._service.open(stream_to_see_or_change(request, Verb.CREATE))
        if request.method == "POST":
            await self._change(stream, read_json(request.body, _Wanted).profile)
        info = await stream.info()
        if isinstance(info, Refusal):
            raise Failure(REFUSALS.get(info.code, "NOT_FOUND"))
        return json_response(_shown(info))

    async def _change(self, stream: StreamHandle, profile: str) -> None:
        if profile not in (REPLICATED, DISKLESS):
            raise Failure(
                "INVALID_REQUEST",
                f"a stream can be changed to {REPLICATED} or {DISKLESS}, not to '{profile[:50]}'",
            )
        if profile == DISKLESS and not self._object_store:
            raise Failure(
                "PROFILE_CONFLICT",
                "diskless streams need an object store, and this node has none: set cold.backend",
            )
        if partition_of(stream.name) is not None:
            raise Failure(
                "KAFKA_PARTITION",
                "the stream is a partition of a Kafka topic: change the config 'profile' of the "
                "topic, as with 'polynya topic alter'",
            )
        number = Profile.DISKLESS if profile == DISKLESS else Profile.REPLICATED
        command = SetProfile(stream.name, number, self._service.now_ms())
        reply = await reply_to(partial(stream.propose, command))
        if reply.code == Code.NOT_YET:
            raise Failure(
                "UNAVAILABLE",
                "the stream could not be flushed within 5 seconds, so it keeps its profile; retry",
            )
        if reply.code == Code.REFUSED:
            raise Failure("PROFILE_CONFLICT", "a leased stream keeps its profile")
        if reply.code >= Code.NOT_FOUND:
            raise Failure(REFUSALS.get(reply.code, "INTERNAL"))
        if number == Profile.DISKLESS:
            self._service.expect_diskless(stream.name)


def _shown(info: StreamInfo) -> dict[str, Any]:
    profile = LEASED if info.segment else Profile.NAMES[info.profile]
    return {
        "name": spelled_name(info.name),
        "incarnation": str(info.uid),
        "profile": profile,
    }
