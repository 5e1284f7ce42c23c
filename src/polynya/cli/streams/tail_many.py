"""`polynya tail` of several streams or of a pattern: one connection, each record with its
stream."""

from __future__ import annotations

import base64
from dataclasses import KW_ONLY, dataclass
from typing import Any

import click
import msgspec

from polynya.cli.remote.client import Client
from polynya.cli.terminal import output
from polynya.client import ClientError, Retry
from polynya.client.live.feeds import Feed
from polynya.client.live.many import ManyPosition, StreamEvent, is_covering, tail_many
from polynya.client.values import Page

RETRY_PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class ManyOptions:
    """The options of a tail of many streams."""

    offset: str
    limit: int | None
    retry_seconds: float
    _: KW_ONLY
    as_json: bool
    records: bool
    local: bool


def is_many(streams: tuple[str, ...]) -> bool:
    """Report whether these are several streams, or a pattern or prefix."""
    return len(streams) > 1 or is_covering(streams[0])


def tail_streams(client: Client, streams: tuple[str, ...], options: ManyOptions) -> None:
    """Print the records of many streams as they arrive. Raises `exits.Ended`."""
    try:
        position = ManyPosition(streams, options.offset, local=options.local, whole=options.records)
    except ValueError as bad:
        raise click.UsageError(str(bad)) from None
    retry = Retry(seconds=options.retry_seconds, pause_seconds=RETRY_PAUSE_SECONDS)
    feed = Feed(client.wire, tail_many(position, retry))
    show = _show_json if options.as_json else _show_lines
    left = options.limit
    try:
        for event in feed:
            show(event if left is None else _cut(event, left))
            if left is not None:
                left -= len(event.page.raws)
                if left <= 0:
                    return
        output.notice("all streams are closed or deleted")
    except ClientError as error:
        raise client.ended(error, position.what) from None
    finally:
        feed.close()


def _cut(event: StreamEvent, count: int) -> StreamEvent:
    """Return the event with at most so many of its JSON records."""
    page = event.page
    if len(page.raws) <= count:
        return event
    raws = page.raws[:count]
    body = b"[" + b",".join(raws) + b"]"
    return msgspec.structs.replace(event, page=msgspec.structs.replace(page, raws=raws, body=body))


def _show_lines(event: StreamEvent) -> None:
    """Print a line for each record: its stream, a tab, and the record."""
    name = event.stream.encode()
    output.data(b"".join(b"%s\t%s\n" % (name, line) for line in _lines(event.page)))
    if said := _said(event):
        output.notice(f"{event.stream}: {said}")


def _lines(page: Page) -> list[bytes]:
    if page.is_json:
        return [raw.replace(b"\n", b" ").replace(b"\r", b" ") for raw in page.raws]
    if page.content_type.startswith("text/"):
        return page.body.splitlines()
    return [base64.b64encode(page.body)] if page.body else []


def _said(event: StreamEvent) -> str:
    """Return what the user is told of an event, beside its records."""
    if event.error:
        return event.error
    if event.deleted:
        return "deleted"
    if event.trimmed:
        return f"earlier records were deleted; the next offset is {event.page.offset}"
    return "closed" if event.page.closed else ""


def _show_json(event: StreamEvent) -> None:
    """Print one object for an event with records, or with something to tell."""
    page = event.page
    if not (page.body or _said(event)):
        return
    row: dict[str, Any] = {"stream": event.stream, "offset": page.offset}
    if page.body:
        row |= _content(page)
    row |= {"up_to_date": page.up_to_date, "closed": page.closed}
    fields = {"deleted": event.deleted, "trimmed": event.trimmed, "error": event.error}
    output.json_line(row | {name: value for name, value in fields.items() if value})


def _content(page: Page) -> dict[str, Any]:
    if page.is_json:
        return {"records": [msgspec.Raw(raw) for raw in page.raws]}
    if page.content_type.startswith("text/"):
        return {"text": page.body.decode(errors="replace")}
    return {"base64": base64.b64encode(page.body).decode()}
