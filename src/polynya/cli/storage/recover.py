"""`polynya recover`: copy single streams from a backup into a running server, exactly once across
interruptions and repeats.

Every append belongs to an idempotent producer whose id names the backup and the stream. So the copy
records its own progress: a repeated command stores nothing twice and never writes to an unrelated
stream of the same name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from polynya.base.errors import CorruptData
from polynya.cli.remote.client import Client, is_json, patiently, server_option, stream_path
from polynya.cli.storage.backup import backup_option, carried_out, config_option
from polynya.cli.streams.append import BatchProducer
from polynya.cli.terminal import exits, options, output, progress

if TYPE_CHECKING:
    import httpx

    from polynya.backup.manifest import Manifest
    from polynya.backup.streams import BackupPiece, BackupStreams
    from polynya.stream.machine import Machine
    from polynya.stream.state.model import Stream

Pieces = Callable[[], "AsyncIterator[BackupPiece]"]
APPEND_BYTES = 1 << 20  # JSON bytes per append; records of one original append stay together
AT_ONCE = 4  # concurrent streams
FAR_SEQUENCE = 1 << 52  # out of every producer's reach: the refusal carries the expected sequence


class Selection(NamedTuple):
    """The selected streams, by canonical name, and their targets. `move` replaces `prefix`."""

    names: frozenset[str]
    prefix: str | None
    move: str | None

    def has(self, name: str) -> bool:
        from polynya.base.names import is_public

        return name in self.names or (
            self.prefix is not None and name.startswith(self.prefix) and is_public(name)
        )

    def target(self, name: str) -> str:
        if self.move is None:
            return name
        return self.move if self.prefix is None else self.move + name.removeprefix(self.prefix)


class Body(NamedTuple):
    """The body of an append. `size`: the bytes of its records in the backup. `is_whole`: it has
    whole records, with keys, headers and times."""

    records: int
    size: int
    content: bytes
    is_whole: bool = False


class Done:
    """The progress so far. `failed`: streams with the error of each."""

    def __init__(self) -> None:
        self.doing = "reading"
        self.streams: list[dict[str, Any]] = []
        self.found = self.records = self.bytes = self.total = 0
        self.failed: list[tuple[str, exits.Ended]] = []

    def text(self, seconds: float) -> str:
        size = f"{output.size(self.bytes)} of {output.size(self.total)}" if self.total else ""
        return (
            f"{self.doing}: {len(self.streams):,} of {output.counted(self.found, 'stream')}, "
            f"{size}, {progress.spelled_seconds(seconds)}"
        )


@click.command("recover")
@click.argument("location", metavar="PLACE")
@click.argument("streams", nargs=-1, metavar="[STREAM]...")
@options.value("--prefix PREFIX", help="All streams whose names start with PREFIX; '' selects all.")
@options.value(
    "--as NAME", "target", help="The new name of the stream, or the replacement for --prefix."
)
@options.flag("--list", "listing", help="List the streams without restoring them.")
@options.retry("1min")
@backup_option
@config_option
@options.as_json
@server_option
def recover_command(
    client: Client,
    location: str,
    streams: tuple[str, ...],
    prefix: str | None,
    target: str | None,
    listing: bool,
    retry: float,
    backup: str,
    file: str | None,
    as_json: bool,
) -> None:
    """Restore single STREAMs from the backup in PLACE into a running server, for example after an
    accidental deletion.

    Each stream gets its name if that is free, or another (--as), and its content type, lifetime and
    retention. Its records are appended byte by byte: offsets start at 0, and records that a fork
    inherited become its own. Records with keys, headers or times keep them. It is closed if it was.
    Existing streams are left alone. A repeated command resumes, within seven days.

    A partition of a Kafka topic is restored under another name (--as), and 'polynya topic adopt'
    creates a topic over it.

    \b
    polynya recover /backups/polynya orders
    polynya recover s3://backups/polynya --prefix flights/ --as restored/
    polynya recover polynya.tar orders --as orders-before --backup 20261121T185000123Z-1f2e3d4c
    polynya recover /backups/polynya --prefix '' --list
    """
    wanted = _wanted(streams, prefix, target)
    done = Done()
    manifest = carried_out(
        location,
        lambda: _recover(
            client, (location, backup, file), wanted, done, retry=None if listing else retry
        ),
    )
    _say(manifest, done, listing=listing, as_json=as_json)


def _wanted(streams: tuple[str, ...], prefix: str | None, target: str | None) -> Selection:
    from polynya.base.names import canonical_name, canonical_prefix

    if bool(streams) == (prefix is not None):
        raise click.UsageError("pass the names of streams, or --prefix")
    if target is not None and len(streams) > 1:
        raise click.UsageError("--as needs exactly one stream, or --prefix")
    try:
        moved = (
            target
            if target is None
            else (canonical_name(target) if prefix is None else canonical_prefix(target))
        )
        return Selection(
            frozenset(map(canonical_name, streams)),
            prefix if prefix is None else canonical_prefix(prefix),
            moved,
        )
    except ValueError as error:
        raise exits.Misused(str(error)) from None


async def _recover(
    client: Client, where: tuple[str, str, str | None], wanted: Selection, done: Done, *, retry: float | None
) -> Manifest:  # fmt: skip
    """Recover the streams. `where`: location, backup, settings file. Without `retry`, only list
    them."""
    from polynya.backup.repository import chosen
    from polynya.backup.streams import BackupStreams, streams_of
    from polynya.cli.storage import locations

    location, backup, file = where
    async with locations.to_read(location, file) as repository:
        library = BackupStreams(repository, await chosen(repository, backup))
        with progress.Live(done.text):
            for group in _groups_of(wanted, library.manifest.groups):
                done.doing = f"group {group}"
                machine = await library.machine(group)
                streams = [stream for stream in streams_of(machine) if wanted.has(stream.name)]
                moves = [(stream, wanted.target(stream.name)) for stream in streams]
                done.found += len(streams)
                done.total += sum(stream.next_byte - stream.first_byte for stream in streams)
                if retry is None:
                    done.streams += [_row(stream, target) for stream, target in moves]
                else:
                    await _carry(client, library, machine, moves, done, retry)
    return library.manifest


def _groups_of(wanted: Selection, groups: int) -> list[int]:
    from polynya.base.names import group_of

    return (
        list(range(1, groups + 1))
        if wanted.prefix is not None
        else sorted({group_of(name, groups) for name in wanted.names})
    )


async def _carry(
    client: Client, library: BackupStreams, machine: Machine, moves: list[tuple[Stream, str]], done: Done, retry: float
) -> None:  # fmt: skip
    """Copy streams concurrently, each to its target name. A refusal is recorded; an unreachable
    server ends the command."""
    todo = iter(moves)

    async def work() -> None:
        for stream, target in todo:
            carrier = Carrier(client, library.manifest.id, stream, target, retry)
            try:
                row = await carrier.run(partial(library.pieces, machine, stream), done)
                done.streams.append(row)
            except (exits.Refused, exits.Unknown) as failure:
                done.failed.append((carrier.name, failure))
            except CorruptData as fault:
                hint = "'polynya verify' checks the whole backup."
                done.failed.append((carrier.name, exits.Refused(str(fault), hint=hint)))

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(AT_ONCE, len(moves))):
                tasks.create_task(work())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


class Carrier:
    """Copies one stream. `name` is its displayed name."""

    def __init__(
        self, client: Client, backup: str, stream: Stream, target: str, retry: float
    ) -> None:
        from polynya.base.names import spelled_name
        from polynya.wire.kafka.values import values_type

        self.name = spelled_name(target)
        self._client, self._stream, self._retry = client, stream, retry
        self._content_type = values_type(stream.content_type)
        self._is_json = is_json(self._content_type)
        self._producer = BatchProducer(
            client,
            self.name,
            self._content_type,
            retry_seconds=retry,
            lines_are_records=False,
            name=f"recover-{backup}-{stream.uid:x}",
        )
        self._resumed = False

    async def run(self, pieces: Pieces, done: Done) -> dict[str, Any]:
        """Create the stream or find its position, and append the rest. Raises `exits.Ended` and
        read errors."""
        self._check_name()
        try:
            found = await asyncio.to_thread(self._look)
        except exits.Refused:
            if not await self._is_rebuilt(pieces()):
                raise
            found = None
        if found is None:
            done.bytes += self._stream.next_byte - self._stream.first_byte
            return _row(self._stream, self.name, was_there=True)
        self._producer.batches = found
        number = 0
        async for body in _appends(pieces(), self._is_json):
            if number == found == 0:
                await asyncio.to_thread(self._create, body)
            elif number >= found:
                await asyncio.to_thread(self._append, body)
            number += 1
            done.records += body.records
            done.bytes += body.size
        if not number and not found:
            await asyncio.to_thread(self._create, Body(0, 0, b""))
        if self._stream.closed:
            await asyncio.to_thread(self._close)
        return _row(self._stream, self.name, resumed=self._resumed)

    def _check_name(self) -> None:
        """Refuse a name under which only a topic creates streams. Raises `exits.Refused`."""
        from polynya.base.names import canonical_name, partition_of

        if partition_of(canonical_name(self.name)) is not None:
            raise exits.Refused(
                f"{self.name} is the name of a partition of a Kafka topic",
                hint="Restore it under another name with --as NAME, and create a topic over it: "
                "polynya topic adopt TOPIC --from NAME.",
            )

    def _look(self) -> int | None:
        """Return the number of the next append, 0 if the stream is missing, None if it is
        complete."""
        answer = self._ask("HEAD")
        if answer.status_code == 404:
            return 0
        if answer.is_error:
            raise self._client.refused(answer, stream=self.name)
        size = int(answer.headers.get("stream-next-offset", "").partition("_")[2] or 0)
        is_closed = answer.headers.get("stream-closed", "") == "true"
        wanted = self._stream.next_byte - self._stream.first_byte
        is_alike = answer.headers.get("content-type", "") == self._content_type
        if is_alike and size == wanted and (is_closed or not size):
            if is_closed == self._stream.closed:
                return None
            if not is_closed:
                return 0
        if is_alike and not size and not is_closed:
            return 0  # whole records follow the creation
        if is_closed or not size:
            raise self._taken()
        found = self._expected()
        self._resumed = True
        return found

    async def _is_rebuilt(self, pieces: AsyncIterator[BackupPiece]) -> bool:
        """Report whether a closed stream is a complete copy with rebuilt Kafka batches, which have
        other sizes."""
        from polynya.backup.streams import size_of
        from polynya.stream.parts import Encoding

        answer = await asyncio.to_thread(self._ask, "HEAD")
        is_closed = answer.headers.get("stream-closed", "") == "true"
        is_alike = answer.headers.get("content-type", "") == self._content_type
        records = int(answer.headers.get("stream-next-offset", "").partition("_")[0] or 0)
        if not (is_closed and self._stream.closed and is_alike):
            return False
        if records != size_of(self._stream)[0]:
            return False
        async for piece in pieces:
            if piece.encoding == Encoding.KAFKA:
                return True
        return False

    def _create(self, body: Body) -> None:
        """Create the stream with its first append, so that an unrelated stream is never mistaken
        for a copy. Whole records follow in an append of their own."""
        content = b"" if body.is_whole else body.content
        headers = _creation(self._stream, self._content_type)
        headers |= self._producer.headers(0) if content else {}
        path = stream_path(self.name)
        answer = patiently(
            lambda: self._client.call(
                "PUT", path, headers=headers, content=content, stream=self.name
            ),
            self._retry,
        )
        if answer.status_code != 201 and content:
            raise self._taken()
        if body.is_whole:
            self._append(body)
        else:
            self._producer.batches = 1

    def _append(self, body: Body) -> None:
        from polynya.wire.headers import RECORDS

        self._producer.append([body.content], RECORDS if body.is_whole else "")

    def _ask(
        self, method: str, headers: dict[str, str] | None = None, content: bytes | None = None
    ) -> httpx.Response:
        """Send a request that changes nothing."""
        path = stream_path(self.name)
        return self._client.send(method, path, headers=headers, content=content, applies=False)

    def _expected(self) -> int:
        """Return the producer sequence that the server expects. Raises `exits.Refused` if the
        stream is unrelated."""
        body = b"[0]" if self._is_json else b"?"
        headers = {"content-type": self._content_type} | self._producer.headers(FAR_SEQUENCE)
        answer = self._ask("POST", headers, body)
        expected = answer.headers.get("producer-expected-seq", "")
        if answer.status_code != 409 or not expected.isdigit():
            raise (
                self._client.refused(answer, stream=self.name) if answer.is_error else self._taken()
            )
        if expected == "0":
            raise self._taken()
        return int(expected)

    def _taken(self) -> exits.Refused:
        return exits.Refused(
            f"the stream {self.name} already exists with other contents",
            hint="Restore under another name with --as NAME.",
        )

    def _close(self) -> None:
        path = stream_path(self.name)
        patiently(
            lambda: self._client.call(
                "POST", path, headers={"stream-closed": "true"}, stream=self.name
            ),
            self._retry,
        )


async def _appends(pieces: AsyncIterator[BackupPiece], of_json: bool) -> AsyncIterator[Body]:
    """Yield the bodies of the appends, deterministically. Small JSON appends are merged, and
    records of Kafka batches; others stay single. Raises CorruptData."""
    from polynya.stream.parts import Encoding

    gathered, records, size, is_whole = list[bytes](), 0, 0, False
    async for piece in pieces:
        is_kafka = piece.encoding == Encoding.KAFKA
        for part, count in _whole_records(piece, of_json) if is_kafka else _plain(piece):
            if gathered and (is_kafka != is_whole or size + len(part) > APPEND_BYTES):
                yield _array(gathered, records, size, is_whole)
                gathered, records, size = [], 0, 0
            if not of_json and not is_kafka:
                yield Body(count, len(part), part)
                continue
            gathered.append(part)
            records, size, is_whole = records + count, size + len(part), is_kafka
    if gathered:
        yield _array(gathered, records, size, is_whole)


def _plain(piece: BackupPiece) -> Iterator[tuple[bytes, int]]:
    yield piece.payload, piece.records


def _whole_records(piece: BackupPiece, of_json: bool) -> Iterator[tuple[bytes, int]]:
    """Yield the retained records of Kafka batches, with the keys, headers and times that they have.
    The server builds batches of them again, so base offsets and checksums are those of their new
    locations."""
    from polynya.wire.kafka.records import UnreadableBatch, decoded_records, placed_batches
    from polynya.wire.kafka.values import show_json_record, show_record

    show = show_json_record if of_json else show_record
    try:
        for batch, _, record in placed_batches(piece.payload, piece.record):
            for each in decoded_records(batch, record):
                if piece.first <= each.offset < piece.end:
                    yield show(each), 1
    except UnreadableBatch as fault:
        raise CorruptData(f"the batches from record {piece.record} on: {fault}") from None


def _array(parts: list[bytes], records: int, size: int, is_whole: bool) -> Body:
    return Body(records, size, b"[%b]" % b"".join(parts)[:-1], is_whole)


def _creation(stream: Stream, content_type: str) -> dict[str, str]:
    """Return the headers that create such a stream. An expired lifetime is dropped, so that the
    stream can be read."""
    headers = {"content-type": content_type}
    if stream.ttl_seconds is not None:
        headers["stream-ttl"] = str(stream.ttl_seconds)
    elif (
        stream.expires_at_ms is not None
        and stream.expires_at_ms > datetime.now(UTC).timestamp() * 1000
    ):
        headers["stream-expires-at"] = datetime.fromtimestamp(
            stream.expires_at_ms / 1000, UTC
        ).isoformat(timespec="milliseconds")
    retention = stream.extras.retention if stream.extras is not None else None
    if retention is not None:
        headers["stream-retention-age"] = (
            "forever" if retention.age_seconds is None else str(retention.age_seconds)
        )
        headers["stream-retention-bytes"] = (
            "forever" if retention.bytes is None else str(retention.bytes)
        )
    attributes = stream.extras.attributes if stream.extras is not None else None
    if attributes is not None:
        from polynya.wire.http.attributes import format_header

        headers["stream-attrs"] = format_header(attributes.value)
    return headers


def _row(
    stream: Stream, target: str, *, resumed: bool = False, was_there: bool = False
) -> dict[str, Any]:
    from polynya.backup.streams import size_of
    from polynya.base.names import spelled_name

    records, size = size_of(stream)
    name = spelled_name(stream.name)
    target = spelled_name(target) if target.startswith("default/") else target
    row = {
        "name": name,
        "as": target,
        "content_type": stream.content_type,
        "records": records,
        "bytes": size,
        "closed": stream.closed,
    }
    return {**row, "resumed": resumed, "was_there": was_there}


def _say(manifest: Manifest, done: Done, *, listing: bool, as_json: bool) -> None:
    rows = sorted(done.streams, key=lambda row: row["name"])
    if as_json:
        failed = [{"as": name, "why": failure.message} for name, failure in done.failed]
        output.json_line({"backup": manifest.id, "streams": rows, "failed": failed})
    elif listing:
        kept = ("name", "as", "content_type", "records", "bytes", "closed")
        output.table(
            ("stream", "as", "content type", "records", "size", "closed"),
            [tuple(row[key] for key in kept) for row in rows],
        )
    for name, failure in () if as_json else sorted(done.failed, key=lambda each: each[0]):
        output.notice(
            f"{name}: {failure.message}"
            + (f" [{failure.code}]" if failure.code else "")
            + (f"; {failure.hint}" if failure.hint else "")
        )
    if not done.found:
        raise exits.Refused(
            f"backup {manifest.id} has no such stream",
            hint="--prefix '' --list lists all its streams.",
        )
    if not (as_json or listing):
        output.notice(
            f"backup {manifest.id}: {output.counted(len(rows), 'stream')} restored, "
            f"{output.size(done.bytes)}"
        )
    if done.failed:
        raise click.exceptions.Exit(exits.REFUSED)
