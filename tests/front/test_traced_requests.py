"""`bench.trace` counts what a request passes through, of HTTP and of Kafka, the same each time."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench import trace  # noqa: E402  (not a part of the package)

# the most calls of requests whose way was made short
BUDGETS = {
    "learned append": 30,
    "Kafka Produce": 106,
    "Kafka Fetch": 90,
    "Kafka Fetch, wakes": 115,
}
FILES = {"learned append": 13}
RISE = 1.25  # of the calls that are kept, until `python -m bench.trace --save` keeps others


def test_each_kind_of_request_is_counted(tmp_path: Path) -> None:
    kept = json.loads(trace.COUNTS.read_text())
    found = {each.name: each.counts for each in asyncio.run(trace.traced(tmp_path))}
    assert list(found) == list(kept)
    assert {"learned append", "Kafka Produce", "Kafka Fetch", "Kafka Fetch, wakes"} < {*found}
    for name, counts in found.items():
        assert 0 < counts.rooms <= counts.files <= counts.calls, name
        assert counts.files <= FILES.get(name, counts.files), f"{name}: {counts.files} files"
        assert counts.calls <= BUDGETS.get(name, kept[name]["calls"] * RISE), (
            f"{name} passes through {counts.calls} calls, {kept[name]['calls']} before: see "
            "`python -m bench.trace --calls`"
        )
    assert found["learned append"].calls < found["first append"].calls
    assert found["Kafka Fetch"].calls < found["Kafka Fetch, wakes"].calls


def test_the_wake_of_a_fetch_is_what_it_adds_to_the_produce() -> None:
    both, produce, fetch = trace.Trace(), trace.Trace(), trace.Trace()
    both.calls = ["front/a.py:f", "service/b.py:g", "front/a.py:h", "stream/c.py:i"]
    produce.calls = ["front/a.py:f", "service/b.py:g"]
    fetch.calls = ["front/d.py:f"]
    assert trace.without(both, produce, fetch) == trace.Counts(2, 2, 2, 2)
