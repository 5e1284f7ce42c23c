"""Live readers of streams on another core: two cores share one subscription per stream, however
many readers there are."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from copy import copy
from typing import Protocol

import msgspec
from msgspec import structs

from polynya.base.errors import Unavailable
from polynya.base.histogram import Histogram
from polynya.local.api import LiveEvent, Refusal, Sink, StreamInfo
from polynya.local.feeds import Feeds
from polynya.local.local import LocalGroups
from polynya.routing import messages

_EVENT: msgspec.msgpack.Decoder[LiveEvent] = msgspec.msgpack.Decoder(LiveEvent)


class RemoteTail(Protocol):
    def cancel(self) -> None: ...


class TailPush(Protocol):
    on_cancel: Callable[[], object]

    def item(self, body: bytes) -> None: ...
    def end(self, error: BaseException | None = None) -> None: ...


class TailTransport(Protocol):
    def on_stream(self, kind: int, handler: Callable[[bytes, TailPush, int], None]) -> None: ...
    def subscribe(
        self,
        core: int,
        kind: int,
        body: bytes,
        on_item: Callable[[bytes], None],
        on_end: Callable[[BaseException | None], None],
    ) -> RemoteTail: ...


class _Tail:
    """One subscription. Its first item is the facts, the others are events."""

    __slots__ = ("info", "subscription", "waiting")

    def __init__(self) -> None:
        self.info: StreamInfo | None = None
        self.subscription: RemoteTail | None = None
        self.waiting: list[tuple[asyncio.Future[StreamInfo | Refusal], Sink]] = []


class RemoteTails:
    """The subscriptions of this core to tails on other cores."""

    def __init__(
        self,
        transport: TailTransport,
        seconds: Histogram | None = None,
        *,
        local: bool = False,
        numbers: bool = False,
    ) -> None:
        """Create the subscriptions. `local`: the other core attaches with its own state, without
        contacting the leader. `numbers`: the events carry no payload. `seconds`: of deliveries."""
        self._transport = transport
        self._local = local
        self._numbers = numbers
        self._tails: dict[str, _Tail] = {}
        self._names: dict[int, str] = {}
        self._feeds = Feeds(seconds)

    async def attach(self, core: int, group: int, name: str, sink: Sink) -> StreamInfo | Refusal:
        """Deliver every event after the returned tail to `sink`. That tail may be stale: read up to
        the present one."""
        tail = self._tails.get(name)
        if tail is not None and tail.info is not None:
            self._feeds.attach(tail.info.uid, sink)
            return copy(tail.info)  # the tail's own facts change with each event
        future: asyncio.Future[StreamInfo | Refusal] = asyncio.get_running_loop().create_future()
        if tail is None:
            tail = self._tails[name] = _Tail()
            tail.waiting.append((future, sink))
            body = messages.encode(messages.Attach(group, name, self._local, self._numbers))
            try:
                tail.subscription = self._transport.subscribe(
                    core,
                    messages.ATTACH,
                    body,
                    lambda item: self._item(name, tail, item),
                    lambda error: self._ended(name, tail, error),
                )
            except BaseException:  # no callback will follow
                self._forget(name, tail)
                raise
        else:
            tail.waiting.append((future, sink))
        try:
            return await future
        except asyncio.CancelledError:  # the client disconnected, perhaps after the attach
            if (
                future.done()
                and not future.cancelled()
                and future.exception() is None
                and isinstance(found := future.result(), StreamInfo)
            ):
                self.detach(found.uid, sink)
            raise

    def detach(self, uid: int, sink: Sink) -> None:
        self._feeds.detach(uid, sink)
        self._leave_unwatched(uid)

    def _leave_unwatched(self, uid: int) -> None:
        name = self._names.get(uid)
        if name is not None and not self._feeds.watched(uid):
            tail = self._tails[name]
            assert tail.subscription is not None
            tail.subscription.cancel()
            self._forget(name, tail)

    def _item(self, name: str, tail: _Tail, item: bytes) -> None:
        if tail.info is None:
            self._opened(name, tail, messages.decode(messages.ATTACH, item))
            return
        event = _EVENT.decode(item)
        if event.unstable:
            tail.info.high = event.record
        else:
            tail.info.record, tail.info.byte = event.record, event.byte
            tail.info.closed = tail.info.closed or event.closed
        if event.gone:
            self._forget(name, tail)
        self._feeds.publish(event)

    def _opened(self, name: str, tail: _Tail, found: StreamInfo | Refusal) -> None:
        waiting, tail.waiting = tail.waiting, []
        if isinstance(found, Refusal):
            self._forget(name, tail)
        else:
            tail.info = found
            self._names[found.uid] = name
        for future, sink in waiting:
            if not future.done():  # else its client has disconnected
                if isinstance(found, StreamInfo):
                    self._feeds.attach(found.uid, sink)
                future.set_result(copy(found))
        if isinstance(found, StreamInfo):
            self._leave_unwatched(found.uid)

    def _ended(self, name: str, tail: _Tail, error: BaseException | None) -> None:
        self._forget(name, tail)
        for future, _ in tail.waiting:
            if not future.done():
                future.set_exception(
                    error or Unavailable("the stream's core ended the subscription; retry")
                )
        if tail.info is not None:
            self._feeds.cut(tail.info.uid)

    def _forget(self, name: str, tail: _Tail) -> None:
        if self._tails.get(name) is tail:
            del self._tails[name]
        if tail.info is not None:
            self._names.pop(tail.info.uid, None)


class _PushSink:
    """The sink for all live readers of one stream on another core. For tail watches it takes
    uncommitted records, too, and that core withholds them from those that want none."""

    __slots__ = ("_count", "_numbers", "_push", "uncommitted")

    def __init__(self, push: TailPush, count: Callable[[int], None], *, numbers: bool) -> None:
        self._push, self._count = push, count
        self._numbers = self.uncommitted = numbers

    def live(self, event: LiveEvent) -> None:
        if self._numbers:
            event = structs.replace(event, payload=b"", frames={})
        elif event.payload:
            self._count(len(event.payload))
        self._push.item(messages.encode(event))
        if event.gone or event.cut:
            self._push.end()


def serve_tails(
    transport: TailTransport, local: LocalGroups, payload: defaultdict[int, int]
) -> None:
    """Serve the subscriptions of other cores to the streams of this one. `payload` counts the bytes
    of records sent to each."""

    waiting: set[asyncio.Task[None]] = set()

    def attach(question: messages.Attach, push: TailPush, peer: int) -> None:
        def count(size: int) -> None:
            payload[peer] += size

        sink = _PushSink(push, count, numbers=question.numbers)
        found = local.streams.attach(question.group, question.name, sink, local=question.local)
        if isinstance(found, StreamInfo):
            uid = found.uid
            # before the first item, which may exceed the limit and cancel
            push.on_cancel = lambda: local.streams.detach(uid, sink)
        push.item(messages.encode(found))
        if isinstance(found, Refusal):
            push.end()

    async def attach_later(question: messages.Attach, push: TailPush, peer: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        push.on_cancel = task.cancel
        try:
            await local.prepare(question.group, local=question.local)
            attach(question, push, peer)
        except Exception as fault:  # the calling core raises it again
            push.end(fault)

    def subscribed(body: bytes, push: TailPush, peer: int) -> None:
        question = msgspec.msgpack.decode(body, type=messages.Attach)
        if local.fit(question.group) if question.local else local.readable(question.group):
            attach(question, push, peer)
        else:
            task = asyncio.get_running_loop().create_task(attach_later(question, push, peer))
            waiting.add(task)
            task.add_done_callback(waiting.discard)

    transport.on_stream(messages.ATTACH, subscribed)
