"""Beginnings and ends by time as record numbers. A record's own time decides, as in Kafka."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from polynya.base.errors import PolynyaError
from polynya.client.blocking.generated.client import Client
from polynya.spark.options import SourceOptions
from polynya.spark.selection import Found
from polynya.spark.server import Tail
from polynya.spark.starts import AtTime, Start

PAGE_BYTES = 1 << 20  # the record lies in the first append of the answer, unless that is larger


class _Timed(msgspec.Struct):
    """A whole record, of which the time counts: its own, else that of its append."""

    offset: int
    timestamp: int | None = None
    append_time: int | None = None


def resolved(found: Found, options: SourceOptions) -> tuple[Start, Start]:
    """Return the beginning and the end of a read as words or numbers by stream. Raises
    PolynyaError."""
    return resolve(found, options, options.starting), resolve(found, options, options.ending)


def resolve(found: Found, options: SourceOptions, wanted: Start) -> Start:
    """Return a beginning or an end as a word, or numbers by stream. Raises PolynyaError."""
    aliases = found.aliases
    if isinstance(wanted, dict):
        return {aliases.get(name, name): number for name, number in wanted.items()}
    if not isinstance(wanted, AtTime):
        return wanted
    own = {aliases.get(name, name): time for name, time in wanted.own_ms.items()}
    connection = options.connection
    with Client(connection.server, token=connection.token) as client:
        return _numbers(client, found.tails, AtTime(wanted.all_ms, own, wanted.strict))


def _numbers(client: Client, tails: Mapping[str, Tail], at: AtTime) -> dict[str, int]:
    numbers = {}
    for name, tail in tails.items():
        time_ms = at.of(name)
        if time_ms is None:
            continue
        number = first_since(client, name, time_ms) if tail.next > tail.first else None
        if number is None and at.strict:
            raise PolynyaError(
                f"stream '{name}' has no record of {time_ms} ms since 1970 or later; set "
                "startingOffsetsByTimestampStrategy to 'latest' to begin at its tail"
            )
        numbers[name] = tail.next if number is None else max(tail.first, number)
    return numbers


def first_since(client: Client, name: str, time_ms: int) -> int | None:
    """Return the number of the first record whose time is not before `time_ms`; None: there is
    none."""
    reading = client.stream(name).read(
        from_record_time=str(time_ms), whole_records=True, max_bytes=PAGE_BYTES
    )
    with reading as reader:
        for page in reader.pages():
            for raw in page.raws:
                record = msgspec.json.decode(raw, type=_Timed)
                time = record.timestamp if record.timestamp is not None else record.append_time
                if time is None or time >= time_ms:
                    return record.offset
    return None
