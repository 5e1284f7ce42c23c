"""Pages of a stream for the commands: from reads, or from a live connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from polynya.base.offsets import format_token, parse_token
from polynya.cli.remote.client import Client
from polynya.cli.terminal import exits
from polynya.client import ClientError, Retry, reading
from polynya.client.live.feeds import Feed
from polynya.client.messages import Operation
from polynya.client.reading import ReadPosition
from polynya.client.values import RECORDS_TYPE, is_array

RETRY_PAUSE_SECONDS = 0.2


class ReadPage(msgspec.Struct):
    """One response to a read, or one event of a tail. JSON streams and pages of whole records have
    `records`, the exact bytes of each; others have `body`."""

    offset: str  # after the page
    content_type: str
    body: bytes
    up_to_date: bool
    closed: bool
    records: list[msgspec.Raw] = []

    def __post_init__(self) -> None:
        if is_array(self.content_type):
            self.records = (
                msgspec.json.decode(self.body, type=list[msgspec.Raw]) if self.body else []
            )
            self.body = b""

    @property
    def first_record(self) -> int:
        """The number of the first of `records`."""
        token = parse_token(self.offset)
        return token[0] - len(self.records) if token else 0

    def cut(self, count: int) -> None:
        """Keep the first `count` records, and move the offset to the boundary after them."""
        dropped = self.records[count:]
        token = parse_token(self.offset)
        if dropped and token is not None and token[0] >= len(dropped):
            record, byte = token
            self.offset = format_token(
                record - len(dropped),
                max(0, byte - sum(len(bytes(raw).strip()) + 1 for raw in dropped)),
            )
        if dropped:
            self.records = self.records[:count]
            self.up_to_date = self.closed = False


def pages(
    client: Client,
    stream: str,
    begin: Mapping[str, str],
    *,
    local: bool = False,
    whole: bool = False,
) -> Iterator[ReadPage]:
    """Yield the pages of a stream from the start parameters in `begin` to its tail. `whole`: of
    whole records. Raises `exits.Ended`."""
    position = ReadPosition(
        stream,
        begin.get("offset", ""),
        begin={name: text for name, text in begin.items() if name != "offset"},
        local=local,
        whole=whole,
    )
    yield from _given(client, position, reading.read(position, Retry(seconds=0)))


def follow(
    client: Client,
    stream: str,
    content_type: str,
    offset: str,
    *,
    retry_seconds: float,
    local: bool = False,
    whole: bool = False,
) -> Iterator[ReadPage]:
    """Yield the appends to a stream from `offset` until it is closed, across reconnects.

    Raises `exits.Refused` if the stream is gone, `exits.Unreachable` if no server responds for
    `retry_seconds`.
    """
    position = ReadPosition(stream, offset, local=local, whole=whole)
    position.content_type = RECORDS_TYPE if whole else content_type
    try:
        for page in _given(
            client,
            position,
            reading.follow(
                position, Retry(seconds=retry_seconds, pause_seconds=RETRY_PAUSE_SECONDS)
            ),
        ):
            if page.body or page.records:
                yield page
    except exits.Unreachable as unreachable:
        unreachable.hint = f"Resume with: polynya tail {stream} --offset {position.offset}"
        raise


def _given(
    client: Client, position: ReadPosition, operation: Operation[None]
) -> Iterator[ReadPage]:
    feed = Feed(client.wire, operation)
    try:
        for page in feed:
            yield ReadPage(page.offset, page.content_type, page.body, page.up_to_date, page.closed)
    except ClientError as error:
        raise client.ended(error, position.what, stream=position.name) from None
    finally:
        feed.close()
