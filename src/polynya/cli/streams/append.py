"""`polynya append`: append records from arguments or stdin in batches, each exactly once."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import click

from polynya.base.msgpack import UNREADABLE
from polynya.cli.remote.client import (
    JSON_TYPE,
    Client,
    is_json,
    patiently,
    server_option,
    stream_path,
)
from polynya.cli.streams.lifecycle import facts_if_there, info_of
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.complete import complete_stream
from polynya.cli.terminal.progress import Bar

if TYPE_CHECKING:
    import httpx

BATCH_BYTES = 1 << 20  # line bytes per append
BATCH_LINES = 10_000
BAR_BYTES = 4 << 20  # smaller files finish before a bar can be read
LINES_READ_AHEAD = 20_000  # the reader of stdin waits here while the server is slower
RECORDS = "application/vnd.polynya.records+json"


@click.command("append")
@click.argument("stream", shell_complete=complete_stream)
@click.argument("records", nargs=-1)
@options.flag(
    "--whole",
    help="Append all of stdin at once, not line by line. Each element of a JSON array is a record.",
)
@options.flag("--create", help="Create the stream if it does not exist.")
@options.value(
    "--content-type TYPE",
    help=(
        "Content type of the stream that --create creates.  [default: application/json; with "
        "--whole bytes]"
    ),
)
@options.value("--key TEXT", help="Key of each record.")
@options.value("--header NAME=VALUE", "headers", multiple=True, help="Header of each record.")
@options.value(
    "--timestamp TIME",
    help="Time of each record: milliseconds since 1970, or RFC 3339.  [default: the server's]",
)
@options.flag("--close", help="Close the stream after the last record.")
@options.value(
    "--if-match OFFSET",
    help="Append only if the stream's tail is at this offset, all records at once.",
)
@options.retry("30s")
@options.json_flag("Print the result as JSON.")
@server_option
def append_command(
    client: Client,
    stream: str,
    records: tuple[str, ...],
    whole: bool,
    create: bool,
    content_type: str | None,
    key: str | None,
    headers: tuple[str, ...],
    timestamp: str | None,
    close: bool,
    if_match: str | None,
    retry: float,
    as_json: bool,
) -> None:
    """Append RECORDS, or the lines of stdin, to STREAM.

    For a JSON stream each argument or line is one record; empty lines are skipped. Other streams
    take the bytes as they are, line by line. Lines are batched while the server is busy. Each batch
    is retried until the server acknowledges it; the producer is idempotent, so no batch is stored
    twice.

    A JSON array is one record, unless --whole is given: then each element is a record, as in an
    HTTP POST.

    With --if-match all records are one append, which is refused if another writer was first.
    `polynya info STREAM` prints the tail, and --json of this command the next one.

    \b
    polynya append orders '{"item": 7}' '{"item": 8}'
    polynya append orders --whole < array.json
    polynya append orders '{"item": 7}' --key customer-9 --header source=web
    tail -F access.log | polynya append logs/web-1 --create --content-type text/plain
    polynya append pictures/cat --whole < cat.jpg
    """
    if content_type is not None and not create:
        raise click.UsageError("--content-type needs --create")
    described = Described.of(key, headers, timestamp)
    wanted = content_type or ("application/octet-stream" if whole else JSON_TYPE)
    content_type = patiently(
        lambda: _content_type(client, stream, create=create, wanted=wanted), retry
    )
    producer = BatchProducer(
        client,
        stream,
        content_type,
        retry_seconds=retry,
        lines_are_records=is_json(content_type) and not whole,
        described=described,
        condition=condition_headers(if_match, close=close),
    )
    if described is not None and not whole:
        producer.counts_records = True
    try:
        with _bar(stream, records) as bar:
            batches = _batches(records, whole=whole, records_only=producer.lines_are_records)
            for lines in batches if if_match is None else _joined(batches):
                producer.append(lines)
                if whole and is_json(content_type):
                    producer.records, producer.counts_records = _elements(lines[0]), True
                bar.advance(sum(map(len, lines)))
    finally:
        if producer.batches or sys.exc_info()[0] is None:
            _report(producer, stream, as_json=as_json)
    if close:
        if if_match is None or not producer.batches:  # else it was closed with the append
            closing = {"stream-closed": "true"} | condition_headers(if_match, close=True)
            client.call("POST", stream_path(stream), headers=closing, stream=stream)
        output.notice(f"closed {stream}")


class Described(NamedTuple):
    """The key, headers and time of all records of a command."""

    key: str | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp: str | None

    @classmethod
    def of(cls, key: str | None, headers: Sequence[str], timestamp: str | None) -> Described | None:
        """Return what the options say; None: nothing. Raises click.UsageError."""
        if key is None and not headers and timestamp is None:
            return None
        pairs = [each.partition("=") for each in headers]
        if not all(name and equals for name, equals, _ in pairs):
            raise click.UsageError("--header needs NAME=VALUE")
        return cls(key, tuple((name, value.encode()) for name, _, value in pairs), timestamp)

    def request_headers(self) -> dict[str, str]:
        """Return the headers of a request whose body is of values."""
        from polynya.client.records import header_list, header_text

        found = {} if self.timestamp is None else {"record-timestamp": self.timestamp}
        if self.key is not None:
            found["record-key"] = header_text(self.key.encode())
        return found | ({"record-header": header_list(self.headers)} if self.headers else {})

    def body(self, lines: Sequence[bytes]) -> bytes:
        """Return a body in which each line is a whole record."""
        from polynya.client.records import NewRecord, records_body
        from polynya.wire.headers import BadField
        from polynya.wire.times import parse_time_ms

        try:
            time_ms = None if self.timestamp is None else parse_time_ms(self.timestamp, 0)
        except BadField as bad:
            raise click.UsageError(f"--timestamp: {bad}") from None
        rows = [
            NewRecord(value=line, key=self.key, headers=self.headers, timestamp=time_ms)
            for line in lines
        ]
        return records_body(rows, "")


def _bar(stream: str, records: Sequence[str]) -> Bar:
    """Return a progress bar; it shows only for a large file, because the size of a pipe is
    unknown."""
    total = 0
    if not records:
        with contextlib.suppress(OSError, ValueError):
            status = os.fstat(sys.stdin.fileno())
            total = status.st_size if stat.S_ISREG(status.st_mode) else 0
    return Bar(
        f"appending to {stream}", total, output.size, shown=None if total >= BAR_BYTES else False
    )


def _content_type(client: Client, stream: str, *, create: bool, wanted: str) -> str:
    """Return the stream's content type; with `create`, create a missing stream of type `wanted`."""
    info = facts_if_there(client, stream) if create else info_of(client, stream)
    if info is not None:
        return str(info["content_type"])
    client.call("PUT", stream_path(stream), headers={"content-type": wanted})
    return wanted


