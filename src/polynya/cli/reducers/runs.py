"""One run of a reducer on a stream: restore the newest snapshot, apply the records behind it,
publish the state.

A run is an ordinary client. It may be killed anywhere: what it has published is the beginning of
the next run, and the same records give the same bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, Protocol, Unpack

import msgspec

from polynya.base.limits import REDUCER_BATCH_BYTES
from polynya.base.offsets import format_token, parse_token
from polynya.cli.remote.client import REASON, Parts, stream_path, with_reason
from polynya.reducers.bindings import Binding
from polynya.reducers.envelope import parse_page
from polynya.reducers.reducer import Reducer, ReducerFault
from polynya.reducers.wasm.faults import NotInstalled

PUBLISH_SECONDS = 60.0  # a long run publishes in between: a worker that dies then loses no more
START = format_token(0, 0)  # refused if records are trimmed, which -1 would pass over
# refusals of a publish that another worker, or a changed reducer, explains
_OVERTAKEN = ("SNAPSHOT_OLDER", "SNAPSHOT_TOO_SOON", "REDUCER_REVISION", "REDUCER_STOPPED")
_FAULTS = ("SNAPSHOT_ORIGINS", "BODY_TOO_LARGE", "INVALID_JSON", "REDUCER_FAULT")
_OVERTAKEN_TOO = ("NO_REDUCER", "INCARNATION_MISMATCH", "NOT_FOUND", "GONE")


class Answer(Protocol):
    """A response of the server."""

    @property
    def status_code(self) -> int: ...

    @property
    def content(self) -> bytes: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def json(self) -> Any: ...


class Server(Protocol):
    """The server, as `cli.remote.client.Client` is one."""

    def send(self, method: str, path: str, **parts: Unpack[Parts]) -> Any:
        """Return the response with any status."""
        ...


class Bound(msgspec.Struct, frozen=True):
    """A reducer of the list, by its name."""

    name: str
    binding: Binding


class Outcome(msgspec.Struct, frozen=True):
    """The end of a run. `published`: the offset of the state; "": another worker was first, or
    there was nothing to do. `fault`: why the reducer cannot go on. `waits`: why the server could
    not answer; the stream is due again."""

    published: str = ""
    records: int = 0
    digest: str = ""
    fault: str = ""
    waits: str = ""
    is_new: bool = False


class Verified(msgspec.Struct, frozen=True):
    """A comparison of a published snapshot with what was computed again from `begin` on."""

    offset: str
    begin: str
    published: str  # digests
    computed: str


class Refused(Exception):
    """The server refused a request."""

    def __init__(self, answer: Answer) -> None:
        try:
            error = answer.json()["error"]
            self.code, message = str(error["code"]), str(error["message"])
        except (ValueError, KeyError, TypeError):
            self.code, message = "", f"the server responded {answer.status_code}"
        self.status = answer.status_code
        super().__init__(message)


class Run:
    """A run of a reducer on one stream. `make` makes the reducer of a binding, `now` is a clock."""

    def __init__(
        self,
        server: Server,
        bound: Bound,
        stream: str,
        make: Callable[[str, Binding], Reducer],
        now: Callable[[], float],
    ) -> None:
        self._server = server
        self._bound = bound
        self._path = stream_path(stream)
        self._make = make
        self._now = now
        self._incarnation = ""
        self._is_json = False
        self._newest = 0  # the record of the newest snapshot of this revision

    def go(self, since: int) -> Outcome:
        """Run once, up to the tail of now. `since`: the record of the newest snapshot when the run
        became due; another worker has run it if there is a newer one. Raises `Refused`, and what
        the server's `send` raises."""
        head = self._ask("HEAD", self._path)
        self._take_facts(head)
        end = _record_of(head.headers["stream-next-offset"])
        try:
            reducer = self._make(self._bound.name, self._bound.binding)
        except NotInstalled:
            raise
        except ReducerFault as fault:
            return Outcome(fault=str(fault))
        try:
            offset = self._restore(reducer)
            if self._newest > since:
                return Outcome()
            return self._reduce(reducer, offset, end)
        except NotInstalled:
            raise
        except ReducerFault as fault:
            return Outcome(fault=str(fault))
        except Refused as refused:
            if refused.code == "TRIMMED":
                return Outcome(fault="records were trimmed before the reducer had them")
            if refused.code == "KAFKA_BATCH_UNREADABLE":
                return Outcome(fault=str(refused))
            if refused.code in _OVERTAKEN_TOO:
                return Outcome()
            raise
        finally:
            reducer.close()

    def verify(self) -> Verified | None:
        """Compute the newest snapshot again, from the first record or else from the oldest older
        snapshot; None: there is nothing to compare. A difference is published, which the server
        refuses: it stops the reducer. Raises `Refused`, `ReducerFault`."""
        head = self._ask("HEAD", self._path)
        self._take_facts(head)
        listed = self._ask("GET", f"{self._path}/snapshots").json()["snapshots"]
        origin = self._bound.binding.origin(self._bound.name)
        own = [each for each in listed if each["origin"] == origin and not each["behind_trim"]]
        own.sort(key=lambda each: _record_of(each["offset"]))
        is_whole = _record_of(head.headers["stream-retained-offset"]) == 0
        if not own or (not is_whole and len(own) == 1):
            return None
        newest, base = own[-1], None if is_whole else own[0]
        reducer = self._make(self._bound.name, self._bound.binding)
        try:
            reducer.restore(None if base is None else self._body(base))
            offset = START if base is None else str(base["offset"])
            state = self._state_at(reducer, offset, _record_of(newest["offset"]))
            digest = f"sha-256={hashlib.sha256(state).hexdigest()}"
            if digest != newest["digest"]:
                answer = self._put(reducer, str(newest["offset"]), state)
                if answer.status_code >= 300 and Refused(answer).code == "REDUCER_FAULT":
                    return None  # the stream has lost records by compaction
        finally:
            reducer.close()
        return Verified(str(newest["offset"]), offset, newest["digest"], digest)

    def _state_at(self, reducer: Reducer, offset: str, end: int) -> bytes:
        with closing(self._pages(offset, end)) as pages:
            for body, _ in pages:
                found = parse_page(body, is_json=self._is_json)
                reducer.apply([each for each in found if each.record < end])
        return reducer.state()

    def _pages(self, offset: str, end: int) -> Generator[tuple[bytes, str]]:
        """Yield the pages from an offset to the record `end`, each with the offset behind it. The
        next one is fetched while the caller works on a page."""
        with ExitStack() as held:
            fetcher: ThreadPoolExecutor | None = None
            coming: Future[Answer] | None = None
            while _record_of(offset) < end:
                page = self._page(offset) if coming is None else coming.result()
                behind = str(page.headers["stream-next-offset"])
                if behind == offset:
                    return
                offset = behind
                if _record_of(offset) < end:
                    if fetcher is None:
                        fetcher = held.enter_context(ThreadPoolExecutor(1))
                    coming = fetcher.submit(self._page, offset)
                yield page.content, offset

    def _page(self, offset: str) -> Answer:
        query = f"?offset={offset}&record_view=records&max_bytes={REDUCER_BATCH_BYTES}"
        return self._ask("GET", self._path + query)

    def _take_facts(self, head: Answer) -> None:
        self._incarnation = head.headers["stream-incarnation"]
        self._is_json = _media_type(head.headers["content-type"]) == "application/json"

    def _restore(self, reducer: Reducer) -> str:
        """Restore the newest snapshot, and return where the records go on."""
        listed = self._ask("GET", f"{self._path}/snapshots").json()["snapshots"]
        name, origin = self._bound.name, self._bound.binding.origin(self._bound.name)
        usable = [
            each
            for each in listed
            if each["origin"].partition("@")[0] == name and not each["behind_trim"]
        ]
        own = [each for each in usable if each["origin"] == origin]
        if own:
            newest = max(own, key=lambda each: _record_of(each["offset"]))
            self._newest = _record_of(newest["offset"])
            reducer.restore(self._body(newest))
            return str(newest["offset"])
        if self._is_whole() or not usable:
            reducer.restore(None)
            return START
        newest = max(usable, key=lambda each: _record_of(each["offset"]))
        try:
            reducer.migrate(self._body(newest))
        except ReducerFault as fault:
            raise ReducerFault(
                "records of the first revision are trimmed, so a new one begins at the state of the "
                f"older one: {fault}"
            ) from None
        return str(newest["offset"])

    def _is_whole(self) -> bool:
        """Report whether no record is trimmed."""
        head = self._ask("HEAD", self._path)
        return _record_of(head.headers["stream-retained-offset"]) == 0

    def _body(self, snapshot: Mapping[str, Any]) -> bytes:
        path = f"{self._path}/snapshot/{snapshot['offset']}?origin={snapshot['origin']}"
        body = self._ask("GET", path).content
        if f"sha-256={hashlib.sha256(body).hexdigest()}" != snapshot["digest"]:
            raise ReducerFault(
                f"the snapshot at {snapshot['offset']} has another digest than the list says"
            )
        return body

    def _reduce(self, reducer: Reducer, offset: str, end: int) -> Outcome:
        """Apply the records up to the record `end`, and publish."""
        began, records = self._now(), 0
        done = Outcome()
        with closing(self._pages(offset, end)) as pages:
            for body, behind in pages:
                found = parse_page(body, is_json=self._is_json)
                reducer.apply(found)
                records, offset = records + len(found), behind
                if self._now() - began >= PUBLISH_SECONDS:
                    done = self._publish(reducer, offset, records)
                    if done.fault:
                        return done
                    began, records = self._now(), 0 if done.published else records
        return self._publish(reducer, offset, records) if records or not done.published else done

    def _publish(self, reducer: Reducer, offset: str, records: int) -> Outcome:
        if offset == START:
            return Outcome()
        state = reducer.state()
        answer = self._put(reducer, offset, state)
        if answer.status_code < 300:
            digest = hashlib.sha256(state).hexdigest()
            published_at = str(answer.headers["stream-snapshot-offset"])
            return Outcome(published_at, records, digest, is_new=answer.status_code == 201)
        refused = Refused(answer)
        if refused.code == "SNAPSHOT_CONFLICT":
            return Outcome(fault="nondeterministic: another state of the same records is published")
        if refused.code in _OVERTAKEN or refused.code in _OVERTAKEN_TOO:
            return Outcome()
        if refused.code in _FAULTS:
            return Outcome(fault=str(refused))
        raise refused

    def _put(self, reducer: Reducer, offset: str, state: bytes) -> Answer:
        headers = {
            "content-type": reducer.content_type,
            "stream-incarnation": self._incarnation,
            "stream-snapshot-origin": self._bound.binding.origin(self._bound.name),
        }
        path = f"{self._path}/snapshot/{offset}"
        answer: Answer = self._server.send("PUT", path, headers=headers, content=state)
        return answer

    def _ask(self, method: str, path: str) -> Answer:
        answer: Answer = self._server.send(method, path)
        if answer.status_code >= 300:
            ask = partial(self._server.send, "GET", path, params=REASON)
            raise Refused(with_reason(method, answer, ask))
        return answer


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _record_of(offset: str) -> int:
    found = parse_token(offset)
    return -1 if found is None else found[0]
