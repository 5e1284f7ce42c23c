"""Pages of a stream as the verbs get them: a read's answers one after the other, or what a live connection brings."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping

import msgspec

from polynya.base.offsets import format_token, parse_token
from polynya.cli import exits
from polynya.cli.client import Client, is_json, stream_path
from polynya.cli.sse import events

SILENCE_SECONDS = 60.0  # the server sends something (a comment at least) more often than this
RETRY_PAUSE_SECONDS = 0.2
RETRY_PAUSE_SECONDS_MAX = 5.0


class Page(msgspec.Struct):
    """One answer to a read, or one event of a tail. JSON streams have `records`, the exact bytes of each; others have `body`."""

    offset: str  # after it
    content_type: str
    body: bytes
    up_to_date: bool
    closed: bool
    records: list[msgspec.Raw] = []

    def __post_init__(self) -> None:
        if is_json(self.content_type):
            self.records = msgspec.json.decode(self.body, type=list[msgspec.Raw]) if self.body else []
            self.body = b""

    @property
    def first_record(self) -> int:
        """The number of the first of `records`."""
        token = parse_token(self.offset)
        return token[0] - len(self.records) if token else 0

    def add(self, body: bytes) -> None:
        """What another data event before the same control event brings."""
        if is_json(self.content_type):
            self.records = self.records + msgspec.json.decode(body, type=list[msgspec.Raw])
        else:
            self.body += body

    def cut(self, count: int) -> None:
        """Keep the first `count` records; the offset moves back to the boundary after them."""
        dropped = self.records[count:]
        token = parse_token(self.offset)
        if dropped and token is not None and token[0] >= len(dropped):
            record, byte = token
            self.offset = format_token(record - len(dropped), byte - sum(len(bytes(raw).strip()) + 1 for raw in dropped))
        if dropped:
            self.records = self.records[:count]
            self.up_to_date = self.closed = False


def pages(client: Client, stream: str, begin: Mapping[str, str]) -> Iterator[Page]:
    """A stream from where the parameters in `begin` say, page by page, up to its end. Raises `exits.Ended`."""
    where = dict(begin)
    while True:
        answer = client.call("GET", stream_path(stream), params=where, stream=stream)
        headers = answer.headers
        page = Page(
            offset=headers["stream-next-offset"],
            content_type=headers.get("content-type", ""),
            body=answer.content,
            up_to_date=headers.get("stream-up-to-date", "").lower() == "true",
            closed=headers.get("stream-closed", "").lower() == "true",
        )
        where = {"offset": page.offset}
        ended = page.up_to_date
        yield page
        if ended:
            return


def follow(client: Client, stream: str, content_type: str, offset: str, *, retry_seconds: float) -> Iterator[Page]:
    """Appends to a stream, from `offset` until it is closed, over as many connections as it takes.

    Raises `exits.Refused` when the stream is gone, `exits.Unreachable` when no server was found for `retry_seconds`.
    """
    import httpx

    deadline = time.monotonic() + retry_seconds
    pause = RETRY_PAUSE_SECONDS
    while True:
        failure: exits.Ended | None = None
        try:
            for page in _connection(client, stream, content_type, offset):
                deadline, pause = time.monotonic() + retry_seconds, RETRY_PAUSE_SECONDS
                offset = page.offset
                if page.body or page.records:
                    yield page
                if page.closed:
                    return
        except httpx.TransportError as error:
            failure = client.failed(error, applied=False)
        except exits.Unreachable as unreachable:
            failure = unreachable
        if failure is not None:
            if time.monotonic() + pause > deadline:
                failure.hint = f"Go on with: polynya tail {stream} --offset {offset}"
                raise failure
            time.sleep(pause)
            pause = min(2 * pause, RETRY_PAUSE_SECONDS_MAX)


def _connection(client: Client, stream: str, content_type: str, offset: str) -> Iterator[Page]:
    """One SSE answer: each data event joined with the control event after it."""
    params = {"offset": offset, "live": "sse"}
    with client.streamed(stream_path(stream), params=params, headers={"accept": "text/event-stream"}, seconds=SILENCE_SECONDS) as answer:
        if not answer.is_success:
            answer.read()
            raise client.refused(answer, stream=stream)
        encoded = answer.headers.get("stream-sse-data-encoding", "").lower() == "base64"
        bodies: list[bytes] = []
        for event in events(answer.iter_raw()):
            if event.name == "data":
                bodies.append(base64.b64decode(event.data) if encoded else event.data.encode())
            elif event.name == "control":
                control = msgspec.json.decode(event.data)
                up_to_date, closed = bool(control.get("upToDate")), bool(control.get("streamClosed"))
                first = bodies[0] if bodies else b""
                page = Page(offset=control["streamNextOffset"], content_type=content_type, body=first, up_to_date=up_to_date, closed=closed)
                for body in bodies[1:]:
                    page.add(body)
                yield page
                bodies = []