class BatchProducer:
    """An idempotent producer for one stream: one batch in flight, retried until its outcome is
    known.

    `batches` is the sequence of the next one."""

    def __init__(
        self,
        client: Client,
        stream: str,
        content_type: str,
        *,
        retry_seconds: float,
        lines_are_records: bool,
        name: str = "",
        described: Described | None = None,
        condition: dict[str, str] | None = None,
    ) -> None:
        self._condition = condition or {}
        self._client = client
        self._stream = stream
        self._content_type = content_type
        self._retry_seconds = retry_seconds
        self._described = described
        self._id = name or f"cli-{secrets.token_hex(8)}"
        self.lines_are_records = self.counts_records = lines_are_records
        self.batches = 0
        self.arrays = 0  # records that are JSON arrays
        self.records = 0
        self.bytes = 0
        self.offset = ""

    def headers(self, sequence: int) -> dict[str, str]:
        """Return the producer headers of a batch, and its condition."""
        numbers = {"producer-id": self._id, "producer-epoch": "0", "producer-seq": str(sequence)}
        return numbers | self._condition

    def append(self, lines: Sequence[bytes], content_type: str = "") -> None:
        """Send a batch and wait until it is durable. `content_type`: of the body, if it is not that
        of the stream. Raises `exits.Refused`, `exits.Unreachable`, `exits.Unknown`."""
        headers = self.headers(self.batches) | {"content-type": content_type or self._content_type}
        if self._described is not None and not self.lines_are_records and self.counts_records:
            body = self._described.body(lines)
            headers["content-type"] = RECORDS
        else:
            body = (
                b"[%s]" % b",".join(line.strip() for line in lines)
                if self.lines_are_records
                else b"".join(lines)
            )
            if self._described is not None:
                headers |= self._described.request_headers()
        answer = self._sent(body, headers)
        if not answer.is_success:
            raise self._refused(answer, lines)
        self.batches += 1
        self.records += len(lines)
        self.arrays += (
            sum(line.lstrip()[:1] == b"[" for line in lines) if self.lines_are_records else 0
        )
        self.bytes += len(body)
        self.offset = answer.headers.get("stream-next-offset", self.offset)

    def _sent(self, body: bytes, headers: dict[str, str]) -> httpx.Response:
        """Send an append, and retry until a response gives its outcome."""
        perhaps = False  # an attempt may have been applied

        def attempt() -> httpx.Response:
            nonlocal perhaps
            try:
                path = stream_path(self._stream)
                answer = self._client.send("POST", path, headers=headers, content=body)
                failure = self._client.refused(answer) if answer.is_error else None
                if failure is None or isinstance(failure, exits.Refused):
                    return answer
                raise failure
            except exits.Unknown:
                perhaps = True
                raise

        try:
            return patiently(attempt, self._retry_seconds, (exits.Unreachable, exits.Unknown))
        except (exits.Unreachable, exits.Unknown) as failure:
            raise self._given_up(failure, perhaps=perhaps) from None

    def _given_up(self, failure: exits.Ended, *, perhaps: bool) -> exits.Ended:
        """Return the error after the last retry. `perhaps`: the batch may have been applied.
        Repeating the command would store earlier batches twice."""
        if not perhaps and not self.batches:
            return failure
        kind = exits.Unknown if perhaps else exits.Refused
        hint, request_id = self._progress(), failure.request_id
        return kind(failure.message, code=failure.code, hint=hint, request_id=request_id)

    def _refused(self, answer: httpx.Response, lines: Sequence[bytes]) -> exits.Ended:
        if (
            self.lines_are_records
            and answer.status_code == 400
            and (bad := _first_bad(lines)) is not None
        ):
            shown = lines[bad].strip()[:100].decode(errors="replace")
            hint = (
                self._progress()
                if self.records
                else (
                    "Nothing was appended. For text, use a stream of type text/plain "
                    "(--content-type)."
                )
            )
            return exits.Refused(
                f"record {self.records + bad + 1:,} is not valid JSON: {shown}",
                status=400,
                hint=hint,
            )
        return self._client.refused(answer, stream=self._stream)

    def _progress(self) -> str:
        were = "was" if self.records == 1 or not self.counts_records else "were"
        return f"{self.said()} {were} appended before the failed batch."

    def said(self) -> str:
        """Return the appended amount in the stream's unit."""
        return (
            output.counted(self.records, "record")
            if self.counts_records
            else output.size(self.bytes)
        )


