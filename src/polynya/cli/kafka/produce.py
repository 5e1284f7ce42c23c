"""`polynya produce`: write records to a Kafka topic from arguments or stdin."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from polynya.cli.kafka.brokers import Failures, brokers_option, explained, kafka_config
from polynya.cli.remote.client import Client, server_option
from polynya.cli.streams.append import gathered
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.complete import complete_topic

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_FLUSH_SLICE_SECONDS = 0.5  # between two looks at what failed


@dataclass(frozen=True)
class Sent:
    """One record to write."""

    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, str | bytes | None]] = field(default_factory=list)
    partition: int = -1
    timestamp: int = 0


@click.command("produce")
@click.argument("topic", shell_complete=complete_topic)
@click.argument("values", nargs=-1)
@options.value("--key KEY", help="The key of every record.")
@options.value(
    "--key-separator", "-K TEXT", "separator", help="Each argument or line is KEY TEXT VALUE."
)
@options.value(
    "--header NAME=VALUE",
    "headers",
    multiple=True,
    help="A header of every record; may be repeated.",
)
@options.value("--partition", type=options.Number(0), help="Write to this partition.")
@options.value("--compression", type=click.Choice(CODECS), default="none", help="The codec.")
@options.retry("30s", "Retry timeout of a record.")
@options.json_flag(
    "Each argument or line is a record as 'consume --json' prints it: value, key, headers."
)
@brokers_option
@server_option
def produce_command(
    client: Client,
    topic: str,
    values: tuple[str, ...],
    brokers: str | None,
    as_json: bool,
    compression: str,
    retry: float,
    partition: int | None,
    **parts: Any,
) -> None:
    """Write VALUES, or the lines of stdin, to the Kafka topic TOPIC: one record each.

    A missing topic is created with one partition. Records of one key go to one partition. Each
    record is retried until it is durable, and stored once. An access token is presented by SASL.

    \b
    polynya produce orders '{"item": 7}' --key shop-1
    polynya produce orders -K : < keys-and-values.txt
    polynya consume orders --json --exit | polynya produce orders-copy --json
    """
    shape = _Shape(as_json=as_json, partition=-1 if partition is None else partition, **parts)
    failures = Failures()
    config = kafka_config(client, brokers, failures) | {
        "enable.idempotence": True,
        "compression.type": compression,
        "message.timeout.ms": max(1, round(retry * 1000)),
        "allow.auto.create.topics": True,
        "linger.ms": 5,
    }
    writer = _Writer(config, topic, failures)
    try:
        for line in _lines(values):
            writer.write(shape.record_of(line, writer.taken + 1))
    finally:
        writer.finish()
        output.notice(f"produced {output.counted(writer.written, 'record')} to {topic}")
    writer.check()


def _lines(values: Sequence[str]) -> Iterator[bytes]:
    if values:
        yield from (value.encode() for value in values)
        return
    source = sys.stdin.buffer
    if source.isatty():
        output.notice("reading records from the terminal, one per line; Ctrl-D ends")
    for lines in gathered(source, keep=bool):
        yield from (line.removesuffix(b"\n") for line in lines)


class _Shape:
    """The way in which a line is a record."""

    def __init__(
        self,
        *,
        as_json: bool,
        partition: int,
        key: str | None,
        separator: str | None,
        headers: Sequence[str],
    ) -> None:
        if as_json and (key is not None or separator is not None or headers):
            raise click.UsageError("with --json each record has its own key and headers")
        if key is not None and separator is not None:
            raise click.UsageError("--key and --key-separator both set the key; pass one of them")
        if separator == "":
            raise click.UsageError("--key-separator is empty; expected a text such as ':'")
        self._as_json, self._partition = as_json, partition
        self._key = None if key is None else key.encode()
        self._separator = None if separator is None else separator.encode()
        self._headers = [_header(text) for text in headers]

    def record_of(self, line: bytes, number: int) -> Sent:
        """Return the record of a line. Raises `exits.Refused`."""
        if self._as_json:
            try:
                return _decoded(line, self._partition)
            except (ValueError, TypeError) as error:
                raise exits.Refused(f"record {number:,} is not a record as JSON: {error}") from None
        key = self._key
        if self._separator is not None:
            key, found, line = line.partition(self._separator)
            if not found:
                raise exits.Refused(
                    f"record {number:,} has no separator {self._separator.decode()!r}"
                )
        return Sent(line, key, self._headers, self._partition)


def _header(text: str) -> tuple[str, str | bytes | None]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--header {text!r}: expected NAME=VALUE")
    return name, value.encode()


def _decoded(line: bytes, partition: int) -> Sent:
    """Return a record from its JSON. Raises ValueError."""
    import msgspec

    found = msgspec.json.decode(line)
    if not isinstance(found, dict):
        raise TypeError('expected an object such as {"key": "a", "value": "b"}')
    unknown = found.keys() - {"value", "key", "headers", "partition", "offset", "timestamp"}
    if unknown or "value" not in found:
        raise ValueError(f"expected 'value', and no {', '.join(sorted(unknown)) or 'other field'}")
    headers: list[tuple[str, str | bytes | None]] = [
        (str(name), _bytes(value)) for name, value in found.get("headers") or []
    ]
    timestamp = found.get("timestamp") or 0
    if not isinstance(timestamp, int):
        raise TypeError("a timestamp is in milliseconds")
    return Sent(_bytes(found["value"]), _bytes(found.get("key")), headers, partition, timestamp)


def _bytes(value: Any) -> bytes | None:
    """Return the bytes of a string, of `{"$base64": …}`, or of any other JSON value. Raises
    ValueError."""
    import msgspec

    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"$base64"}:
        try:
            return base64.b64decode(value["$base64"], validate=True)
        except binascii.Error as error:
            raise ValueError(f"$base64: {error}") from None
    return msgspec.json.encode(value)


class _Writer:
    """An idempotent producer and what became of its records."""

    def __init__(self, config: dict[str, Any], topic: str, failures: Failures) -> None:
        from confluent_kafka import Producer

        self.taken = self.written = 0
        self._topic = topic
        self._failures = failures
        self._failed: KafkaError | None = None
        self._producer: Producer = Producer(config)

    def write(self, record: Sent) -> None:
        """Hand over a record, which may wait for those before it. Raises `exits.Ended`."""
        self.check()
        self.taken += 1
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    value=record.value,
                    key=record.key,
                    headers=record.headers or None,
                    partition=record.partition,
                    timestamp=record.timestamp,
                    on_delivery=self._delivered,
                )
                break
            except BufferError:
                self._producer.poll(_FLUSH_SLICE_SECONDS)
                self.check()
        self._producer.poll(0)

    def finish(self) -> None:
        """Wait until each record is durable or has failed."""
        while self._producer.flush(_FLUSH_SLICE_SECONDS) and self._failures.refused is None:
            pass

    def check(self) -> None:
        """Raise `exits.Ended` if a record failed, or all of them will."""
        self._failures.check()
        if self._failed is not None:
            raise explained(self._failed, f"a record was not written to {self._topic}")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.written += 1
        elif self._failed is None:
            self._failed = error
