"""The topic `_schemas` as one core knows it: read up to its tail, and appended on the condition
that the tail is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from google_crc32c import value as crc32c

from polynya.base.errors import OutcomeUnknown, PolynyaError, Unavailable, UpgradePending
from polynya.base.levels import CONDITIONS_LEVEL
from polynya.base.limits import REGISTRY_BYTES_MAX, REGISTRY_VERSIONS_MAX
from polynya.base.names import REPLICATED, partition_name
from polynya.front.http.protocol.errors import REFUSALS, Failure
from polynya.front.kafka.configs import PROFILE
from polynya.front.kafka.topics.catalog import TopicCatalog
from polynya.front.kafka.topics.steps import TopicService
from polynya.local.api import OWN_ENCODING, Page, Position, ReadQuery, Refusal, StreamInfo
from polynya.registry import refused
from polynya.registry.plans import Change
from polynya.registry.records import TOPIC, Record
from polynya.registry.refused import BadSchema, Refused
from polynya.registry.view import View
from polynya.routing.handle import StreamHandle
from polynya.routing.proposals import reply_to
from polynya.stream.features.appends.commands import AppendIf
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code
from polynya.wire.kafka import batches
from polynya.wire.kafka.records import UnreadableBatch, decoded_records, placed_batches

PREFIX = partition_name(TOPIC, 0).removesuffix("0")  # which a token must cover
CONFIGS = [("cleanup.policy", "compact"), (PROFILE, REPLICATED)]
TRIES_MAX = 100  # of one change: each loses to another change
AT_ONCE_CHARACTERS = 8 * 1024  # of schemas; more are parsed in a thread
Result = TypeVar("Result")
_PAGE_BYTES = 1 << 20
_MISSING = (Code.NOT_FOUND, Code.GONE)

Decide = Callable[[View], Awaitable[Change]]


class RegistryLog:
    """The topic, and the view of it that this core keeps once a request has needed it."""

    def __init__(self, service: TopicService, topics: TopicCatalog) -> None:
        self._service = service
        self._topics = topics
        self.view = View()
        self._uid = 0  # of the stream that the view is of; 0: none
        self._position = (0, 0)
        self._reading = asyncio.Lock()
        self._wanted = self._read = 0  # requests to read, and those that were read for
        self._working = asyncio.Lock()
        self.conflicts = 0  # appends that lost to another one

    @property
    def history(self) -> int:
        """The history of the cluster: a restore begins another one."""
        return self._service.history

    async def current(self) -> View:
        """Return the view with all that was appended before the call. Raises `Failure` and faults.

        Requests that come during a read share the next one."""
        self._wanted += 1
        wanted = self._wanted
        async with self._reading:
            if self._read < wanted:
                begun = self._wanted
                await self._catch_up()
                self._read = begun
        return self.view

    async def change(self, decide: Decide) -> Any:
        """Append what `decide` wants, and return its answer. It is called again when another change
        came first. Raises `Refused`, `Failure` and faults."""
        for _ in range(TRIES_MAX):
            view = await self.current()
            position = self._position
            change = await decide(view)
            if not change.records:
                return change.answer
            if self.view is not view or self._position != position:
                continue
            if await self._appended(change.records, position[0]):
                with suppress(PolynyaError, Failure):  # else the next request reads it
                    await self.current()
                return change.answer
            self.conflicts += 1
        raise Unavailable("too many changes of the schema registry at one time; retry")

    async def work(self, work: Callable[[], Result], size: int) -> Result:
        """Work on schemas of a size, in a thread if that may take long: one at a time. Raises
        Refused."""
        try:
            if size <= AT_ONCE_CHARACTERS:
                return work()
            async with self._working:
                return await asyncio.to_thread(work)
        except BadSchema as bad:
            raise Refused(refused.INVALID_SCHEMA, f"Invalid schema: {bad}") from None

    # --- the topic --------------------------------------------------------------------------------

    async def _handle(self) -> StreamHandle | None:
        """Return the partition; None: there is no topic. Raises Refused."""
        opened = await self._topics.open(TOPIC)
        if opened is None:
            return None
        if opened.topic.partitions != 1:
            raise Refused(
                refused.NOT_PERMITTED,
                f"the topic {TOPIC} has {opened.topic.partitions} partitions; the schema registry "
                "needs one with a single partition",
            )
        return opened.partition(0)

    async def _created(self) -> StreamHandle:
        await self._topics.refresh()  # it may have been deleted, or a mirror of it has ended
        if await self._topics.open(TOPIC) is None:
            if why := self._topics.refusal_of(TOPIC):
                raise Refused(refused.NOT_PERMITTED, f"the registry needs a topic: {why}")
            await self._topics.create(TOPIC, 1, CONFIGS)
        handle = await self._handle()
        if handle is None:
            raise Refused(
                refused.NOT_PERMITTED,
                f"the topic {TOPIC} of the registry cannot be created: streams under {PREFIX} exist "
                "and are no partitions, or a limit is reached",
            )
        return handle

    async def _catch_up(self) -> None:
        handle = await self._handle()
        info = None if handle is None else await handle.info()
        if isinstance(info, Refusal) and info.code not in _MISSING:
            raise Failure(REFUSALS.get(info.code, "INTERNAL"))
        if handle is None or not isinstance(info, StreamInfo):
            self._begin(0)
            return
        if info.uid != self._uid or info.record < self._position[0]:
            self._begin(info.uid)
        while self._position[0] < info.record:
            self._check_size()
            await self._read_page(handle)

    def _check_size(self) -> None:
        """Raise Refused if another writer of the topic has gone far beyond what is kept."""
        if (
            self.view.size > 2 * REGISTRY_BYTES_MAX
            or self.view.versions > 2 * REGISTRY_VERSIONS_MAX
        ):
            raise Refused(
                refused.STORE_ERROR,
                f"the topic {TOPIC} has more than {self.view.versions:,} versions with "
                f"{self.view.size:,} bytes; a node keeps {REGISTRY_VERSIONS_MAX:,} and "
                f"{REGISTRY_BYTES_MAX:,}: delete some with the registry that wrote them",
            )

    def _begin(self, uid: int) -> None:
        """Begin with an empty view, of a stream; 0: of none, which has nothing to read."""
        if uid or self._uid:
            self.view = View()
        self._uid, self._position = uid, ((int(Position.START), 0) if uid else (0, 0))

    async def _read_page(self, handle: StreamHandle) -> None:
        record, byte = self._position
        query = ReadQuery(
            handle.name, record, byte, _PAGE_BYTES, touch=False, whole_records=True, sequential=True
        )
        page = await handle.read(query)
        if isinstance(page, Refusal):
            if page.code == Code.TRIMMED:
                self._position = (int(Position.START), 0)
                return
            raise Failure(REFUSALS.get(page.code, "INTERNAL"))
        if page.info.uid != self._uid:
            raise Unavailable(f"the topic {TOPIC} was created again during the read; retry")
        self._apply(page, max(0, record))
        if (page.record, page.byte) == (record, byte) and not page.spans:
            raise Unavailable(f"the topic {TOPIC} cannot be read to its end now; retry")
        self._position = (page.record, page.byte)

    def _apply(self, page: Page, first: int) -> None:
        for span in page.spans:
            encoding = page.info.encoding if span.encoding == OWN_ENCODING else span.encoding
            if encoding != Encoding.KAFKA:
                self.view.skipped += 1  # of HTTP, in a topic over a stream that existed
                continue
            try:
                for batch, _, base in placed_batches(span.payload, span.record):
                    for each in decoded_records(batch, base):
                        if each.offset >= first:
                            self.view.apply(each.key, each.value)
            except UnreadableBatch:
                self.view.skipped += 1

    # --- appends ----------------------------------------------------------------------------------

    async def _appended(self, records: Sequence[Record], tail: int) -> bool:
        """Append records in one batch; False: the tail has moved. Raises faults."""
        if self._service.level < CONDITIONS_LEVEL:
            raise UpgradePending("the schema registry needs all nodes of the cluster upgraded")
        handle = await self._created()
        opened = self._topics.ready(TOPIC)
        if opened is not None and opened.rules.mirror_from:
            raise Refused(
                refused.NOT_PERMITTED,
                f"the topic {TOPIC} mirrors that of {opened.rules.mirror_from}: register there, or "
                "end the mirror with 'polynya mirror --cut-over'",
            )
        info = await handle.info()
        if not isinstance(info, StreamInfo):
            return False
        if info.uid != self._uid and (self._uid or info.record):
            return False
        if opened is not None and opened.rules.diskless:
            self._service.expect_diskless(handle.name)
        now_ms = self._service.now_ms()
        command = AppendIf(
            handle.name,
            now_ms,
            info.content_type,
            _batch(records, now_ms),
            incarnation=info.uid,
            record=tail,
        )
        try:
            reply = await reply_to(partial(handle.append, command))
        except OutcomeUnknown:
            return False  # what was decided is decided again: the view tells whether it is there
        if reply.code in (Code.PRECONDITION, Code.UNSTABLE, Code.INCARNATION, *_MISSING):
            return False
        if reply.code != Code.OK:
            raise Failure(REFUSALS.get(reply.code, "INTERNAL"))
        return True


def _batch(records: Sequence[Record], now_ms: int) -> Batch:
    payload = batches.build_batch([batches.Record(key, value, now_ms) for key, value in records])
    return Batch(Encoding.KAFKA, len(records), payload, crc32c(payload), record_time_ms_max=now_ms)
