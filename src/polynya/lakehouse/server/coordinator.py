"""The driver's client of the server: fetch plans, commit the pointer move, abandon jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from polynya.base.errors import OutcomeUnknown, PolynyaError, Unavailable
from polynya.base.limits import RANGES_STREAMS_MAX, TABLE_REST_MS_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.lakehouse.jobs.plan import JobPlan, Range, TableRef
from polynya.lakehouse.payloads.registry import NODE_PATH, SchemaReader
from polynya.lakehouse.server.admin_port import far_refusal, near_admin
from polynya.lakehouse.server.leases import Leased
from polynya.wire.tables import AbandonRequest, CommitRequest, FailedRange, FailRequest, StoreRef

T = TypeVar("T")
_PLAN_SECONDS = 120.0  # the server flushes first
_CALL_SECONDS = 30.0
_LEASE_SECONDS = 5.0  # a driver that stops waits for it
_COMMIT_TRIES = 6
_PLAN_TRIES = 6
# before the first retry; doubles from then on, because a server may be restarting
_RETRY_SECONDS = 0.5
FAILED_MAX = 1000  # ranges in one report; the next job reports the others
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class NoSuchTable(PolynyaError):
    """The server has no such table."""


class Coordinator(Protocol):
    """The coordination interface of a driver. Calls block, and each is idempotent."""

    def tables(self) -> list[TableRef]:
        """Return all tables. Raises Unavailable."""
        ...

    def plan(self, name: str, *, merge: bool = False) -> JobPlan | None:
        """Return the open job's plan or a new one, or None if nothing is to do. With `merge` a new
        one has no ranges: its job merges files. Raises NoSuchTable, Unavailable."""
        ...

    def commit(self, name: str, request: CommitRequest) -> TableRef:
        """Return the table after the commit, which may be another driver's (see `result`). Raises
        NoSuchTable, OutcomeUnknown."""
        ...

    def abandon(
        self, name: str, uid: str, job: int, reason: str, *, failed: bool = False
    ) -> TableRef:
        """Release the job's ranges unless it was committed. If it `failed`, users see the reason.
        Raises NoSuchTable, Unavailable."""
        ...

    def ranges(self, streams: Sequence[tuple[str, int]]) -> list[StreamRanges | None]:
        """Return where the records of streams lie, from a record of each on, after a flush. None:
        there is no such stream. Raises Unavailable."""
        ...

    def schemas(self, url: str) -> SchemaReader:
        """Return the reader of the schema registry at a URL; "": the server's own."""
        ...

    def aside(self, name: str) -> set[tuple[int, int]]:
        """Return the ranges that are set aside: (uid, record). Raises NoSuchTable, Unavailable."""
        ...

    def reasons_aside(self, name: str) -> list[str]:
        """Return why ranges are set aside. Raises NoSuchTable, Unavailable."""
        ...

    def retry(self, name: str) -> None:
        """Put the ranges that are set aside into the next job. Raises NoSuchTable, Unavailable."""
        ...

    def fail(self, name: str, uid: str, job: int, ranges: list[FailedRange]) -> TableRef:
        """Count failures of the job's ranges, and abandon it. Raises NoSuchTable, Unavailable."""
        ...


class _Tables(msgspec.Struct):
    tables: list[TableRef]


class _Ports(msgspec.Struct):
    admin: int


class _Node(msgspec.Struct):
    ports: _Ports
    admin_tls: bool = False
    admin_near: bool = False
    start: str = ""


class _Failure(msgspec.Struct):
    state: str
    uid: int
    record: int
    reason: str = ""


class _Failures(msgspec.Struct):
    failures: list[_Failure]


class StreamRanges(msgspec.Struct, frozen=True):
    """The slices of a stream in the object store, from a record on."""

    name: str
    uid: str
    first: int  # first retained record
    next: int
    own: int  # first record that is not inherited from a fork's source
    ranges: list[Range]
    end: int  # the ranges have all stored records up to here


class Checked(msgspec.Struct, frozen=True):
    """The input of a dry run: the table as it would be, and the streams that it covers."""

    table: TableRef
    store: StoreRef
    streams: list[str]
    more: bool = False


class _Ranges(msgspec.Struct):
    streams: list[StreamRanges | None]


