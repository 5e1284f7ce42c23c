"""The interface that a node offers to its fronts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from polynya.local.api import (
    Page,
    ReadQuery,
    Refusal,
    Sink,
    StreamInfo,
    Trimmed,
    TrimQuery,
)
from polynya.routing.handle import StreamHandle
from polynya.service.reducers.registry import Reducers
from polynya.service.settings.bucket_profiles import BucketProfiles
from polynya.stream.command import Command
from polynya.stream.parts import Retention
from polynya.stream.replies import Reply


class Service(Protocol):
    """The service of one core process."""

    @property
    def hint(self) -> Callable[[str, str], str] | None:
        """Return the URL of the node to use for a stream, for clients that route. "": this node, or
        none is known. The second argument is the client's zone. None outside a cluster."""
        ...

    @property
    def bucket_profiles(self) -> BucketProfiles:
        """The default profiles of buckets, as this core knows them."""
        ...

    @property
    def reducers(self) -> Reducers:
        """The reducers, as this core knows them."""
        ...

    @property
    def level(self) -> int:
        """The feature level that all nodes support, as far as this core knows. The leader of a group
        decides whether the group has it."""
        ...

    @property
    def history(self) -> int:
        """The history of the cluster; see `StreamInfo`."""
        ...

    def now_ms(self) -> int:
        """Return the log time that stamps commands."""
        ...

    async def info(self, name: str, *, local: bool = False) -> StreamInfo | Refusal:
        """Return facts that reflect every append acknowledged before the call. `local`: return this
        node's state without contacting the leader."""
        ...

    def open(self, name: str) -> StreamHandle:
        """Return the handle of a stream, whether it exists or not, to be kept by the caller: the
        way to propose to it and to follow it."""
        ...

    def group_of(self, name: str) -> int:
        """Return the group of a stream."""
        ...

    def expect_diskless(self, name: str) -> None:
        """Expect appends of a stream that is diskless. If it is not, they only take longer."""
        ...

    def is_readable(self, group: int) -> bool:
        """Report whether this core may answer reads of the group now, without other nodes."""
        ...

    def read_nowait(self, query: ReadQuery) -> Page | Refusal | None:
        """Return a page if all of it is local and in memory; None: call `read`."""
        ...

    async def read(self, query: ReadQuery) -> Page | Refusal: ...

    def detach(self, uid: int, sink: Sink) -> None: ...

    async def fork(
        self, command: Command, source: str, record: int, byte: int, sub_offset: int
    ) -> Reply:
        """Create a stream from `command` (a `Create` without `fork`) as a fork of `source`.
        `record` -1 is the source's tail. See `polynya.local.forks`."""
        ...

    async def list_streams(
        self,
        prefix: str,
        after: str,
        limit: int,
        *,
        local: bool = False,
        attributes: bool = False,
    ) -> list[StreamInfo]: ...

    async def trim(self, query: TrimQuery) -> Trimmed | Refusal:
        """Delete the records before a position."""
        ...

    async def buckets(self) -> dict[str, Retention]:
        """Return the retention of each bucket that has one."""
        ...

    async def set_bucket(self, bucket: str, retention: Retention | None) -> None:
        """Set the retention of a bucket; None removes it."""
        ...
