"""Choose the files of a table that a job merges. Pure.

Files below the full size are in tiers by size. When a tier has enough files, they and all smaller
ones are merged: so each row is rewritten about once a tier, and few small files stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from polynya.lakehouse.jobs.plan import Merge, Merged, TableRef, Task
from polynya.lakehouse.schema.partitions import Value

TIERS = 4
JOB_BYTES_MAX = 2 << 30  # input of one job: until it ends, the table gets no new rows


def merge_tasks(live: dict[str, list[Merged]], table: TableRef, *, whole: bool) -> list[Task]:
    """Return the merges that are due, at most about `JOB_BYTES_MAX`; with `whole`, all small files
    are due."""
    tasks: list[Task] = []
    size = 0
    for part, files in live.items():
        for own in by_partition(files):
            for group in chosen(own, table.merge_files, table.merge_bytes, whole=whole):
                if size >= JOB_BYTES_MAX:
                    return tasks
                tasks.append(Task(len(tasks), [], [], Merge(part, group)))
                size += sum(file.size for file in group)
    return tasks


def by_partition(files: Sequence[Merged]) -> Iterable[list[Merged]]:
    """Return the files of each partition value."""
    found: dict[tuple[Value, ...], list[Merged]] = {}
    for file in files:
        found.setdefault(tuple(file.partition), []).append(file)
    return found.values()


def chosen(
    files: Sequence[Merged], count: int, full_bytes: int, *, whole: bool
) -> list[list[Merged]]:
    """Return the groups of files that become one file each, of `full_bytes` to twice as much where
    there is enough."""
    small = sorted((file for file in files if file.size < full_bytes), key=lambda file: file.key)
    due = small if whole else _due(small, count, full_bytes)
    return [group for group in _groups(due, full_bytes) if len(group) > 1]


def _due(small: list[Merged], count: int, full_bytes: int) -> list[Merged]:
    tiers = [tier_of(file.size, count, full_bytes) for file in small]
    crowded = [tier for tier in range(TIERS) if tiers.count(tier) >= max(2, count)]
    return [
        file for file, tier in zip(small, tiers, strict=True) if crowded and tier <= crowded[-1]
    ]


def tier_of(size: int, count: int, full_bytes: int) -> int:
    """Return the tier of a small file: `TIERS - 1` for those that `count` of make a full one."""
    tier, bound = TIERS - 1, full_bytes / max(2, count)
    while tier and size < bound:
        tier, bound = tier - 1, bound / max(2, count)
    return tier


def _groups(files: list[Merged], full_bytes: int) -> Iterator[list[Merged]]:
    group: list[Merged] = []
    size = 0
    for file in files:
        group.append(file)
        size += file.size
        if size >= full_bytes:
            yield group
            group, size = [], 0
    yield group
