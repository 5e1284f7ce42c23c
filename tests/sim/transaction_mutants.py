"""Defects of a stream as a participant of transactions; sim/mutants.py tries them."""

from __future__ import annotations

from typing import Any

from sim.code_edits import edited_function
from sim.knobs import Knobs

from polynya.cold.rewriting import merged_slices
from polynya.stream.features.appends import kafka as kafka_writes
from polynya.stream.features.appends import transactions
from polynya.stream.features.markers import rules

_END = "end_transaction(machine, stream, end.producer, commit=end.commit)"
_FOUND = "machine.directory.by_uid.get(uid)"
_KEPT = "(end.number, end.marker.record_time_ms_max, log_ms)"

TRANSACTION: dict[str, tuple[Any, str, Any]] = {
    "the marker of one stream is skipped": (
        rules.apply_txn_markers,
        "__code__",
        edited_function(
            rules.apply_txn_markers,
            _FOUND,
            f"None if uid == command.uids[-1][0] else {_FOUND}",
        ).__code__,
    ),
    "a commit marker aborts": (
        rules,
        "_mark",
        edited_function(rules._mark, _END, _END.replace("end.commit", "False")),
    ),
    "an abort marker commits": (
        rules,
        "_mark",
        edited_function(rules._mark, _END, _END.replace("end.commit", "True")),
    ),
    "the number of an ended transaction is not kept": (
        rules,
        "_end_in_stream",
        edited_function(rules._end_in_stream, _KEPT, _KEPT.replace("end.number", "0")),
    ),
    "the number is not kept without data": (
        rules,
        "_end_in_stream",
        edited_function(
            rules._end_in_stream, _KEPT, _KEPT.replace("end.number", "opened and end.number or 0")
        ),
    ),
    "the number that ended last is accepted": (
        kafka_writes,
        "judge_number",
        edited_function(kafka_writes.judge_number, "number <= ended[0]", "number < ended[0]"),
    ),
    "batches of an aborted transaction in memory are not marked": (
        transactions,
        "_abort",
        edited_function(transactions._abort, "batch.flags |= ABORTED", "pass"),
    ),
    "an abort leaves no row": (
        transactions,
        "_abort",
        edited_function(
            transactions._abort,
            "stream.kafka.aborted += ROW.pack(producer, first, marker, stable_of(stream)[0])",
            "pass",
        ),
    ),
    "rows of aborted transactions go early": (
        transactions,
        "without_settled",
        lambda rows, span, is_needed: b"",
    ),
    "a merge leaves out what was aborted later": (
        merged_slices,
        "decided_flags",
        lambda found, record, rows: found.batch_flags,
    ),
    "a marker in the index has no record number": (
        rules,
        "_append_inline",
        edited_function(
            rules._append_inline, "stream.next_record += cold.records", "stream.next_record += 0"
        ),
    ),
    "a marker waits in memory beside packs": (
        rules,
        "_is_in_index",
        lambda machine, stream: False,
    ),
}
TRANSACTION_CAUGHT_BY = {
    **dict.fromkeys(TRANSACTION, ("transactions", Knobs.draw(0), 5)),
    **dict.fromkeys(
        (
            "a merge leaves out what was aborted later",
            "a marker in the index has no record number",
        ),
        ("transactions", Knobs.draw(1), 5),
    ),
    "a marker waits in memory beside packs": ("transactions", Knobs.draw(6), 10),
}
