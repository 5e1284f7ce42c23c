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
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.complete import complete_group, complete_topic
from polynya.cli.terminal.values import BEGIN, SECONDS

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, TopicPartition

_POLL_SECONDS = 0.2
_LOOK_SECONDS = 2.0  # between two looks at what failed
_BATCH = 500
_COMMIT_MS = 1000
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
@options.value(
    "--from",
    "begin",
    type=KafkaBegin(),
    default="start",
    help=(
        "'start', 'now', an offset (42), the last N of each partition (-N), an age (10m), or a "
        "time."
    ),
)
@options.value(
    "--partition",
    "partitions",
    type=options.Number(0),
    multiple=True,
    help="Read this partition alone; may be repeated.",
)
@options.value(
    "--group GROUP",
    shell_complete=complete_group,
    help="Join this consumer group: begin at its committed offsets, and commit what was printed.",
)
@options.value("--limit", type=options.Number(1), help="Stop after N records.")
@options.flag("--exit", "-e", "ends", help="Stop at the present end of the topic.")
@options.value("--key-separator", "-K TEXT", "separator", help="Print KEY TEXT VALUE in each line.")
@options.json_flag(
    "Print each record as an object: partition, offset, timestamp, key, headers, value."
)
@brokers_option
@server_option
def consume_command(
    client: Client,
    topic: str,
    begin: tuple[str, int],
    partitions: tuple[int, ...],
    group: str | None,
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

    With --group the members of GROUP share the partitions. --from 'start' or 'now' then counts
    where nothing is committed. A record may be printed twice if a member dies, and none is lost.

    \b
    polynya consume orders
    polynya consume orders --from -10 --exit -K ' '
    polynya consume orders --from 10m --json | jq .headers
    polynya consume orders --partition 2 --from 4711 --limit 1
    polynya consume orders --group readers
    """
    if as_json and separator is not None:
        raise click.UsageError("--json prints the key; leave --key-separator out")
    if group == "":
        raise click.UsageError("--group is empty; expected the name of a consumer group")
    if group is not None and (partitions or begin[0] not in ("start", "now")):
        raise click.UsageError(
            "--group begins at committed offsets: leave --partition out, and pass --from 'start' or "
            "'now' at most; 'polynya group reset-offsets' moves the offsets"
        )
    failures = Failures()
    config = kafka_config(client, brokers, failures) | {
        "group.id": group or "polynya-consume",  # without a group it is named, never joined
        "enable.auto.commit": group is not None,
        "enable.auto.offset.store": False,  # only what was printed is committed
        "auto.commit.interval.ms": _COMMIT_MS,
        "enable.partition.eof": ends,
        "auto.offset.reset": "latest" if group and begin[0] == "now" else "earliest",
    }
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(config)
    printer = _Printer(consumer, failures, (as_json, separator), in_group=group is not None)
    try:
        if group is None:
            printer.assign(_starts(consumer, topic, partitions, begin, failures))
        else:
            _partitions(consumer, topic, failures)
            printer.subscribe(topic)
        printer.print_all(limit, ends=ends)
    except KafkaException as error:
        failures.check()
        raise explained(error.args[0], f"{topic} cannot be read") from None
    finally:
        consumer.close()


def _starts(
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
    starts = [
        TopicPartition(topic, each, fixed.get(kind, number)) for each in sorted(wanted or found)
    ]
    if kind == "time":
        return list(consumer.offsets_for_times(starts, timeout=ANSWER_SECONDS))
    for start in starts if kind == "last" else ():
        low, high = consumer.get_watermark_offsets(start, timeout=ANSWER_SECONDS)
        start.offset = max(low, high - number)
    return starts


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


class _Printer:
    """Prints what a consumer reads from its partitions."""

    def __init__(
        self,
        consumer: Consumer,
        failures: Failures,
        form: tuple[bool, str | None],
        *,
        in_group: bool,
    ) -> None:
        self._consumer = consumer
        self._failures = failures
        self._form = form
        self._in_group = in_group
        self._assigned: set[int] | None = None  # None: the group has not assigned any yet
        self._at_end: set[int] = set()

    def assign(self, starts: list[TopicPartition]) -> None:
        """Read these partitions."""
        self._assigned = {start.partition for start in starts}
        self._consumer.assign(starts)

    def subscribe(self, topic: str) -> None:
        """Read the partitions that the group assigns."""
        self._consumer.subscribe([topic], on_assign=self._given)

    def _given(self, consumer: Consumer, starts: list[TopicPartition]) -> None:
        self._assigned, self._at_end = {start.partition for start in starts}, set()

    def print_all(self, limit: int | None, *, ends: bool) -> None:
        """Print what comes: up to the limit, or with `ends` until each partition is at its end."""
        left = limit
        while left is None or left > 0:
            count = _BATCH if left is None else min(left, _BATCH)
            found = [
                message
                for message in self._consumer.consume(count, _POLL_SECONDS)
                if self._is_record(message)
            ]
            if found:
                output.data(b"".join(_line(message, *self._form) for message in found))
                for message in found if self._in_group else ():
                    self._consumer.store_offsets(message)
                left = left if left is None else left - len(found)
            self._failures.check()
            if ends and self._assigned is not None and self._at_end >= self._assigned:
                return

    def _is_record(self, message: Message) -> bool:
        """Report whether it is a record, or note that it is none. Raises `exits.Ended`."""
        from confluent_kafka import KafkaError

        error = message.error()
        if error is None:
            return True
        if error.code() == KafkaError._PARTITION_EOF:
            self._at_end.add(message.partition() or 0)
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not self._in_group:
            pass  # librdkafka looks for a coordinator although no group is joined
        elif not error.retriable():
            raise explained(error, f"{message.topic() or 'the group'} cannot be read")
        return False


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