class _State(msgspec.Struct):
    table: TableRef


class HttpCoordinator:
    """The client of the server's admin port (plans and commits) and base port (the list of tables).

    Without `admin_url`, the base port is asked for it, and again after each failure: a restarted
    server may have another one. With the name of a `worker`, a plan takes the table's lease.
    """

    def __init__(
        self,
        admin_url: str,
        base_url: str,
        client: httpx.Client | None = None,
        *,
        worker: str = "",
    ) -> None:
        self._worker = worker
        self._leased: set[str] = set()
        self._admin = admin_url.rstrip("/")
        self._admin_is_given = bool(self._admin)
        self._registries: dict[str, SchemaReader] = {}
        self._base = base_url.rstrip("/")
        # A proxy from the environment cannot reach this machine's loopback.
        self._client = client or httpx.Client(
            timeout=_CALL_SECONDS, trust_env=httpx.URL(self._base).host not in _LOOPBACK
        )

    def tables(self) -> list[TableRef]:
        return _decoded(
            self._call("GET", f"{self._base}/v1/tables"), _Tables, "list of tables"
        ).tables

    def plan(self, name: str, *, merge: bool = False) -> JobPlan | None:
        """Fetch a plan. Retry on 409, when another planner took over the job: its plan is then
        returned. Raises Leased if another worker syncs the table."""
        body = {"cores": os.cpu_count() or 1, "merge": merge}
        for number in range(_PLAN_TRIES):
            if number:
                time.sleep(_RETRY_SECONDS)
            answer = self._call(
                "POST",
                self._url(name, "plan"),
                body | ({"worker": self._worker} if self._worker else {}),
                _PLAN_SECONDS,
                allowed=(200, 204, 409),
            )
            if answer.status_code == 200:
                self._leased.update([name] if self._worker else [])
                return _decoded(answer, JobPlan, "plan")
            if answer.status_code == 204:
                return None
            if _code(answer) == "TABLE_LEASED":
                raise Leased(_message_of(answer))
        raise PolynyaError(f"{answer.url} answered 409: {_message_of(answer)}")

    def commit(self, name: str, request: CommitRequest) -> TableRef:
        fault: Unavailable | None = None
        for number in range(_COMMIT_TRIES):
            if number:
                time.sleep(_RETRY_SECONDS * 2 ** (number - 1))
            try:
                return self._state(
                    self._call("POST", self._url(name, "commit"), request, allowed=(200, 409))
                )
            except Unavailable as failed:
                fault = failed
        raise OutcomeUnknown(
            f"the commit of job {request.job} of '{name}' may or may not have been applied: "
            f"{fault}. Run it again"
        ) from fault

    def extend_leases(self) -> None:
        for name in list(self._leased):
            self._lease(name, {})

    def release_lease(self, name: str, rest_seconds: float) -> None:
        if name in self._leased:
            self._leased.discard(name)
            self._lease(name, {"rest_ms": min(TABLE_REST_MS_MAX, int(rest_seconds * 1000))})

    def release_leases(self) -> None:
        for name in list(self._leased):
            self.release_lease(name, 0.0)

    def _lease(self, name: str, change: dict[str, int]) -> None:
        """Change a lease. One that cannot be changed ends in time; servers of earlier releases have
        none."""
        with suppress(PolynyaError):
            body = {"worker": self._worker, **change}
            self._call("POST", self._url(name, "lease"), body, _LEASE_SECONDS)

    def ranges(self, streams: Sequence[tuple[str, int]]) -> list[StreamRanges | None]:
        found: list[StreamRanges | None] = []
        for at in range(0, len(streams), RANGES_STREAMS_MAX):
            part = streams[at : at + RANGES_STREAMS_MAX]
            body = {"streams": [{"name": name, "first": first} for name, first in part]}
            answer = self._call(
                "POST", f"{self._base}/v1/ranges", {**body, "flush": True}, _PLAN_SECONDS
            )
            found += _decoded(answer, _Ranges, "list of ranges").streams
        return found

    def schemas(self, url: str) -> SchemaReader:
        if url not in self._registries:  # another registry does not get the server's token
            own = (f"{self._base}{NODE_PATH}", self._client)
            self._registries[url] = SchemaReader(url) if url else SchemaReader(*own)
        return self._registries[url]

    def derive(
        self, name: str, reads: Mapping[str, str], transform: str, partitions: Sequence[str]
    ) -> bytes:
        """Create a derived table that reads the streams of a "prefix", or a "table". Return the
        server's answer. Raises PolynyaError."""
        body = {**reads, "transform": transform, "partitions": list(partitions)}
        return self._call("POST", self._url(name, "derive"), body, allowed=(200, 201)).content

    def check(self, name: str, wanted: dict[str, Any]) -> Checked:
        """Return what a dry run of a definition needs. Raises PolynyaError."""
        answer = self._call("POST", self._url(name, "check"), wanted)
        return _decoded(answer, Checked, "answer to a dry run")

    def abandon(
        self, name: str, uid: str, job: int, reason: str, *, failed: bool = False
    ) -> TableRef:
        body = AbandonRequest(uid, job, reason, failed)
        return self._state(self._call("POST", self._url(name, "abandon"), body, allowed=(200, 409)))

    def aside(self, name: str) -> set[tuple[int, int]]:
        return {(each.uid, each.record) for each in self._failures_aside(name)}

    def reasons_aside(self, name: str) -> list[str]:
        return [each.reason for each in self._failures_aside(name)]

    def retry(self, name: str) -> None:
        self._call("POST", f"{self._base}/v1/tables/{quote(name, safe='')}/retry")

    def _failures_aside(self, name: str) -> list[_Failure]:
        answer = self._call("GET", f"{self._base}/v1/tables/{quote(name, safe='')}/failures")
        found = _decoded(answer, _Failures, "list of failures").failures
        return [each for each in found if each.state == "aside"]

    def fail(self, name: str, uid: str, job: int, ranges: list[FailedRange]) -> TableRef:
        body = FailRequest(uid, job, ranges[:FAILED_MAX])
        return self._state(self._call("POST", self._url(name, "fail"), body))

    def close(self) -> None:
        self._client.close()

    def _url(self, name: str, verb: str) -> str:
        if not self._admin:
            reply = _decoded(
                self._call("GET", f"{self._base}/v1/node"), _Node, "description of a node"
            )
            scheme = "https" if reply.admin_tls else "http"
            # the same host
            admin = httpx.URL(self._base).copy_with(scheme=scheme, port=reply.ports.admin)
            if reply.admin_near and admin.host not in _LOOPBACK:
                admin = httpx.URL(near_admin(reply.ports.admin, reply.start))
            if not admin.host:
                raise Unavailable(far_refusal(self._base))
            self._admin = str(admin).rstrip("/")
        return f"{self._admin}/v1/admin/tables/{quote(name, safe='')}/{verb}"

    def _state(self, answer: httpx.Response) -> TableRef:
        return _decoded(answer, _State, "state of a table").table

    def _call(
        self,
        method: str,
        url: str,
        body: object = None,
        seconds: float = _CALL_SECONDS,
        *,
        allowed: tuple[int, ...] = (200, 204),
    ) -> httpx.Response:
        content = None if body is None else msgspec.json.encode(body)
        try:
            answer = self._client.request(
                method,
                url,
                content=content,
                timeout=seconds,
                headers={"content-type": "application/json"} if content else {},
            )
        except httpx.TransportError as fault:
            if not self._admin_is_given:
                self._admin = ""
            raise Unavailable(
                f"no response from {url}: {fault}. Is the server running there?"
            ) from fault
        if answer.status_code in allowed:
            return answer
        reply = _message_of(answer)
        if answer.status_code == 404:
            raise NoSuchTable(reply)
        if answer.status_code >= 500 or answer.status_code in (408, 429):
            raise Unavailable(f"{url} answered {answer.status_code}: {reply}")
        # an error of Polynya is a whole sentence; any other is a proxy's, or another server's
        raise PolynyaError(
            reply if _code(answer) else f"{url} answered {answer.status_code}: {reply}"
        )


def _decoded(answer: httpx.Response, shape: type[T], what: str) -> T:
    try:
        return msgspec.json.decode(answer.content, type=shape)
    except UNREADABLE as fault:
        raise PolynyaError(
            f"{answer.url} returned an invalid {what}: {fault}. Are driver and server of the same "
            "release?"
        ) from None


def _code(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def _message_of(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:300]
