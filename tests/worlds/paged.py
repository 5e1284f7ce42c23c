"""Pages wherever a test wants them: of any entries of an index, as if they had been closed for long."""

from __future__ import annotations

from random import Random

from polynya.cold import Groups, MergeSettings
from polynya.cold.pager import Pager, _Planned
from polynya.cold.steps import Steps
from polynya.objectstore import ObjectStore
from polynya.stream.state import index
from polynya.stream.state.entries import ENTRY_BYTES


async def no_pause(seconds: float) -> None:
    raise AssertionError("nothing fails here")


async def page_out(
    groups: Groups, store: ObjectStore, cluster: str, name: str, dice: Random, most: int = 5
) -> int:
    """Put runs of entries of a stream into pages of two to `most` entries; return how many."""
    machine = next(each for each in groups.machines().values() if name in each.directory.streams)
    stream = machine.directory.streams[name]
    pager = Pager(groups, Steps(groups, store, no_pause), MergeSettings(), cluster, set())
    at = made = 0
    while stream.cold is not None and at < index.count(stream.cold):
        size = dice.randint(2, most)
        found = machine.packs.index_of(stream)[at : at + size]
        if len(found) < 2 or any(cold.is_page for cold in found) or dice.random() < 0.2:
            at += 1
            continue
        entries = index.cut(stream.cold, at, at + len(found))
        span = index.span(entries, 0, len(found))
        numbers = index.pack_numbers(entries)
        planned = _Planned(
            *span, entries, {each: machine.packs.by_number[each] for each in numbers}
        )
        assert len(entries) == len(found) * ENTRY_BYTES
        made += await pager._write(machine.group, stream.uid, planned)
        at += 1
    return made
