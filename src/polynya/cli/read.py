"""`polynya read` and `polynya tail`: what a stream holds, and what comes."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from typing import Any

import click
import httpx
import msgspec

from polynya.base.offsets import format_token, parse_token
from polynya.cli import exits, output
from polynya.cli.client import Client, is_json, server_option, stream_path
from polynya.cli.completing import complete_stream
from polynya.cli.sse import events
from polynya.cli.streams import facts_of
from polynya.cli.values import SECONDS, offset_of

SILENCE_SECONDS = 60.0  # the server sends something (a comment at least) more often than this
RETRY_PAUSE_SECONDS = 0.2
RETRY_PAUSE_SECONDS_MAX = 5.0
_OFFSET = "An offset that a read gave, 'start' or 'now'."

limit_option = click.option("--limit", metavar="N", type=click.IntRange(1), help="Stop after so many records (JSON streams).")


@click.command("read")
@click.argument("stream", shell_complete=complete_stream)
@click.option("--offset", metavar="OFFSET", default="start", show_default=True, help=_OFFSET)
@limit_option
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object for each page: offset, records (or text, or base64), up_to_date, closed."
)
@server_option
def read_command(client: Client, stream: str, offset: str, limit: int | None, as_json: bool) -> None:
    """Print what STREAM holds from an offset to its end: records one a line, other content as it is.

    The offset to go on from is said on stderr.

    \b
    polynya read orders | jq .item
    polynya read orders --offset 0000000000000120_0000000000004711 --limit 10
    """
    at = offset_of(offset)
    left = limit
    while True:
        page = _page(client, stream, at, left)
        page.show(as_json=as_json)
        at = page.offset
        left = None if left is None else left - len(page.records)
        if page.up_to_date or left == 0:
            break
    if not as_json:
        output.notice(f"next offset {at}" + (" (closed: nothing will follow)" if page.closed else ""))


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

    def add(self, body: bytes) -> None:
        """What another data event before the same control event brings."""
        if is_json(self.content_type):
            self.records = self.records + msgspec.json.decode(body, type=list[msgspec.Raw])
        else:
            self.body += body

    def show(self, *, as_json: bool) -> None:
        if not as_json:
            output.data(b"".join(bytes(record).replace(b"\n", b" ").replace(b"\r", b" ") + b"\n" for record in self.records) or self.body)
            return
        row: dict[str, Any] = {"offset": self.offset}
        if is_json(self.content_type):
            row["records"] = self.records
        elif self.content_type.startswith("text/"):
            row["text"] = self.body.decode(errors="replace")
        else:
            row["base64"] = base64.b64encode(self.body).decode()
        output.json_line({**row, "up_to_date": self.up_to_date, "closed": self.closed})

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


def _page(client: Client, stream: str, offset: str, limit: int | None) -> Page:
    answer = client.call("GET", stream_path(stream), params={"offset": offset}, stream=stream)
    headers = answer.headers
    content_type = headers.get("content-type", "")
    _check_limit(limit, stream, content_type)
    page = Page(
        offset=headers["stream-next-offset"],
        content_type=content_type,
        body=answer.content,
        up_to_date=headers.get("stream-up-to-date", "").lower() == "true",
        closed=headers.get("stream-closed", "").lower() == "true",
    )
    if limit is not None:
        page.cut(limit)
    return page


@click.command("tail")
@click.argument("stream", shell_complete=complete_stream)
@click.option("--offset", metavar="OFFSET", default="now", show_default=True, help=_OFFSET)
@limit_option
@click.option("--retry", metavar="DURATION", type=SECONDS, default="60s", show_default=True, help="Look for a lost server for so long.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each append: offset, records (or text, or base64), closed.")
@server_option
def tail_command(client: Client, stream: str, offset: str, limit: int | None, retry: float, as_json: bool) -> None:
    """Print what is appended to STREAM as it comes, until the stream is closed or Ctrl-C.

    When the connection breaks it is made again where it broke: nothing is missed and nothing printed twice.

    \b
    polynya tail orders
    polynya tail orders --offset start --limit 10 | jq .item
    """
    facts = facts_of(client, stream)
    _check_limit(limit, stream, facts["content_type"])
    start = offset_of(offset)
    left = limit
    for page in follow(client, stream, facts["content_type"], facts["offset"] if start == "now" else start, retry_seconds=retry):
        if left is not None:
            page.cut(left)
            left -= len(page.records)
        page.show(as_json=as_json)
        if left == 0:
            return
    output.notice(f"{stream} is closed")


def follow(client: Client, stream: str, content_type: str, offset: str, *, retry_seconds: float) -> Iterator[Page]:
    """Appends to a stream, from `offset` until it is closed, over as many connections as it takes.

    Raises `exits.Refused` when the stream is gone, `exits.Unreachable` when no server was found for `retry_seconds`.
    """
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


def _check_limit(limit: int | None, stream: str, content_type: str) -> None:
    if limit is not None and not is_json(content_type):
        raise click.UsageError(f"--limit counts the records of JSON streams, and {stream} is {content_type}; pipe into 'head -c' instead")


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
