"""The streams that are created anywhere, for readers of prefixes and patterns on this core.

Each group counts the uids that it has given. A core asks for those above the last ones it knows, as
long as somebody watches: one question for all watchers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.limits import NEW_STREAMS_INTERVAL_MS
from polynya.base.names import is_public
from polynya.jobs import repeat
from polynya.service.node_service import NodeService

NEW_STREAMS = 70  # messages between cores
_UIDS_MAX = 4096  # of one group in one answer; the next answer has the rest

log = logging.getLogger("polynya.service")

Watcher = Callable[[str], None]
"""Called with the canonical name of a new stream, perhaps a little before it can be read."""


class NewStreamsQuery(msgspec.Struct, array_like=True, frozen=True):
    """The uids already known in each group; -1: only the present one is wanted."""

    known: dict[int, int]


class Created(msgspec.Struct, array_like=True, frozen=True):
    """The uid up to which an answer goes in each group, and the names of the streams up to it."""

    uids: dict[int, int]
    names: list[str]


class NewStreams:
    """The watch of one core over the creation of streams. Create one on every core."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        self._known: dict[int, int] = {}  # by group
        self._watchers: dict[Watcher, None] = {}
        self._task: asyncio.Task[None] | None = None
        service.rpc.serve(NEW_STREAMS, NewStreamsQuery, Created, self._here)

    async def watch(self, watcher: Watcher, *, all_groups: bool) -> None:
        """Call `watcher` for each stream created from now on, at least once. A list of streams that
        is read after this has all earlier ones. `all_groups`: raise Unavailable if a group does not
        answer, instead of beginning later there."""
        self._watchers[watcher] = None
        try:
            if self._task is None or self._task.done():
                self._known = {}
                self._task = asyncio.get_running_loop().create_task(self._run())
            # the first count of a group has to be older than the list; later ones are
            if len(self._known) < self._service.groups:
                await self._ask(None if all_groups else [])
        except BaseException:
            self.leave(watcher)
            raise

    def leave(self, watcher: Watcher) -> None:
        """Call the watcher no more. Nothing is asked without watchers."""
        self._watchers.pop(watcher, None)
        if not self._watchers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        await repeat(self._ask_again, NEW_STREAMS_INTERVAL_MS / 1000, at_once=False)

    async def _ask_again(self) -> None:
        try:
            await self._ask([])
        except PolynyaError as error:  # a group that is moving
            log.debug("new streams are not known", extra={"error": str(error)})
        except Exception:  # the watchers must hear of the next ones
            log.exception("new streams are not known")

    async def _ask(self, missing: list[int] | None) -> None:
        """Ask every group once, and call the watchers. `missing`: takes the groups that do not
        answer; None: raise Unavailable for one."""
        answers: list[Created] = await self._service.rpc.of_groups(
            range(1, self._service.groups + 1),
            NEW_STREAMS,
            lambda groups: NewStreamsQuery({group: self._known.get(group, -1) for group in groups}),
            self._here,
            missing=missing,
        )
        for answer in answers:
            for group, uid in answer.uids.items():
                self._known[group] = max(uid, self._known.get(group, 0))
            for name in answer.names:
                for watcher in tuple(self._watchers):
                    watcher(name)

    async def _here(self, query: NewStreamsQuery) -> Created:
        found = Created({}, [])
        await self._service.local.linearize_all(
            [group for group, known in query.known.items() if known < 0]
        )
        for group, known in query.known.items():
            machine = self._service.local.here(group)
            if known < 0:
                found.uids[group] = machine.counters.uids
                continue
            last = min(machine.counters.uids, known + _UIDS_MAX)
            found.uids[group] = last
            for uid in range(known + 1, last + 1):
                stream = machine.directory.by_uid.get(group << 48 | uid)
                if stream is not None and not stream.deleted and is_public(stream.name):
                    found.names.append(stream.name)
        return found
