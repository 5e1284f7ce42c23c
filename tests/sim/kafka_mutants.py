"""Defects in the rules for Kafka's producers; sim/mutants.py tries them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function
from sim.knobs import Knobs

from polynya.stream.rules import kafka_writes

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
}
KAFKA_CAUGHT_BY = dict.fromkeys(KAFKA, ("kafka", Knobs(1))) | {
    "a gap in a Kafka producer's batches is taken": ("kafka", Knobs(3))
}