def _elements(body: bytes) -> int:
    """Return the number of records in a body of a JSON stream."""
    import msgspec

    try:
        return len(msgspec.json.decode(body, type=list[msgspec.Raw]))
    except UNREADABLE:
        return 1


def _first_bad(lines: Sequence[bytes]) -> int | None:
    """Return the index of the first line that is not valid JSON."""
    import msgspec

    for index, line in enumerate(lines):
        try:
            msgspec.json.decode(line)
        except UNREADABLE:
            return index
    return None


def _batches(records: Sequence[str], *, whole: bool, records_only: bool) -> Iterator[list[bytes]]:
    if records:
        yield [record.encode() + (b"" if records_only else b"\n") for record in records]
        return
    source = sys.stdin.buffer
    if source.isatty():
        output.notice("reading records from the terminal, one per line; Ctrl-D ends")
    if whole:
        yield [source.read()]
    else:
        yield from gathered(
            source, keep=(lambda line: bool(line.strip())) if records_only else bool
        )


def _joined(batches: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
    """Yield one batch of all lines; none if there are no lines."""
    lines = [line for batch in batches for line in batch]
    if lines:
        yield lines


def condition_headers(if_match: str | None, *, close: bool) -> dict[str, str]:
    """Return the headers of an append that names the tail, and closes the stream with it."""
    if if_match is None:
        return {}
    closing = {"stream-closed": "true"} if close else {}
    return {"if-match": if_match if if_match.startswith('"') else f'"{if_match}"', **closing}


def gathered(source: BinaryIO, *, keep: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
    """Yield the kept lines of `source` in batches of what has arrived.

    A slow source is sent at once, a fast one in large batches. The reader thread is bounded by
    `LINES_READ_AHEAD`."""
    waiting: queue.Queue[bytes | BaseException | None] = queue.Queue(LINES_READ_AHEAD)

    def read() -> None:
        try:
            for line in source:
                waiting.put(line)
        except BaseException as error:  # noqa: BLE001 (handed over)
            waiting.put(error)
        waiting.put(None)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    ended = False
    while not ended:
        batch: list[bytes] = []
        size = 0
        item = waiting.get()
        while True:
            if isinstance(item, BaseException):
                raise item
            if item is None:
                ended = True
                break
            if keep(item):
                batch.append(item)
                size += len(item)
            if len(batch) >= BATCH_LINES or size >= BATCH_BYTES or waiting.empty():
                break
            item = waiting.get()
        if batch:
            yield batch


def _report(producer: BatchProducer, stream: str, *, as_json: bool) -> None:
    if as_json:
        info = {"records": producer.records} if producer.counts_records else {}
        output.json_line(
            {
                "name": stream,
                **info,
                "batches": producer.batches,
                "bytes": producer.bytes,
                "offset": producer.offset or None,
            }
        )
    else:
        output.notice(
            f"appended {producer.said()} to {stream} in "
            f"{output.counted(producer.batches, 'batch', 'batches')}"
        )
    if producer.arrays:
        what = (
            "one record is a JSON array"
            if producer.arrays == 1
            else f"{producer.arrays:,} records are JSON arrays"
        )
        what = "the record is a JSON array" if producer.records == 1 else what
        each, its = ("", "its") if producer.arrays == 1 else (" each", "their")
        output.notice(
            f"  {what}, stored as one record{each}; to store {its} elements as records: polynya "
            f"append {stream} --whole < FILE"
        )
