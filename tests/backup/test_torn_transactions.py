"""Transactions that copies of different times may have torn are named by a restore."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

from worlds.backup import BackedUp, made
from worlds.cold import CLUSTER, GROUPS

from polynya.base.names import group_of
from polynya.objectstore import MemoryStore, ObjectStore
from polynya.recovery import restore
from polynya.recovery.restore import RestoredState, RestoreOrigin, RestoreResult
from polynya.stream.features.forks.commands import Acknowledge
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.transactions.commands import TxnAdd, TxnEnd, TxnInit
from polynya.stream.parts import Encoding
from polynya.stream.snapshots.encode import decode_image, snapshot_of

NAME = "kafka/t/0"


def commit(tier: BackedUp, id_: str, *, commit: bool = True) -> None:
    """End a transaction with one stream; its coordinator is in group 1."""
    world = tier.world
    made = world.apply(group_of(NAME, GROUPS), Create(NAME, world.now, "", Encoding.KAFKA))
    producer, epoch = world.apply(1, TxnInit(id_, world.now, 1000)).detail
    streams = [(group_of(NAME, GROUPS), made.uid, NAME)]
    world.apply(1, TxnAdd(id_, producer, epoch, world.now, streams, [], 2))
    world.apply(1, TxnEnd(id_, producer, epoch, commit, 2, world.now))
    for number, (target, command) in list(world.machines()[1].outbox.messages.items()):
        world.apply(target, command)
        world.apply(1, Acknowledge(number))


class Copies:
    """States that were copied one after the other, of which `has_whole_transactions` speaks."""

    def __init__(self, *, is_whole: bool) -> None:
        self.has_whole_transactions = is_whole
        self._states: dict[int, tuple[bytes, int]] = {}

    def copy(self, tier: BackedUp, group: int) -> None:
        """Copy the state of a group, a second after what was before."""
        tier.world.now += 1000
        self._states[group] = snapshot_of(tier.world.machines()[group]), tier.world.now

    async def state(self, group: int) -> RestoredState:
        state, now_ms = self._states[group]
        return RestoredState(decode_image(state), {}, now_ms)

    async def objects(self, store: ObjectStore, done: RestoreResult) -> None:
        pass


def warnings(folder: Path, *, is_whole: bool) -> list[str]:
    """Return those of a restore from copies between which transactions ended."""
    tier, copies = BackedUp(), Copies(is_whole=is_whole)
    commit(tier, "before")
    for group in (0, 2):
        copies.copy(tier, group)
    tier.world.now += 1000
    commit(tier, "after")
    commit(tier, "dropped", commit=False)
    for group in (1, 3):
        copies.copy(tier, group)
    origin = RestoreOrigin(cluster_id=CLUSTER, history=2, groups=GROUPS)
    return asyncio.run(made(folder, origin, copies, MemoryStore())).warnings


def test_a_commit_after_the_copy_of_another_group_is_named(tmp_path: Path) -> None:
    """Name neither an earlier commit nor an abort."""
    (warning,) = warnings(tmp_path, is_whole=False)
    assert "the transaction 1 of after (producer " in warning
    assert "after the copies of the groups 2:" in warning


def test_copies_without_a_commit_between_them_name_nothing(tmp_path: Path) -> None:
    assert warnings(tmp_path, is_whole=True) == []


def test_only_the_last_ones_are_named(tmp_path: Path) -> None:
    with mock.patch.object(restore, "TORN_NAMED", 0):
        (warning,) = warnings(tmp_path, is_whole=False)
    assert warning == "1 earlier transactions may have lost parts, too"
