"""The lag of a streaming query: what the streams have, and the query has not read yet. Spark lets no
Python source add metrics to a query's progress, so a program asks for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from polynya.base.errors import ConfigError
from polynya.spark.cursors import Cursors, NodeBases
from polynya.spark.options import source_options
from polynya.spark.positions import behind
from polynya.spark.selection import find
from polynya.spark.server import Server


class Lag(msgspec.Struct, frozen=True):
    """The records behind a query, over all streams and of each that has some."""

    records: int
    streams: dict[str, int]


def lag(progress: Any, options: Mapping[str, str], *, source: int = 0) -> Lag | None:
    """Return the lag of a query as of its last batch; None before the first one.

    `progress` is a query, or its progress as listeners get it. `options` are those of its reader, and
    `source` is the reader's place among the sources. Raises ConfigError, PolynyaError."""
    wanted = source_options(options)
    coded = _end_of(getattr(progress, "lastProgress", progress), source)
    if coded is None:
        return None
    offsets = Cursors(NodeBases(wanted.connection), wanted.cursors).decode(coded)
    with Server(wanted.connection) as server:
        waiting = behind(find(server, wanted).tails, offsets)
    return Lag(sum(waiting.values()), {name: count for name, count in waiting.items() if count})


def _end_of(progress: Any, source: int) -> dict[str, Any] | None:
    """Return the end of the last batch of one source. Raises ConfigError."""
    if progress is None:
        return None
    known = json.loads(progress.json) if hasattr(progress, "json") else progress
    sources = known.get("sources", [])
    if not 0 <= source < len(sources):
        raise ConfigError(f"the query has {len(sources)} sources; {source} is not one of them")
    end = sources[source].get("endOffset")
    end = json.loads(end) if isinstance(end, str) else end
    if end is not None and not isinstance(end, dict):
        raise ConfigError(f"source {source} of the query is not of format('polynya')")
    return end
