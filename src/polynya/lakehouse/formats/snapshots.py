"""The snapshots of an Iceberg table that stay: the last ones, recent ones, and those with tags."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pyiceberg.table import Transaction
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update.snapshot import ExpireSnapshots, ManageSnapshots

from polynya.base.limits import TABLE_SNAPSHOTS_KEPT, TABLE_SNAPSHOTS_KEPT_MAX

EXPIRE_EVERY_JOBS = 10  # an expiry costs as many copies of the metadata as snapshots expire
_VERSIONS_PROPERTY = "write.metadata.previous-versions-max"


class Keeping(NamedTuple):
    """The snapshots that a table keeps."""

    last: int = TABLE_SNAPSHOTS_KEPT  # the last ones …
    age_ms: int = 0  # … those that were current so recently …
    tags: Mapping[str, str] = MappingProxyType({})  # … and these, by name


DEFAULT = Keeping()


def keep(transaction: Transaction, keeping: Keeping, job: int) -> None:
    """Set the tags of the table, now and then expire what it does not keep, and keep the metadata
    files of the snapshots. `job` is 0 for a new table."""
    if job:
        _set_tags(transaction, keeping.tags)
        if job % EXPIRE_EVERY_JOBS == 0:
            _expire(transaction, keeping)
    _keep_metadata(transaction, keeping)


def _keep_metadata(transaction: Transaction, keeping: Keeping) -> None:
    """Keep the metadata file of each kept snapshot in the log: the sweep leaves what it names."""
    most = TABLE_SNAPSHOTS_KEPT_MAX if keeping.age_ms else keeping.last
    wanted = str(most + EXPIRE_EVERY_JOBS)
    if transaction.table_metadata.properties.get(_VERSIONS_PROPERTY) != wanted:
        transaction.set_properties({_VERSIONS_PROPERTY: wanted})


def _set_tags(transaction: Transaction, tags: Mapping[str, str]) -> None:
    """Make the table's tags those of its snapshots that are still there: no expiry removes them."""
    metadata = transaction.table_metadata
    known = {
        name: ref.snapshot_id
        for name, ref in metadata.refs.items()
        if ref.snapshot_ref_type == SnapshotRefType.TAG
    }
    there = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    wanted = {name: int(number) for name, number in tags.items() if int(number) in there}
    if wanted == known:
        return
    changes = ManageSnapshots(transaction)
    for name, number in known.items():
        if wanted.get(name) != number:
            changes.remove_tag(name)
    for name, number in wanted.items():
        if known.get(name) != number:
            changes.create_tag(number, name)
    changes.commit()


def _expire(transaction: Transaction, keeping: Keeping) -> None:
    """Expire what is not kept. Only metadata changes; the server finds the unreferenced files."""
    metadata = transaction.table_metadata
    tagged = {ref.snapshot_id for ref in metadata.refs.values()}
    snapshots = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    last = kept_of(
        [snapshot.timestamp_ms for snapshot in snapshots], keeping, int(time.time() * 1000)
    )
    old = [each.snapshot_id for each in snapshots[:-last] if each.snapshot_id not in tagged]
    if old:
        ExpireSnapshots(transaction).by_ids(old).commit()


def kept_of(times_ms: Sequence[int], keeping: Keeping, now_ms: int) -> int:
    """Return how many of a table's last snapshots are kept. One is current until the next one, so
    it is kept as long as that one is in the time."""
    begin = now_ms - keeping.age_ms
    recent = sum(at >= begin for at in times_ms[1:]) + 1 if keeping.age_ms else 0
    return max(1, keeping.last, min(recent, TABLE_SNAPSHOTS_KEPT_MAX))
