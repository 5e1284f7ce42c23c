"""`polynya consume`: print the records of a Kafka topic."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from polynya.cli.kafka.brokers import (
    ANSWER_SECONDS,
    Failures,
    brokers_option,
    explained,
    kafka_config,
)
from polynya.cli.remote.client import Client, server_option
from polynya.cli.terminal import exits, output
from polynya.cli.terminal.complete import complete_topic
from polynya.cli.terminal.values import BEGIN, SECONDS

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

_POLL_SECONDS = 0.2
_LOOK_SECONDS = 2.0  # between two looks at what failed
_BATCH = 500
_LAST_MAX = 1_000_000_000


class KafkaBegin(click.ParamType):  # type: ignore[type-arg]
    """`start`, `now`, an offset such as 42, `-20`, `10m`, `2026-11-01T00:00Z`."""

    name = "where"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return ("start" | "now" | "offset" | "last" | "time", number)."""
        if isinstance(value, tuple):
            return value
        text = str(value).strip()
        if text in ("start", "now"):
            return text, 0
        if text.isascii() and text.isdigit():
            return "offset", int(text[:18])
        begin = BEGIN.convert(text, param, ctx)
        if begin.last is not None:
            return "last", min(begin.last, _LAST_MAX)
        if not begin.time:
            self.fail(f"{value!r} is an offset over HTTP; a Kafka offset is a number", param, ctx)
        if begin.time.endswith("Z"):
            return "time", round(datetime.fromisoformat(begin.time).timestamp() * 1000)
        return "time", round((time.time() - SECONDS.convert(begin.time, param, ctx)) * 1000)


@click.command("consume")
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "--from",
    "begin",
    metavar="WHERE",
    type=KafkaBegin(),
    default="start",
    show_default=True,
    help="'start', 'now', an offset (42), the last N of each partition (-N), an age (10m), or a "
    "time.",
)
@click.option(
    "--partition",
    "partitions",
    metavar="N",
    type=click.IntRange(0),
    multiple=True,
    help="Read this partition alone; may be repeated.",
)
@click.option("--limit", metavar="N", type=click.IntRange(1), help="Stop after N records.")
@click.option("--exit", "-e", "ends", is_flag=True, help="Stop at the present end of the topic.")
@click.option(
    "--key-separator", "-K", "separator", metavar="TEXT", help="Print KEY TEXT VALUE in each line."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print each record as an object: partition, offset, timestamp, key, headers, value.",
)
@brokers_option
@server_option
def consume_command(
    client: Client,
    topic: str,
    begin: tuple[str, int],
    partitions: tuple[int, ...],
    limit: int | None,
    ends: bool,
    brokers: str | None,
    separator: str | None,
    as_json: bool,
) -> None:
    """Print the records of the Kafka topic TOPIC, one value in each line, and follow it until
    Ctrl-C.

    The order is that of each partition. A value without a newline at its end gets one. An access
    token is presented by SASL.

    \b
    polynya consume orders
    polynya consume orders --from -10 --exit -K ' '
    polynya consume orders --from 10m --json | jq .headers
    polynya consume orders --partition 2 --from 4711 --limit 1
    """
    if as_json and separator is not None:
        raise click.UsageError("--json prints the key; leave --key-separator out")
    failures = Failures()
    config = kafka_config(client, brokers, failures) | {
        "group.id": "polynya-consume",  # named, never joined: partitions are assigned
        "enable.auto.commit": False,
        "enable.partition.eof": ends,
        "auto.offset.reset": "earliest",
    }
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(config)
    try:
        places = _places(consumer, topic, partitions, begin, failures)
        consumer.assign(places)
        _print_all(consumer, len(places) if ends else 0, limit, failures, (as_json, separator))
    except KafkaException as error:
        failures.check()
        raise explained(error.args[0], f"{topic} cannot be read") from None
    finally:
        consumer.close()


def _places(
    consumer: Consumer,
    topic: str,
    wanted: Sequence[int],
    begin: tuple[str, int],
    failures: Failures,
) -> list[TopicPartition]:
    """Return the partitions and where each begins. Raises `exits.Ended` and KafkaException."""
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    found = _partitions(consumer, topic, failures)
    if missing := sorted(set(wanted) - set(found)):
        raise exits.Refused(f"{topic} has {len(found)} partitions; there is no {missing[0]}")
    kind, number = begin
    fixed = {"start": OFFSET_BEGINNING, "now": OFFSET_END, "offset": number}
    places = [
        TopicPartition(topic, each, fixed.get(kind, number)) for each in sorted(wanted or found)
    ]
    if kind == "time":
        return list(consumer.offsets_for_times(places, timeout=ANSWER_SECONDS))
    for place in places if kind == "last" else ():
        low, high = consumer.get_watermark_offsets(place, timeout=ANSWER_SECONDS)
        place.offset = max(low, high - number)
    return places


def _partitions(consumer: Consumer, topic: str, failures: Failures) -> list[int]:
    from confluent_kafka import KafkaException

    until = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            found = consumer.list_topics(topic, timeout=_LOOK_SECONDS).topics[topic]
            break
        except KafkaException as error:
            consumer.poll(0)  # what failed is told here alone
            failures.check()
            if time.monotonic() >= until:
                why = failures.last or error.args[0]
                raise exits.Unreachable(f"the brokers do not answer: {why.str()}") from None
    if found.error is not None:
        raise exits.Refused(
            f"topic {topic}: {found.error.str()}",
            code=found.error.name(),
            hint="'polynya ls kafka/' lists the partitions of all topics.",
        )
    return list(found.partitions)


def _print_all(
    consumer: Consumer,
    ends: int,
    limit: int | None,
    failures: Failures,
    form: tuple[bool, str | None],
) -> None:
    """Print what comes: until `ends` partitions are read to their end, or up to the limit."""
    from confluent_kafka import KafkaError

    left, at_end = limit, set[int]()
    while left is None or left > 0:
        count = _BATCH if left is None else min(left, _BATCH)
        lines = []
        for message in consumer.consume(count, _POLL_SECONDS):
            error = message.error()
            if error is None:
                lines.append(_line(message, *form))
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition() or 0)
            elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # librdkafka looks for a coordinator although no group is joined
            elif not error.retriable():
                raise explained(error, f"{message.topic()} cannot be read")
        if lines:
            output.data(b"".join(lines))
        if left is not None:
            left -= len(lines)
        failures.check()
        if ends and len(at_end) == ends:
            return


def _line(message: Message, as_json: bool, separator: str | None) -> bytes:
    value: Any = message.value()
    key: Any = message.key()
    if as_json:
        return _json_line(message, key, value)
    line = value or b""
    if separator is not None:
        line = (key or b"") + separator.encode() + line
    return bytes(line) if line.endswith(b"\n") else bytes(line) + b"\n"


def _json_line(message: Message, key: bytes | None, value: bytes | None) -> bytes:
    from polynya.wire.kafka.batches import Record
    from polynya.wire.kafka.values import show_record

    headers: Any = message.headers() or []
    record = Record(key, value, message.timestamp()[1], headers, offset=message.offset() or 0)
    return b'{"partition":%d,' % (message.partition() or 0) + show_record(record)[1:-1] + b"\n"
