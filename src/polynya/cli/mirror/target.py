"""The target: a Polynya server, as a mirror asks it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from polynya.cli.mirror.source import TopicPartition
from polynya.cli.remote.client import Client
from polynya.cli.terminal import exits, output
from polynya.client.aio.wire import AsyncWire

T = TypeVar("T")
SECONDS = 60.0
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.2, 5.0
_AT_ONCE = 16


class Chunk(msgspec.Struct):
    """All of a partition's log from `begin` to `end`. `first`: where the source's log starts."""

    begin: int
    end: int
    first: int
    batches: list[bytes]

    @property
    def size(self) -> int:
        return sum(map(len, self.batches))


class Ends(msgspec.Struct):
    """The offsets of a partition here."""

    first: int
    next: int


class Target:
    """The server of a command. A call is repeated after a transient failure, for `retry_seconds`,
    as each of them changes nothing when it is repeated. They raise `exits.Ended`."""

    def __init__(self, client: Client, retry_seconds: float) -> None:
        self._client = client
        self._retry_seconds = retry_seconds
        self._wire = AsyncWire(client.options)
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def close(self) -> None:
        """Close the connections."""
        await self._wire.close()

    async def topic(self, name: str) -> dict[str, Any] | None:
        """Return a topic; None: it does not exist."""
        try:
            found: dict[str, Any] = (await self._call("GET", _topic_path(name))).json()
        except exits.Refused as refused:
            if refused.code != "TOPIC_NOT_FOUND":
                raise
            return None
        return found

    async def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic."""
        body = {"partitions": partitions, "configs": dict(configs)}
        await self._call("PUT", _topic_path(name), body=body)

    async def change(
        self, name: str, configs: Mapping[str, str | None], partitions: int | None = None
    ) -> None:
        """Change the configs of a topic, or its partitions."""
        body = {"partitions": partitions, "configs": dict(configs)}
        await self._call("PATCH", _topic_path(name), body=body)

    async def ends(self, partition: TopicPartition) -> Ends:
        """Return the offsets of a partition."""
        return _ends(await self._call("GET", _mirror_path(partition)))

    async def append(self, partition: TopicPartition, chunk: Chunk) -> Ends:
        """Append a part of the source's log."""
        query = {"begin": chunk.begin, "end": chunk.end, "first": chunk.first}
        headers = {"content-type": "application/octet-stream"}
        body = b"".join(chunk.batches)
        path = _mirror_path(partition)
        return _ends(await self._call("POST", path, params=query, headers=headers, content=body))

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> bool:
        """Commit the offsets of a consumer group. False: it has members here."""
        by_topic: dict[str, dict[str, int]] = {}
        for (topic, number), offset in offsets.items():
            by_topic.setdefault(topic, {})[str(number)] = offset
        path = f"/v1/groups/{quote(group, safe='')}/offsets"
        try:
            await self._call("POST", path, body={"offsets": by_topic})
        except exits.Refused as refused:
            if refused.code != "GROUP_NOT_EMPTY":
                raise
            return False
        return True

    async def _call(self, method: str, path: str, **parts: Any) -> httpx.Response:
        async def once() -> httpx.Response:
            async with self._gate:
                answer = await self._client.send_on(
                    self._wire, method, path, seconds=SECONDS, **parts
                )
            if not answer.is_success:
                raise self._client.refused(answer)
            return answer

        lasting = exits.Unreachable, exits.Unknown
        return await patiently(once, lasting, self._retry_seconds, "the server")


async def patiently(
    ask: Callable[[], Awaitable[T]],
    transient: type[Exception] | tuple[type[Exception], ...],
    seconds: float,
    who: str,
) -> T:
    """Ask again after a transient failure, for so many seconds."""
    loop = asyncio.get_running_loop()
    until, pause, is_logged = loop.time() + seconds, _PAUSE_SECONDS, False
    while True:
        try:
            return await ask()
        except transient as failure:
            if loop.time() + pause > until:
                raise
            if not is_logged and pause > 4 * _PAUSE_SECONDS:
                output.notice(f"{who} does not answer, retrying: {failure}")
                is_logged = True
        await asyncio.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)


async def gathered(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of calls in order; the first failure ends the others."""
    async with owned() as group:
        tasks = [group.create_task(call) for call in calls]
    return [task.result() for task in tasks]


@asynccontextmanager
async def owned() -> AsyncIterator[asyncio.TaskGroup]:
    """A group of tasks, whose first failure is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as several:
        raise _first_of(several) from None


def _first_of(several: BaseExceptionGroup[BaseException]) -> BaseException:
    first = several.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


def _ends(answer: httpx.Response) -> Ends:
    body = answer.json()
    return Ends(body["first_offset"], body["next_offset"])


def _topic_path(name: str) -> str:
    return f"/v1/topics/{quote(name, safe='')}"


def _mirror_path(partition: TopicPartition) -> str:
    return f"/v1/mirror/{quote(partition[0], safe='')}/{partition[1]}"
