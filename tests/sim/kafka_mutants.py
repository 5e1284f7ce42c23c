"""Defects in the rules for Kafka's producers, and in how their batches are kept and fetched;
sim/mutants.py tries them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function
from sim.knobs import Knobs

from polynya.cold import planner
from polynya.front.kafka import fetch
from polynya.stream.rules import kafka_writes
from polynya.wire.kafka import batches

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
            "not _has_crc(batch, header.crc, whole_crc)",
            "False",
        ),
    ),
    "a fetched Kafka batch keeps the base offset of its producer": (
        fetch,
        "place_all",
        edited_function(
            batches.place_all,
            "_PLACE.pack(base_offset, length, leader_epoch)",
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
}
KAFKA_CAUGHT_BY = dict.fromkeys(KAFKA.keys() - KAFKA_STORIES.keys(), ("kafka", Knobs(1))) | {
    "a gap in a Kafka producer's batches is taken": ("kafka", Knobs(3))
}
