"""The offsets of a streaming query: for each stream its incarnation and next record. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from polynya.spark.options import SourceOptions
from polynya.spark.planning import DataLoss, Span, bound
from polynya.spark.server import Tail
from polynya.spark.starts import Start

Offsets = dict[str, list[int]]  # stream: [uid, record], as JSON in Spark's checkpoint


def initial(tails: Mapping[str, Tail], starting: Start) -> Offsets:
    """Return where a new query begins. Streams that come later begin at their first record."""
    begin = bound(tails, starting)
    return {name: [tails[name].uid, begin[name]] for name in sorted(tails)}


def latest(
    tails: Mapping[str, Tail], start: Offsets | None, records_max: int, bytes_max: int = 0
) -> Offsets:
    """Return where the next micro-batch ends: at the tails, or after `records_max` records and
    about `bytes_max` bytes from `start`, of which each stream gets its share."""
    end = {name: [tail.uid, tail.next] for name, tail in sorted(tails.items())}
    if start is None or not (records_max or bytes_max):
        return end
    backlog = behind(tails, start)
    total = sum(backlog.values())
    limit = min(records_max or total, _records_of(tails, backlog, bytes_max) or total)
    if total <= limit:
        return end
    # Shares are differences of a sum that is rounded once, so that they are exact together. The
    # phase moves on with each batch: no stream is rounded to nothing each time.
    at = sum(record for _, record in start.values()) % total
    for name, waiting in backlog.items():
        share = (at + waiting * limit) // total - at // total
        at += waiting * limit
        end[name][1] -= waiting - share
    return end


def _records_of(tails: Mapping[str, Tail], backlog: Mapping[str, int], bytes_max: int) -> int:
    """Return about how many records of a backlog have so many bytes, at least one; 0: no limit."""
    if not bytes_max:
        return 0
    size = sum(
        waiting * tails[name].size // max(1, tails[name].next - tails[name].first)
        for name, waiting in backlog.items()
    )
    total = sum(backlog.values())
    return max(1, total * bytes_max // size) if size > bytes_max else total


def capped(tails: Mapping[str, Tail], target: dict[str, Tail]) -> dict[str, Tail]:
    """Return the tails as they were for a target: without later streams and records. The first
    tail of a stream that was created again becomes its target."""
    found = {}
    for name, tail in tails.items():
        if (wanted := target.get(name)) is None:
            continue
        if wanted.uid != tail.uid:
            wanted = target[name] = tail
        end = max(tail.first, min(tail.next, wanted.next))
        found[name] = Tail(tail.uid, tail.first, end, tail.content_type, tail.size)
    return found


def behind(tails: Mapping[str, Tail], start: Offsets) -> dict[str, int]:
    """Return how many records of each stream are not read yet."""
    return {name: tail.next - _begin(start, name, tail) for name, tail in sorted(tails.items())}


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
