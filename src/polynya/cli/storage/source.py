"""The source of a backup: a cluster's admin port, with retries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from polynya.backup.source import About, Captured, GroupCommits, Lost
from polynya.base.errors import Unavailable
from polynya.cli.remote.client import Client
from polynya.cli.terminal import exits
from polynya.client.aio.wire import AsyncWire
from polynya.objectstore import NotFound

if TYPE_CHECKING:
    import httpx

ANSWER_SECONDS = 120.0  # the state of a large group, or an object from a slow store
PATIENCE_SECONDS = 60.0
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.2, 5.0
PATH = "/v1/admin/backup"


class HttpSource:
    """A `polynya.backup.source.BackupSource` over a client of the admin port. Create it on a
    running loop. Raises `exits.Ended` for refusals."""

    def __init__(self, admin: Client) -> None:
        self._admin = admin
        self._wire = AsyncWire(admin.options)

    async def close(self) -> None:
        await self._wire.close()

    async def about(self) -> About:
        return msgspec.json.decode((await self._ask("GET", "")).content, type=About)

    async def capture(self, group: int, backup: str = "") -> Captured:
        body = {"group": group, "backup": backup} if backup else {"group": group}
        answer = await self._ask("POST", "/capture", body=body)
        return msgspec.json.decode(answer.content, type=Captured)

    async def prepare(self, group: int, backup: str) -> None:
        await self._ask(
            "POST", "/capture", body={"group": group, "backup": backup, "prepare": True}
        )

    async def commits(self, group: int, backup: str, hold_ms: int | None = None) -> GroupCommits:
        body = {"group": group, "backup": backup, "hold_ms": hold_ms}
        answer = await self._ask("POST", "/commits", body=body)
        return msgspec.json.decode(answer.content, type=GroupCommits)

    async def part(self, captured: Captured, offset: int) -> bytes:
        answer = await self._ask(
            "GET",
            "/part",
            params={"group": captured.group, "token": captured.token, "offset": offset},
            absent=Lost,
        )
        return answer.content

    async def objects(self, prefix: str) -> AsyncIterator[tuple[str, int]]:
        after: str | None = ""
        while after is not None:
            page = (
                await self._ask("GET", "/objects", params={"prefix": prefix, "after": after})
            ).json()
            for key, size in page["objects"]:
                yield key, size
            after = page["next"]

    async def read(self, key: str, offset: int, length: int) -> bytes:
        params = {"key": key, "offset": offset, "length": length}
        return (await self._ask("GET", "/object", params=params, absent=NotFound)).content

    async def _ask(
        self, method: str, path: str, *, absent: type[Exception] | None = None, **more: Any
    ) -> httpx.Response:
        """Send a request with retries. `absent` is raised for 404."""
        deadline, pause = time.monotonic() + PATIENCE_SECONDS, PAUSE_SECONDS
        while True:
            try:
                answer = await self._admin.send_on(
                    self._wire, method, PATH + path, seconds=ANSWER_SECONDS, **more
                )
                if answer.is_success:
                    return answer
                if answer.status_code == 404 and absent is not None:
                    raise absent(path)
                if answer.status_code not in (429, 500, 502, 503, 504):
                    raise self._admin.refused(answer)
                failure = (
                    f"{self._admin.refused(answer)}; in a cluster, 'polynya cluster health' shows "
                    "the reason"
                )
            except exits.Unreachable as unreachable:
                failure = unreachable.message
            if time.monotonic() > deadline:
                raise Unavailable(failure)
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
