"""The batches of a Produce request: their checks, also in a thread, and what is stored of them."""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c

from polynya.base.limits import KIB, TIME_MS_MAX
from polynya.front.kafka.configs import TIMES_AFTER, TIMES_BEFORE
from polynya.front.kafka.errors import Error
from polynya.front.kafka.topics.catalog import OpenTopic
from polynya.routing.handle import StreamHandle
from polynya.stream.parts import TRANSACTIONAL, Batch, Encoding, Producer
from polynya.wire.kafka import batches
from polynya.wire.kafka.batches import BatchHeader, InvalidBatch
from polynya.wire.kafka.generated.produce import PartitionProduceResponse
from polynya.wire.kafka.primitives import Bytes
from polynya.wire.kafka.record_checks import (
    check_decoded,
    check_records,
    is_compressed,
    keyless_of,
    oldest_of,
    uncompressed_bytes_max,
)

_KAFKA_KIND = 1
_Checked = tuple[bytes, int, BatchHeader, int]  # a batch, its CRC, its header, its newest time
# the uncompressed bytes of a request that are checked on the loop: a record costs up to 0.7 us, and
# hostile ones, with a header in each two bytes, cost 40 ms
AT_ONCE_BYTES = 256 * KIB


class SentBatch:
    """A batch as a producer sent it, the stream of its partition, and the answer to fill in."""

    __slots__ = (
        "_checked",
        "_data",
        "_oldest_ms",
        "_topic",
        "answer",
        "is_again",
        "rules",
        "stream",
        "work",
    )

    def __init__(
        self,
        records: Bytes | None,
        topic: OpenTopic,
        stream: StreamHandle,
        answer: PartitionProduceResponse,
    ) -> None:
        self.rules = rules = topic.rules
        self.stream = stream
        self.answer = answer
        self.is_again = False  # it was proposed with a stale number of its transaction
        self._data = data = records or b""
        self._topic = topic.topic.name
        self._oldest_ms = -1  # of a record, where times are bounded; -1: none has a time
        self._checked: _Checked | InvalidBatch | None = None
        # the bytes that `check` looks at one by one; those of a full check count as too many
        self.work = uncompressed_bytes_max(data)
        if rules.is_decoded:
            compressed = is_compressed(data)
            passes = 1 + rules.has_times + rules.needs_keys
            self.work = AT_ONCE_BYTES + 1 if compressed else self.work * passes

    def check(self) -> _Checked | InvalidBatch:
        """Check the batch: its bytes, the CRC of all of them, its header, its newest time. This is
        all that takes long, and it may run in a thread."""
        rules = self.rules
        try:
            if len(self._data) > rules.batch_bytes_max:
                raise _TooLarge(
                    f"a batch of {len(self._data)} bytes; topic {self._topic} takes at most "
                    f"{rules.batch_bytes_max} (max.message.bytes)"
                )
            payload = bytes(self._data)  # the one copy: the request's buffer goes after this
            crc = google_crc32c.value(payload)
            header = batches.check_batch(payload, crc)
            newest_ms = (check_decoded if rules.is_decoded else check_records)(payload, header)
            if rules.has_times:
                self._oldest_ms = oldest_of(payload, header)
            if rules.needs_keys and (keyless := keyless_of(payload, header)) >= 0:
                raise InvalidBatch(
                    f"record {keyless} of the batch has no key; topic {self._topic} is compacted "
                    "(cleanup.policy), so each record needs one"
                )
        except InvalidBatch as invalid:
            self._checked = invalid
            return invalid
        self._checked = checked = (payload, crc, header, newest_ms)
        return checked

    def transactional_pair(self) -> tuple[int, int] | None:
        """Return the producer and its epoch if the batch is of a transaction, and valid."""
        checked = self._checked or self.check()
        if isinstance(checked, InvalidBatch):
            return None
        header = checked[2]
        if not header.attributes & batches.TRANSACTIONAL:
            return None
        return header.producer_id, header.producer_epoch

    def stored(self, now_ms: Callable[[], int]) -> tuple[Batch, Producer | None] | None:
        """Return the batch as it is stored, and its producer; None: the answer has the refusal."""
        checked, answer = self._checked or self.check(), self.answer
        if isinstance(checked, InvalidBatch):
            answer.error_code, answer.error_message = _error_of(checked), str(checked)
            return None
        payload, crc, header, newest_ms = checked
        rules = self.rules
        if rules.has_times and (why := self._out_of_time(newest_ms, now_ms())):
            answer.error_code, answer.error_message = Error.INVALID_TIMESTAMP, why
            return None
        if rules.log_append_time:
            newest_ms = answer.log_append_time_ms = now_ms()
            payload = batches.stamped(payload, newest_ms)
            crc = google_crc32c.value(payload)
        elif newest_ms > TIME_MS_MAX:
            answer.error_code = Error.INVALID_TIMESTAMP
            answer.error_message = (
                f"a record has the time {newest_ms}; expected milliseconds since 1970, until the "
                "year 9999"
            )
            return None
        elif newest_ms != header.max_timestamp:  # as Kafka does; look-ups by time use it
            payload = batches.dated(payload, newest_ms)
            crc = google_crc32c.value(payload)
        time_ms = max(0, newest_ms)
        flags = TRANSACTIONAL if header.attributes & batches.TRANSACTIONAL else 0
        batch = Batch(
            Encoding.KAFKA, header.records, payload, crc, flags=flags, record_time_ms_max=time_ms
        )
        return batch, None if header.producer_id < 0 else _producer_of(header)

    def _out_of_time(self, newest_ms: int, now_ms: int) -> str:
        """Return which record's time is too far from the server's; "": none. A record without a
        time may be in any topic."""
        rules, oldest_ms = self.rules, self._oldest_ms
        if 0 <= oldest_ms < now_ms - rules.before_ms_max:
            far, config, most = f"{oldest_ms}, before", TIMES_BEFORE, rules.before_ms_max
        elif newest_ms > now_ms + rules.after_ms_max:
            far, config, most = f"{newest_ms}, after", TIMES_AFTER, rules.after_ms_max
        else:
            return ""
        return (
            f"a record has the time {far} that of the server, {now_ms}, by more than topic "
            f"{self._topic} allows: {most} ms ({config})"
        )


def check_all(sent: list[SentBatch]) -> None:
    """Check the batches of a request."""
    for each in sent:
        each.check()


def _producer_of(header: BatchHeader) -> Producer:
    return Producer(
        str(header.producer_id),
        header.producer_epoch,
        header.base_sequence,
        header.last_sequence,
        _KAFKA_KIND,
    )


class _TooLarge(InvalidBatch):
    pass


def _error_of(invalid: InvalidBatch) -> Error:
    if isinstance(invalid, _TooLarge):
        return Error.MESSAGE_TOO_LARGE
    if isinstance(invalid, batches.OldFormat):
        return Error.UNSUPPORTED_FOR_MESSAGE_FORMAT
    return (
        Error.CORRUPT_MESSAGE if isinstance(invalid, batches.CorruptBatch) else Error.INVALID_RECORD
    )
