"""The offsets of a streaming query: for each stream its incarnation and next record. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from polynya.spark.options import SourceOptions, Start
from polynya.spark.planning import DataLoss, Span, bound
from polynya.spark.server import Tail

Offsets = dict[str, list[int]]  # stream: [uid, record], as JSON in Spark's checkpoint


def initial(tails: Mapping[str, Tail], starting: Start) -> Offsets:
    """Return where a new query begins. Streams that come later begin at their first record."""
    begin = bound(tails, starting)
    return {name: [tails[name].uid, begin[name]] for name in sorted(tails)}


def latest(tails: Mapping[str, Tail], start: Offsets | None, records_max: int) -> Offsets:
    """Return where the next micro-batch ends: at the tails, or after about `records_max` records
    from `start`, of which each stream gets its share."""
    end = {name: [tail.uid, tail.next] for name, tail in sorted(tails.items())}
    if not records_max or start is None:
        return end
    backlog = {name: tail.next - _begin(start, name, tail) for name, tail in tails.items()}
    total = sum(backlog.values())
    if total <= records_max:
        return end
    return {
        name: [
            tail.uid,
            _begin(start, name, tail) + -(-backlog[name] * records_max // total),
        ]
        for name, tail in sorted(tails.items())
    }


def spans_between(start: Offsets, end: Offsets, *, strict: bool) -> list[Span]:
    """Return the spans of a micro-batch. The result depends on the offsets only, so that a
    repeated batch has the same rows. Raises DataLoss."""
    spans = []
    for name, (uid, record) in sorted(end.items()):
        known, first = start.get(name, [uid, 0])
        if known != uid:
            if strict:
                raise _deleted(name)
            first = 0
        if first < record:
            spans.append(Span(name, uid, first, record, known=name in start))
    gone = sorted(start.keys() - end.keys())
    if gone and strict:
        raise _deleted(gone[0])
    return spans


def _begin(start: Offsets, name: str, tail: Tail) -> int:
    uid, record = start.get(name, [tail.uid, tail.first])
    return min(max(record, tail.first), tail.next) if uid == tail.uid else tail.first


def _deleted(name: str) -> DataLoss:
    return DataLoss(
        f"stream '{name}' was deleted, perhaps before all of its records were read; set the option "
        "failOnDataLoss to 'false' to go on without them"
    )


def check_named(tails: Mapping[str, Tail], options: SourceOptions) -> None:
    """Raise DataLoss if a named stream does not exist."""
    missing = [name for name in options.streams if name not in tails]
    if missing and options.fail_on_data_loss:
        raise _missing(missing[0])


def _missing(name: str) -> DataLoss:
    return DataLoss(
        f"there is no stream '{name}' to read; create it, or set the option failOnDataLoss to "
        "'false' to wait for it"
    )
