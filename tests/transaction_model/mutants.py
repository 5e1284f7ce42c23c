"""Defects as edits of the model's rules: the checker must catch each. Not here are those that no
model can have: a partition given before it was revoked (KIP-848 has a rule of its own), and a gap of
a mirror filled with the wrong offset (a mirror has no transactions)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any
from unittest import mock

from sim.code_edits import edited_function

from transaction_model import backups, compaction, coordinator, participant, readers, storage, world
from transaction_model import state as s
from transaction_model.backups import Backup
from transaction_model.clients import Front
from transaction_model.run import WORLDS, play
from transaction_model.world import Group, World


@dataclass(frozen=True)
class Edit:
    """A replacement in a function of a module or class, or another function in its place."""

    owner: Any
    name: str
    old: str = ""
    new: Any = ""

    def made(self) -> Any:
        if self.old:
            return edited_function(getattr(self.owner, self.name), self.old, self.new)
        return self.new


def answered_before_logged(self: Group, command: Any, answer: Any) -> None:
    if isinstance(command, s.TxnEnd):
        answer(world.apply(deepcopy(self.state), command, self.world.now))
        answer = world.ignore
    term = self.term
    self.world.at(40, lambda: self._commit(term, command, answer))


def asked_of_a_deposed_leader(here: World, command: s.TxnAsk) -> Any:
    group = here.groups[command.producer >> s.PID_SHIFT]

    def ask(answer: Any) -> None:
        state = copy(group.state)
        state.transactions = deepcopy(group.stale)
        answer(coordinator.apply_ask(state, command, here.now))

    return here.exchange(ask, 1200)


def renewed_by_one(state: s.GroupState, txn: s.Transaction) -> None:
    coordinator.bump(state, txn)
    txn.previous, txn.state = (-1, -1), s.EMPTY
    txn.messages, txn.streams, txn.groups = set(), {}, {}


def none_is_old(self: Group, command: Any) -> bool:
    return False


_MARKERS = "TxnMarkers(txn.producer, epoch, txn.number, commit, uids, groups)"
_WITHOUT = "if not txn.messages:\n    complete(txn)"
_COUNTED = "yield from self._release()\nuntouched = yield from self._is_untouched()"
_RETAKEN = "yield from self._retake()\nuntouched = yield from self._is_untouched()"
_FILTER = "not span[1]"
_RENEWED = "txn.producer, txn.epoch, txn.previous = (new_pid(state), 0, (-1, -1))"


def _edit(*arguments: Any) -> tuple[Edit, ...]:
    return (Edit(*arguments),)


EDITS: dict[str, tuple[Edit, ...]] = {
    "the marker of one stream is skipped": _edit(
        coordinator, "messages_of", _MARKERS, _MARKERS.replace("uids", "uids[1:]")
    ),
    "the markers of one group are skipped": _edit(
        coordinator, "messages_of", "return messages", "return messages[1:]"
    ),
    "a commit marker is sent as an abort": _edit(
        coordinator, "messages_of", _MARKERS, _MARKERS.replace("commit", "commit and not messages")
    ),
    "`ended` is not set": _edit(participant, "end_in_stream", "stream.ended[pid] = number", "pass"),
    "`ended` is not set without data": _edit(
        participant,
        "end_in_stream",
        "stream.ended[pid] = number",
        "if opened is not None:\n    stream.ended[pid] = number",
    ),
    "the number that ended last is taken": _edit(
        participant,
        "judged",
        "command.number <= stream.ended.get(command.pid, 0)",
        "command.number < stream.ended.get(command.pid, 0)",
    ),
    "the uid is not checked": _edit(
        participant, "find", "state.streams.get(uid)", "state.streams.get(state.names.get(name, 0))"
    ),
    "a row goes with an undecided entry left": _edit(
        participant, "is_needed", "(entry.hot or entry.flags & UNDECIDED)", "entry.hot"
    ),
    "a row goes with a hot batch left": _edit(
        participant,
        "is_needed",
        "(entry.hot or entry.flags & UNDECIDED)",
        "entry.flags & UNDECIDED",
    ),
    "the merger does not set flag 4": _edit(
        storage, "merge_plan", "decided(entry, stream.rows)", "entry.batches"
    ),
    "the decider does not set flag 4": _edit(
        storage, "decide_plan", "decided(entry, stream.rows)", "entry.batches"
    ),
    "the merger decides above the stable end": _edit(
        storage, "merge_bound", "stream.stable_end", "stream.next"
    ),
    "the decider decides above the stable end": _edit(
        storage, "decide_plan", "entry.end <= stream.stable_end", "True"
    ),
    "flag 8 is cleared over an aborted row": _edit(
        storage,
        "decide_plan",
        "replace(entry, batches=batches, flags=flags_of(batches))",
        "replace(entry, flags=0)",
    ),
    "an undecided entry is paged": _edit(
        storage,
        "is_pageable",
        "not (entry.hot or entry.paged or entry.flags & UNDECIDED)",
        "not (entry.hot or entry.paged)",
    ),
    "a flushed slice is taken for decided": _edit(
        storage,
        "flush_plan",
        "flags_of(batches) | (UNDECIDED if undecided else 0)",
        "flags_of(batches)",
    ),
    "a joined span takes the flags of the first batch": _edit(
        readers,
        "is_joined",
        "alike and (not one.transactional or one.pid == other.pid)",
        "one.control == other.control",
    ),
    "a span joins two producers": _edit(
        readers, "is_joined", "alike and (not one.transactional or one.pid == other.pid)", "alike"
    ),
    "the filter is missing in forks": _edit(readers, "inherited_rows", _FILTER, "True"),
    "the filter is missing in packs": _edit(readers, "pack_rows", _FILTER, "True"),
    "the filter is missing in hot batches": _edit(readers, "hot_rows", _FILTER, "True"),
    "the rows are missing in the plan of a table": _edit(
        readers, "table_rows", "spans(entry, claimed.rows)", "spans(entry, ())"
    ),
    "the aborted list has one entry a producer": _edit(
        readers, "aborted_list", "running.discard(batch.pid)", "pass"
    ),
    "offsets are visible before the marker": _edit(
        participant,
        "apply_txn_offsets",
        "group.pending[command.producer] = (number, {**pending, **dict(command.positions)})",
        "group.positions.update(command.positions)",
    ),
    "offsets are dropped at the commit": _edit(
        participant, "end_in_group", "group.positions[stream] = offset", "pass"
    ),
    "the group's `ended` is not set": _edit(
        participant, "end_in_group", "group.ended[pid] = number", "pass"
    ),
    "a plain commit is overwritten by a marker": _edit(
        participant, "apply_commit_offsets", "drop_pending(group, stream)", "pass"
    ),
    "an old epoch is accepted": _edit(
        coordinator,
        "judge",
        "(producer, epoch) == (txn.producer, txn.epoch)",
        "producer == txn.producer",
    ),
    "the answer does not wait for PREPARE": _edit(Group, "propose", "", answered_before_logged),
    "a transaction completes with an acknowledgement missing": _edit(
        coordinator,
        "apply_acknowledge",
        _WITHOUT,
        "if len(txn.messages) < 2:\n"
        "    for left in txn.messages:\n"
        "        state.outbox.pop(left, None)\n"
        "    txn.messages = set()\n"
        "    complete(txn)",
    ),
    "an epoch is bumped twice": _edit(
        coordinator, "apply_acknowledge", "complete(txn)", "complete(txn)\nbump(state, txn)"
    ),
    "Expire does not look at the number": _edit(
        coordinator, "apply_expire", "txn.number != command.number", "False"
    ),
    "a former instance takes its id back": _edit(
        coordinator,
        "apply_init",
        "bump(state, txn)\ntxn.previous = sent",
        "bump(state, txn)\ntxn.previous = current",
    ),
    "a deposed leader answers TxnAsk": _edit(world, "ask", "", asked_of_a_deposed_leader),
    "TxnAsk does not know a former producer id": _edit(
        coordinator,
        "apply_ask",
        "asked in txn.outcomes",
        "asked in txn.outcomes and txn.producer == command.producer",
    ),
    "a settled transaction raises the epoch": _edit(
        participant,
        "apply_settle",
        "TxnMarkers(pid, command.epoch, number, command.commit, (), ())",
        "TxnMarkers(pid, stream.producers[pid].epoch + 1 if pid in stream.producers else 0, "
        "number, command.commit, (), ())",
    ),
    "an operator settles what is open": _edit(
        world,
        "settle",
        "if reply is not None and reply.value is not None:\n"
        "    commit, epoch = reply.value\n"
        "    yield world.call(group.number, s.TxnSettle(pid, epoch, number, commit, uid), slow=0.1)",
        "commit, epoch = reply and reply.value or (False, -1)\n"
        "yield world.call(group.number, s.TxnSettle(pid, epoch, number, commit, uid), slow=0.1)",
    ),
    "markers for an evicted stream are acknowledged": _edit(
        participant,
        "apply_markers",
        "Reply(Code.EVICTED if evicted else Code.OK, evicted)",
        "Reply(Code.OK, ())",
    ),
    "an eviction under way loses `ended`": _edit(
        participant, "mark_of", "tuple(stream.ended.items())", "()"
    ),
    "a producer with an open transaction makes room": _edit(
        participant,
        "make_room",
        "next((pid for pid in stream.producers if pid not in stream.open), None)",
        "next(iter(stream.producers), None)",
    ),
    "a deleted stream keeps what is open": _edit(
        participant, "release", "stream.open = {}", "pass"
    ),
    "a batch that was given up asks for the next number": _edit(
        Front, "may_ask", "connection.is_open", "True"
    ),
    "a request of an older connection is taken": _edit(
        Group, "is_of_old_connection", "", none_is_old
    ),
    "an inline marker is lost in a merge": _edit(storage, "is_merged", "True", "not entry.inline"),
    "an inline marker is lost in a page": _edit(storage, "is_in_page", "True", "not entry.inline"),
    "an inline marker is lost in a backup": _edit(
        backups, "is_in_backup", "True", "not entry.inline"
    ),
    "the hold is missing in one group": (
        Edit(Backup, "held", "self.every", "self.every[:-1]"),
        Edit(Backup, "counted", "self.every", "self.every[:-1]"),
    ),
    "groups are captured before each commit has its markers": _edit(
        Backup, "is_drained", "", lambda self: True
    ),
    "a hold that expired is not seen": _edit(
        Backup, "_round", _COUNTED, "yield from self._release()\nuntouched = True"
    ),
    "a group is captured again after a commit": _edit(
        Backup, "_round", _RETAKEN, "yield from self._retake()"
    ),
    "an abort marker is dropped before its data": _edit(
        compaction,
        "is_marker_dropped",
        "batch.base < made.began and not made.pinned",
        "True",
    ),
    "control batches have a key": _edit(
        compaction,
        "is_marker_dropped",
        "batch.base < made.began and not made.pinned",
        "batch.base < made.end - 1",
    ),
    "`cleaned` is raised after a refused slice": _edit(
        compaction, "is_complete", "taken and not made.pinned", "not made.pinned"
    ),
    "`cleaned` is raised under a pin": (
        Edit(compaction, "is_complete", "taken and not made.pinned", "taken"),
        Edit(
            compaction,
            "apply_cleaned",
            "stream is None or stream.cleaned != command.began or stream.pins",
            "stream is None or stream.cleaned != command.began",
        ),
    ),
    "a tombstone is dropped with what it deletes": _edit(
        compaction,
        "is_dropped",
        "record[2].endswith(DELETED) and record[0] < made.began and not made.pinned",
        "record[2].endswith(DELETED)",
    ),
    "an aborted value wins a key": _edit(
        compaction, "is_mapped", "not batch.control and not batch.aborted", "not batch.control"
    ),
    "the last batch is removed": _edit(compaction, "is_last", "entry is entries[-1]", "False"),
    "a restore keeps what is open": _edit(backups, "reborn", "[*stream.open.items()]", "[]"),
    "a restore keeps pending offsets": _edit(backups, "reborn", "[*group.pending.items()]", "[]"),
    "a restore keeps epochs": _edit(backups, "renew", _RENEWED, "txn.previous = (-1, -1)"),
    "a restore raises epochs by one": _edit(backups, "renew", "", renewed_by_one),
}


CAUGHT_BY: dict[str, tuple[str, int]] = {  # the world and the seed that catch it first
    "the marker of one stream is skipped": ("plain", 0),
    "the markers of one group are skipped": ("plain", 0),
    "a commit marker is sent as an abort": ("plain", 0),
    "`ended` is not set": ("plain", 0),
    "`ended` is not set without data": ("evicted", 0),
    "the number that ended last is taken": ("evicted", 0),
    "the uid is not checked": ("recreated", 1),
    "a row goes with an undecided entry left": ("plain", 0),
    "a row goes with a hot batch left": ("operated", 4),
    "the merger does not set flag 4": ("plain", 0),
    "the decider does not set flag 4": ("plain", 0),
    "the merger decides above the stable end": ("plain", 0),
    "the decider decides above the stable end": ("plain", 0),
    "flag 8 is cleared over an aborted row": ("plain", 0),
    "an undecided entry is paged": ("plain", 0),
    "a flushed slice is taken for decided": ("plain", 0),
    "a joined span takes the flags of the first batch": ("plain", 0),
    "a span joins two producers": ("plain", 0),
    "the filter is missing in forks": ("plain", 0),
    "the filter is missing in packs": ("plain", 0),
    "the filter is missing in hot batches": ("plain", 0),
    "the rows are missing in the plan of a table": ("plain", 0),
    "the aborted list has one entry a producer": ("plain", 0),
    "offsets are visible before the marker": ("consumers", 0),
    "offsets are dropped at the commit": ("consumers", 0),
    "the group's `ended` is not set": ("backups", 0),
    "a plain commit is overwritten by a marker": ("consumers", 4),
    "an old epoch is accepted": ("recreated", 0),
    "the answer does not wait for PREPARE": ("consumers", 1),
    "a transaction completes with an acknowledgement missing": ("plain", 0),
    "an epoch is bumped twice": ("plain", 0),
    "Expire does not look at the number": ("evicted", 0),
    "a former instance takes its id back": ("recreated", 2),
    "a deposed leader answers TxnAsk": ("evicted", 0),
    "TxnAsk does not know a former producer id": ("consumers", 7),
    "a settled transaction raises the epoch": ("operated", 0),
    "an operator settles what is open": ("operated", 0),
    "markers for an evicted stream are acknowledged": ("evicted", 0),
    "an eviction under way loses `ended`": ("evicted", 136),
    "a producer with an open transaction makes room": ("ghosts", 0),
    "a deleted stream keeps what is open": ("recreated", 0),
    "a batch that was given up asks for the next number": ("operated", 17),
    "a request of an older connection is taken": ("consumers", 1),
    "an inline marker is lost in a merge": ("plain", 0),
    "an inline marker is lost in a page": ("consumers", 1),
    "an inline marker is lost in a backup": ("backups", 7),
    "the hold is missing in one group": ("backups", 28),
    "groups are captured before each commit has its markers": ("backups", 42),
    "a hold that expired is not seen": ("backups", 34),
    "a group is captured again after a commit": ("backups", 2),
    "an abort marker is dropped before its data": ("compacted", 4),
    "control batches have a key": ("compacted", 4),
    "`cleaned` is raised after a refused slice": ("compacted", 1),
    "`cleaned` is raised under a pin": ("compacted", 0),
    "a tombstone is dropped with what it deletes": ("compacted", 2),
    "an aborted value wins a key": ("compacted", 0),
    "the last batch is removed": ("compacted", 23),
    "a restore keeps what is open": ("backups", 0),
    "a restore keeps pending offsets": ("backups", 2),
    "a restore keeps epochs": ("backups", 15),
    "a restore raises epochs by one": ("backups", 30),
}


@contextlib.contextmanager
def applied(edits: tuple[Edit, ...]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for edit in edits:
            stack.enter_context(mock.patch.object(edit.owner, edit.name, edit.made()))
        yield


def first_catch(
    name: str, seeds: int, worlds: Iterable[str] = WORLDS
) -> tuple[str, int, str] | None:
    """Return the world and the seed that catch the mutant first, and a violation."""
    with applied(EDITS[name]):
        for seed in range(seeds):
            for each in worlds:
                if found := play(each, seed):
                    return each, seed, found[0]
    return None


if __name__ == "__main__":
    import sys

    for mutant in EDITS:
        if len(sys.argv) < 2 or sys.argv[1] in mutant:
            print(f"{mutant}: {first_catch(mutant, 30)}", flush=True)  # noqa: T201
