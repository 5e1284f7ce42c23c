"""Defects in the rules for Kafka's producers, and in how their batches are kept and fetched;
sim/mutants.py tries them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function
from sim.knobs import Knobs

from polynya.cold import planner
from polynya.front.kafka import fetch, leaders, produce, repeated_fetches
from polynya.front.kafka.errors import Error
from polynya.local.reads import pieces
from polynya.routing import in_flight
from polynya.stream.features.appends import kafka as kafka_writes
from polynya.wire.kafka import batches


async def _no_times(reader: Any, cold: Any, spans: Any, *, kafka: bool) -> None:
    """Leave the spans with the largest of their times."""


KAFKA: dict[str, tuple[Any, str, Any]] = {
    "a Kafka batch that was applied is not known again": (
        kafka_writes,
        "_judge_producer",
        edited_function(
            kafka_writes._judge_producer,
            "(begin, end) == (producer.sequence, producer.sequence_last)",
            "(begin, end) == (producer.sequence, -1)",
        ),
    ),
    "a retried Kafka batch gets the place of the newest": (
        kafka_writes,
        "_judge_producer",
        edited_function(
            kafka_writes._judge_producer,
            "reply.first_record = record",
            "reply.first_record = receipts[0][2]",
        ),
    ),
    "an older epoch of a Kafka producer is taken": (
        kafka_writes,
        "_judge_producer",
        edited_function(
            kafka_writes._judge_producer, "producer.epoch < epoch", "producer.epoch < epoch - 1"
        ),
    ),
    "a Kafka sequence does not wrap": (
        kafka_writes,
        "_judge_producer",
        edited_function(kafka_writes._judge_producer, "(last + 1) & SEQUENCE_MAX", "last + 1"),
    ),
    "receipts end where a Kafka sequence wraps": (
        kafka_writes,
        "_keep",
        edited_function(
            kafka_writes._keep,
            "producers.STATE.unpack_from(known)[0] == producer.epoch",
            "producers.STATE.unpack_from(known)[0] == producer.epoch and first",
        ),
    ),
    "a gap in a Kafka producer's batches is taken": (
        kafka_writes,
        "_judge_producer",
        edited_function(
            kafka_writes._judge_producer,
            "producer.sequence == (last + 1) & SEQUENCE_MAX",
            "0 <= (producer.sequence - last - 1) & SEQUENCE_MAX < 8",
        ),
    ),
    "the CRC of a Kafka batch is not checked": (
        batches,
        "check_batch",
        edited_function(
            batches.check_batch,
            "not has_crc",
            "False",
        ),
    ),
    "a fetched Kafka batch keeps the base offset of its producer": (
        fetch,
        "place_all",
        edited_function(
            batches.place_all,
            "_BASE.pack(base_offset, length, leader_epoch)",
            "bytes(view[at:at + 12]) + bytes(4)",
        ),
    ),
    "a slice goes on where the encoding changes": (
        planner,
        "_joined_until",
        edited_function(
            planner._joined_until,
            "[*map(_ENCODING, batches)].count(first.encoding) < len(batches)",
            "False",
        ),
    ),
    "what HTTP wrote into a partition is fetched as it is stored": (
        fetch,
        "build_batches",
        lambda page: None,
    ),
    "the leader epoch that a client gives is ignored": (
        leaders,
        "epoch_error",
        lambda given, epoch: Error.NONE,
    ),
    "a repeated fetch gets the old answer though its partitions grew": (
        repeated_fetches.RepeatedFetch,
        "answered",
        edited_function(
            repeated_fetches.RepeatedFetch.answered,
            "if parked.is_touched:\n    return max(0.0, until - loop.time())",
            "pass",
        ),
    ),
    "what HTTP wrote is fetched without the times of its appends": (
        pieces,
        "fill_append_times",
        _no_times,
    ),
    "a leader that may refuse one batch gets the next ones": (
        in_flight.InFlight,
        "can_join",
        edited_function(
            in_flight.InFlight.can_join, "self._accepting.get(group) == target", "True"
        ),
    ),
    "a batch that was judged before an earlier one has a gap": (
        produce._Produce,
        "_done",
        edited_function(
            produce._Produce._done,
            "answer.error_code == Error.OUT_OF_ORDER_SEQUENCE "
            "and (is_pipelined or self._may_close(command.name))",
            "False",
        ),
    ),
}
_FRONT = "front/test_kafka_front.py::"
KAFKA_STORIES = {
    "the CRC of a Kafka batch is not checked": f"{_FRONT}test_refused_batches_change_nothing",
    "a fetched Kafka batch keeps the base offset of its producer": (
        f"{_FRONT}test_what_is_produced_is_fetched_with_its_offsets"
    ),
    "a slice goes on where the encoding changes": (
        "cold/test_mixed_encodings.py::test_a_slice_ends_where_the_encoding_changes"
    ),
    "what HTTP wrote into a partition is fetched as it is stored": (
        "front/test_adopted_streams.py::test_kafka_reads_what_http_wrote_and_both_write"
    ),
    "the leader epoch that a client gives is ignored": (
        "front/test_kafka_leaders.py::test_a_client_with_another_leader_epoch_is_told_the_leader"
    ),
    "a repeated fetch gets the old answer though its partitions grew": (
        "front/test_kafka_repeated_fetches.py::test_a_repeat_waits_and_is_woken"
    ),
    "what HTTP wrote is fetched without the times of its appends": (
        "front/test_adopted_streams.py::test_what_http_wrote_has_the_time_of_its_append"
    ),
    "a leader that may refuse one batch gets the next ones": (
        "replica/test_order_at_a_new_leader.py::"
        "test_no_batch_is_a_gap_behind_acknowledged_ones_while_leadership_moves"
    ),
    "a batch that was judged before an earlier one has a gap": (
        f"{_FRONT}"
        "test_a_batch_that_is_judged_before_an_earlier_one_is_to_be_sent_again_and_has_no_gap"
    ),
}
KAFKA_CAUGHT_BY = dict.fromkeys(KAFKA.keys() - KAFKA_STORIES.keys(), ("kafka", Knobs(1))) | {
    "a gap in a Kafka producer's batches is taken": ("kafka", Knobs(3))
}
