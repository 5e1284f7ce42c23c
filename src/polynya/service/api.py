"""What fronts may ask of a node, and the shapes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from polynya.stream.commands import Command, Retention
from polynya.stream.replies import Reply
from polynya.stream.state.model import Stream


class Facts(msgspec.Struct, gc=False, array_like=True, tag=1):
    """What is known of a stream at one moment: the matter of HEAD and of every header."""

    uid: int
    name: str  # canonical
    content_type: str
    encoding: int
    created_ms: int
    record: int  # tail: next record …
    byte: int  # … and byte position
    first_record: int = 0  # first kept
    first_byte: int = 0
    closed: bool = False
    ttl_seconds: int | None = None
    expires_at_ms: int | None = None
    history: int = 0  # the cluster's; (uid, history) goes into ETags and SSE ids
    retention: Retention | None = None  # the stream's own
    stream_seq: str | None = None  # the last `Stream-Seq`
    known: bool = True  # all that was acknowledged is in them; a local read of a replica cannot tell


def facts_of(stream: Stream, history: int = 0, *, known: bool = True) -> Facts:
    """`Facts` of it as it is now."""
    return Facts(
        stream.uid,
        stream.name,
        stream.content_type,
        stream.encoding,
        stream.created_ms,
        stream.next_record,
        stream.next_byte,
        stream.first_record,
        stream.first_byte,
        stream.closed,
        stream.ttl_seconds,
        stream.expires_at_ms,
        history,
        None if stream.front is None else stream.front.retention,
        stream.stream_seq,
        known,
    )


class Position:
    """Special values of `ReadQuery.record`."""

    START = -1  # the first kept record
    NOW = -2  # the tail
    AT_BYTE = -3  # `byte` is a bare byte position (Ursula's spelling)
    AT_TIME = -4  # `byte` is a time in ms: the first kept record that was appended then or later, or the tail


class ReadQuery(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A catch-up read. `record`, `byte` are an offset token, or `record` is a `Position`."""

    name: str
    record: int = Position.START
    byte: int = 0
    bytes_max: int = 4 << 20
    touch: bool = True  # extends a sliding TTL
    whole_records: bool = False  # raw streams too: for SSE
    beyond_tail_waits: bool = False  # a larger record number than the tail's: an empty page at the tail instead of a refusal
    local: bool = False  # what this node has, without asking the leader


class Span(msgspec.Struct, gc=False, array_like=True):
    """A run of stored payload in a page, batch by batch or in larger pieces: `payload` is as stored (JSON records end with a comma)."""

    record: int
    byte: int
    payload: bytes  # or a memoryview of one


class Page(msgspec.Struct, gc=False, array_like=True, tag=3):
    """What a read found. `spans` are contiguous from (`begin_record`, `begin_byte`) to (`record`, `byte`)."""

    facts: Facts
    spans: list[Span]
    begin_record: int
    begin_byte: int
    record: int
    byte: int
    up_to_date: bool  # the page reaches the tail, as far as it is here

    @property
    def has_all(self) -> bool:
        """There is nothing more, anywhere: what `Stream-Up-To-Date` says. A closed stream gets no longer."""
        return self.up_to_date and (self.facts.known or self.facts.closed)

    @property
    def closed(self) -> bool:
        """Closed, and this page reaches the final offset."""
        return self.up_to_date and self.facts.closed


class Refusal(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """A read's deterministic no: `code` of `polynya.stream.replies.Code`, and the token that helps (tail, or first kept record)."""

    code: int
    record: int = 0
    byte: int = 0
    message: str = ""


class TrimQuery(msgspec.Struct, frozen=True, gc=False):
    """Where a stream's front is to be: at an offset token or `Position` (of AT_BYTE and an inner byte, the record that holds it), or so
    that at least the newest `keep_bytes` stay."""

    name: str
    record: int = Position.START
    byte: int = 0
    keep_bytes: int | None = None
    incarnation: int = 0  # precondition: the stream's uid; 0 none


class Trimmed(msgspec.Struct, frozen=True, gc=False):
    """Where it is now, and what was forgotten for that."""

    uid: int
    record: int
    byte: int
    records: int = 0
    bytes: int = 0


class LiveEvent(msgspec.Struct, gc=False, array_like=True):
    """One append (or close, or delete) as live readers see it. `frames` caches what fronts encode once for all subscribers."""

    uid: int
    begin_record: int
    begin_byte: int
    record: int  # after it
    byte: int
    encoding: int
    payload: bytes  # b"" for a bare close
    closed: bool = False
    gone: bool = False  # deleted or expired: no more will come
    cut: bool = False  # the feed broke (another core went away): end the answer so that the client resumes
    frames: dict[str, bytes] = {}  # noqa: RUF012 (msgspec copies mutable defaults)
    known: bool = True  # nothing acknowledged follows, at this moment; a replica that does not lead cannot tell


class Sink(Protocol):
    """A live subscriber. Called on the loop, must not block, must bound what it keeps."""

    def live(self, event: LiveEvent) -> None: ...


class Service(Protocol):
    """The waist itself, one per core process."""

    @property
    def hint(self) -> Callable[[str], str] | None:
        """In a cluster: the URL of the node that leads a stream's group, for smart clients; "" when that is this one, or nobody knows."""
        ...

    def now_ms(self) -> int:
        """The log time that commands are stamped with."""
        ...

    def facts_nowait(self, name: str) -> Facts | Refusal | None:
        """Facts when the stream's group is here and no create or delete of the name is in flight; None: ask `facts`."""
        ...

    async def facts(self, name: str, *, local: bool = False) -> Facts | Refusal:
        """All that was acknowledged before the call is in them; `local`: what this node has, without asking the leader."""
        ...

    def propose(self, name: str, command: Command, done: Callable[[Reply | BaseException], None]) -> None:
        """Put a command of this stream through its group's log; `done` is called on the loop with the reply, or with Unavailable
        (nothing was applied) or OutcomeUnknown. Refusals decidable at once may call `done` before this returns."""
        ...

    def read_nowait(self, query: ReadQuery) -> Page | Refusal | None:
        """A page when all of it is here and hot; None: ask `read`."""
        ...

    async def read(self, query: ReadQuery) -> Page | Refusal: ...

    async def attach(self, name: str, sink: Sink, *, local: bool = False) -> Facts | Refusal:
        """From now on `sink` gets every event after the returned tail, in order. Attach first, then read up to it, then go live.
        `local`: as in `facts`."""
        ...

    def detach(self, uid: int, sink: Sink) -> None: ...

    async def fork(self, command: Command, source: str, record: int, byte: int, sub_offset: int) -> Reply:
        """Create `command` (a `Create` without `fork`) as a fork; `record` -1 is the source's tail. The whole dance of F17."""
        ...

    async def list_streams(self, prefix: str, after: str, limit: int, *, local: bool = False) -> list[Facts]: ...

    async def trim(self, query: TrimQuery) -> Trimmed | Refusal:
        """Forget what lies before a position."""
        ...

    async def buckets(self) -> dict[str, Retention]:
        """The retention of the buckets that have one."""
        ...

    async def set_bucket(self, bucket: str, retention: Retention | None) -> None:
        """Give a bucket a retention, or take it away."""
        ...
