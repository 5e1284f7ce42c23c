"""The driver's part of the sink: log a batch's stages, append their rows in order, log the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import msgspec

from polynya.client.blocking.generated.client import Client
from polynya.client.calls import call, stream_target
from polynya.client.errors import ProducerConflict, ProducerFenced, StreamNotFound
from polynya.client.messages import HttpRequest, Operation, Retry
from polynya.client.values import JSON_TYPE, RECORDS_TYPE
from polynya.spark.options import SinkOptions
from polynya.spark.server import Server
from polynya.spark.sink.staging import Staged, staged_rows

APPEND_BYTES = 4 << 20
APPEND_RECORDS = 10_000
LOG_BYTES = 4 << 20  # retained of a query's log: the last batch's entries must fit


class _Entry(msgspec.Struct, omit_defaults=True):
    """An entry of the log: the stages of a batch, or its end."""

    batch: int
    stages: list[Staged] = []
    done: bool = False


class BatchCommit:
    """One batch of one query. `folder` has the query's log and stages."""

    def __init__(self, options: SinkOptions, query: str, batch: int) -> None:
        self._options = options
        self._folder = folder_of(options, query)
        self._producer = f"spark-{query}"
        self._batch = batch
        self._log = f"{self._folder}/log"

    def run(self, staged: Sequence[Staged]) -> None:
        """Append the rows of a batch once. A repeat continues the first attempt."""
        connection = self._options.connection
        own = sorted((each for each in staged if each.records), key=lambda each: each.partition)
        with (
            Client(connection.server, token=connection.token) as client,
            Server(connection) as server,
        ):
            client.stream(self._log).create(retain_bytes=LOG_BYTES)
            if not self._note(server, 0, _Entry(self._batch, own)):
                return  # a later batch has begun, so this one is complete
            stages, done = self._noted(client)
            if not done:
                self._append(client, server, stages)
                self._note(server, 1, _Entry(self._batch, done=True))
            for each in {each.stream: each for each in (*own, *stages)}.values():
                client.stream(each.stream).delete(missing_ok=True)

    def _note(self, server: Server, sequence: int, entry: _Entry) -> bool:
        """Append an entry to the log, once: another attempt's entry of this number stands. Return
        False if a later batch has begun."""
        once = Once(self._producer, self._batch, sequence)
        try:
            server.run(
                partial(append_once, self._log, once, [msgspec.json.encode(entry)], JSON_TYPE)
            )
        except ProducerConflict:  # that attempt has other stages, and they count
            return True
        except ProducerFenced:
            return False
        return True

    def _noted(self, client: Client) -> tuple[list[Staged], bool]:
        """Return the stages of the batch's first attempt, and True if it is complete."""
        with client.stream(self._log).read() as reader:
            entries = [record.decode(_Entry) for record in reader]
        own = [entry for entry in entries if entry.batch == self._batch]
        return own[0].stages, any(entry.done for entry in own)

    def _append(self, client: Client, server: Server, stages: Sequence[Staged]) -> None:
        """Append all rows, in order of partition. The appends depend on the stages only."""
        rows = (row for stage in stages for row in staged_rows(client, stage))
        kind = RECORDS_TYPE if any(stage.whole for stage in stages) else JSON_TYPE
        sequences: dict[str, int] = {}
        for stream, records in chunks(rows):
            sequence = sequences.setdefault(stream, 0)
            if not sequence:
                _ensure(client, stream)
            once = Once(self._producer, self._batch, sequence)
            server.run(partial(append_once, stream, once, records, kind))
            sequences[stream] = sequence + 1


def folder_of(options: SinkOptions, query: str) -> str:
    """Return the prefix of the streams that a query's sink uses."""
    return f"{options.staging}/{query}"


def chunks(rows: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, list[bytes]]]:
    """Gather the rows of each stream into appends. Which rows share one depends on the rows
    only."""
    gathered: dict[str, list[bytes]] = {}
    sizes: dict[str, int] = {}
    for stream, record in rows:
        kept = gathered.setdefault(stream, [])
        size = sizes.get(stream, 0) + len(record)
        if kept and (size > APPEND_BYTES or len(kept) == APPEND_RECORDS):
            yield stream, kept
            kept = gathered[stream] = []
            size = len(record)
        kept.append(record)
        sizes[stream] = size
    yield from ((stream, kept) for stream, kept in gathered.items() if kept)


def _ensure(client: Client, stream: str) -> None:
    """Create a JSON stream if there is none."""
    target = client.stream(stream)
    try:
        target.head()
    except StreamNotFound:
        target.create(content_type=JSON_TYPE)


class Once(msgspec.Struct, frozen=True):
    """The place of an append in a query: its batch is the producer's epoch."""

    producer: str
    epoch: int
    sequence: int


def append_once(
    stream: str, once: Once, records: Sequence[bytes], kind: str, retry: Retry
) -> Operation[None]:
    """Append encoded records of a media type: JSON values or whole records. A repeat succeeds and
    adds nothing. Raises ProducerFenced if a later epoch has begun."""
    headers = {
        "content-type": kind,
        "producer-id": once.producer,
        "producer-epoch": str(once.epoch),
        "producer-seq": str(once.sequence),
    }
    body = b"[" + b",".join(records) + b"]"
    request = HttpRequest("POST", stream_target(stream), headers, body)
    yield from call(request, retry, f"append to '{stream}'", lambda _: None, repeatable=True)
