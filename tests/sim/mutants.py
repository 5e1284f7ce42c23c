"""Planted defects in a replicated core, one at a time. Each must be caught by a seed of the
simulated cluster, by a test, or by both.

`caught(name)` runs the tests that are known to fail, then tries seeds of the plain world and of
worlds drawn from seeds, until one fails. Run as a script, this file tries the mutants whose
names it reads, each in a process of its own."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from sim.code_edits import Stale, edited_function
from sim.commit_mutants import COMMIT
from sim.compaction_mutants import COMPACTION
from sim.condition_mutants import CONDITIONS
from sim.coordinator_mutants import COORDINATOR
from sim.copy_delta_mutants import COPY_DELTA
from sim.disk import SimDisk
from sim.diskless_writer_mutants import DISKLESS_WRITER
from sim.group_mutants import GROUP
from sim.kafka_mutants import KAFKA
from sim.knobs import Knobs
from sim.known_catches import CAUGHT_BY, SEEDS, STORIES, TRIED, Known
from sim.mutant_runs import TESTS, check_fault, failing_test, serve, watched
from sim.page_mutants import PAGE
from sim.reduced_mutants import REDUCED
from sim.slice_mutants import SLICE
from sim.together_mutants import TOGETHER
from sim.transaction_mutants import TRANSACTION
from sim.world_mutants import WORLD, WORLD_CAUGHT_BY

from polynya.admin.backup_routes import Backups
from polynya.backup import pruning
from polynya.backup import writer as taking
from polynya.backup.manifest import Manifest
from polynya.base.errors import Unavailable
from polynya.cluster.placement import PlacementReconciler
from polynya.cold import Collector, steps
from polynya.engine import leadership, replicated
from polynya.engine import log_clock as clocks
from polynya.engine.journal_writer import JournalWriter
from polynya.engine.replicas.journal_keeper import JournalKeeper
from polynya.engine.replicas.linearizable_reads import LinearizableReads
from polynya.engine.snapshots import catch_up, snapshotter
from polynya.engine.snapshots import encode as encoding
from polynya.engine.snapshots.snapshotter import portions
from polynya.local import local
from polynya.local.lifetimes import retention
from polynya.local.reads import pieces
from polynya.local.rehydration import Rehydration
from polynya.objectstore import ObjectStore, StoreError
from polynya.objectstore.api import AlreadyExists
from polynya.raft import (
    Configuration,
    Effects,
    Entry,
    HardState,
    Raft,
    Recovery,
    Role,
    Settings,
    election,
    following,
    leading,
    reading,
)
from polynya.raft import snapshots as raft_snapshots
from polynya.recovery.from_store import FromStore
from polynya.replica.member import Member
from polynya.replica.placement_goals import PlacementGoals
from polynya.service import assembly, retention_job
from polynya.stream.features.appends import producers
from polynya.stream.features.appends import rules as writes
from polynya.stream.features.lifetimes import rules as lifetimes
from polynya.stream.features.packs.commands import PackWritten
from polynya.stream.features.retention import rules as bounds
from polynya.stream.features.retention import trimming
from polynya.stream.features.subscriptions import links
from polynya.stream.features.subscriptions import rules as subscriptions
from polynya.stream.features.subscriptions.commands import SubscriptionEvent
from polynya.stream.features.subscriptions.state import State, Subscription
from polynya.stream.replies import Code
from polynya.stream.snapshots import encode as stream_snapshots
from polynya.stream.snapshots import restore_history, store_recovery
from polynya.stream.state.model import Stream
from polynya.stream.state.pack_ledger import PackLedger
from polynya.stream.state.record_gaps import JUMP
from polynya.subscriptions import Subscriptions
from polynya.subscriptions.links import SubscriptionLinks
from polynya.subscriptions.wakes import Wakes
from polynya.transport import PeerJournalPositions
from polynya.wal import SnapshotStore, recovery, writer


async def _at_once(reads: LinearizableReads, group: int) -> None:
    return None


def _count_alone(raft: Raft) -> None:
    if raft.durable > raft.commit and raft.log.term(raft.durable) == raft.term:
        raft.commit = raft.durable


def _without(field: str) -> Callable[..., None]:
    stage = JournalWriter.stage

    def staged(writes: JournalWriter, member: Member, effects: Effects) -> None:
        setattr(effects, field, None)
        stage(writes, member, effects)

    return staged


def _too_early() -> Callable[..., None]:
    stage = JournalWriter.stage

    def staged(writes: JournalWriter, member: Member, effects: Effects) -> None:
        stage(writes, member, effects)
        member.raft.persisted(effects.ticket, member.raft.now_ms)

    return staged


async def _not_waited_for(
    self: steps.Steps, key: str, parts: Any, owner_group: int, groups: list[int]
) -> None:
    with suppress(StoreError):
        await self.store.put(key, parts)
    await self._insist(
        lambda: self.groups.propose(owner_group, PackWritten(key, groups, self.groups.now_ms()))
    )


async def _believes_409(store: ObjectStore, key: str, parts: Any) -> None:
    with suppress(AlreadyExists):
        await store.put(key, parts)


def _condemned_at_once(packs: PackLedger, before_ms: int) -> Iterator[str]:
    return (key for key, pack in packs.owned.items() if pack.written_ms <= before_ms)


def _without_producers() -> Callable[[Stream], Stream]:
    sound = stream_snapshots.without_payload
    return lambda stream: msgspec.structs.replace(sound(stream), producers=None)


async def _by_the_map_alone(reconciler: PlacementReconciler, group: int) -> bool:
    await reconciler._lifecycle.drop(group, reported_ms=2**62)
    return True


def _dropped_is_not_noticed(journal: Recovery, state: HardState) -> None:
    journal._seen = True


def _any_vote(configuration: Configuration, votes: dict[int, bool]) -> bool | None:
    """Count any vote, also of learners and removed members."""
    return sum(votes.values()) > len(configuration.voters) // 2 or None


def _learners_too(configuration: Configuration, value: Callable[[int], int]) -> int:
    members = (*configuration.voters, *configuration.learners)
    return sorted(map(value, members))[(len(members) - 1) // 2]


def _claims_at_once(subscription: Subscription, command: SubscriptionEvent) -> Code:
    subscription.lease_until_ms = 0
    return subscriptions._claim(subscription, command)


def _campaigns_at_once(raft: Raft) -> None:
    if raft.role is not Role.LEADER and election.may_campaign(raft):
        raft.quiescent = False
        election._campaign(raft, forced=False)


def _forgets_producers(stream: Stream) -> None:
    stream.next_record += JUMP
    stream.producers = None


def _cuts_what_follows() -> Callable[[Raft, list[Entry]], None]:
    """Truncate the log behind the entries of a message, and so drop those of a later one."""
    sound = following._extend

    def extend(raft: Raft, entries: list[Entry]) -> None:
        sound(raft, entries)
        if raft.log.last > entries[-1].index:
            raft.cut(entries[-1].index + 1)

    return extend


def _follows_each_step(clock: clocks.LogClock) -> int:
    """Follow the wall clock relative to its last reading: a step back is ignored, a step forward
    is taken."""
    boot, wall = clock._boot(), clock._wall()
    elapsed, (since, shown) = boot - clock._boot_ms, _SHOWN.setdefault(id(clock), (boot, wall))
    ahead = wall - shown - (boot - since)
    _SHOWN[id(clock)] = boot, wall
    if elapsed > 0:
        clock._boot_ms = boot
        clock._log_ms += elapsed + (ahead if ahead > clocks.STEP_MS else 0.0)
    return int(clock._log_ms)


_SHOWN: dict[int, tuple[float, float]] = {}


def _end_for_error(files: SimDisk, fd: int, length: int, offset: int) -> bytes:
    """Return zeros for an unreadable range, as if it was never written."""
    try:
        return _READ(files, fd, length, offset)
    except OSError:
        return bytes(length)


_READ = SimDisk.read


async def _nothing(self: object, *asked: object) -> None:
    """Do nothing, in place of what is left out."""


def _nobody_is_running() -> Callable[..., Awaitable[tuple[set[str], list[str]]]]:
    sound = pruning._running

    async def running(
        store: ObjectStore, backups: Iterable[Manifest]
    ) -> tuple[set[str], list[str]]:
        return set(), (await sound(store, backups))[1]

    return running


MUTANTS: dict[str, tuple[Any, str, Any]] = {  # name -> what is replaced, and by what
    "a read does not confirm the leadership": (LinearizableReads, "linearize", _at_once),
    "a lease has no end": (reading, "has_lease", lambda raft: raft.role is Role.LEADER),
    "the leader alone is a majority": (leading, "_count", _count_alone),
    "it is said to be durable before it is": (JournalWriter, "stage", _too_early()),
    "terms and votes are not written": (JournalWriter, "stage", _without("hard_state")),
    "resets are not written": (JournalWriter, "stage", _without("reset")),
    "proposals are taken before the own term's entry": (
        Member,
        "can_lead",
        lambda member: member.raft.role is Role.LEADER,
    ),
    "an unknown outcome is called a refusal": (replicated, "OutcomeUnknown", Unavailable),
    "a lost disk is not noticed": (Recovery, "blank", False),
    "segments go that the log needs": (
        JournalKeeper,
        "floor_of",
        lambda keeper, number, **about: keeper._journal.position,
    ),
    "an fsync is left out": (writer.SegmentWriter, "_sync", lambda journal: None),
    "damage is cut as if it were a torn tail": (recovery, "_refuse_if_synced", lambda *_: None),
    "log time is the node's own": (assembly, "_not_before", lambda core, now_ms, reached: now_ms),
    "a pack is named though the store did not answer": (steps.Steps, "write", _not_waited_for),
    "a 409 is taken for one's own earlier try": (steps, "put_again", _believes_409),
    "packs are deleted that are needed": (PackLedger, "condemned", _condemned_at_once),
    "a snapshot leaves out who produced": (
        stream_snapshots,
        "without_payload",
        _without_producers(),
    ),
    "a vote counts that is none": (Configuration, "won", _any_vote),
    # What only shows where bounds are small enough to be met (sim/knobs.py).
    "a snapshot lacks what changed in its last pass": (
        snapshotter,
        "encode_delta",
        edited_function(
            encoding.encode_delta,
            "not left or len(machine.changes.streams) + len(machine.changes.evicted) <= len(keys) "
            ">> 6",
            "len(machine.changes.streams) + len(machine.changes.evicted) <= len(keys) >> 6",
        ),
    ),
    "a snapshot lacks what changed behind its last slice": (
        snapshotter,
        "encode_delta",
        edited_function(encoding.encode_delta, "last = machine.take_changes()", "last = Changes()"),
    ),
    "only the last portion of payload is copied": (
        catch_up,
        "portions",
        lambda batches: list(portions(batches))[-1:],
    ),
    "a page that ends in the middle says that it is the last": (
        pieces.finish,
        "__code__",
        edited_function(
            pieces.finish,
            "page.up_to_date and end == (page.record, page.byte)",
            "end == (page.record, page.byte)",
        ).__code__,
    ),
}
LIVED: dict[str, tuple[Any, str, Any]] = {  # what only the clients of sim/stream_clients.py notice
    "an equal Stream-Seq is taken": (
        writes.apply_append,
        "__code__",
        edited_function(
            writes.apply_append, "stream_seq <= stream.stream_seq", "stream_seq < stream.stream_seq"
        ).__code__,
    ),
    "an older epoch is taken": (
        producers,
        "judge_producer",
        edited_function(
            producers.judge_producer, "producer.epoch < epoch", "producer.epoch < epoch - 1"
        ),
    ),
    "a list leaves out what is new": (
        local.LocalGroups._created,
        "__code__",
        edited_function(local.LocalGroups._created, "Code.CREATED", "Code.EXISTS").__code__,
    ),
    "a trim cuts at the record before": (
        retention,
        "_cut",
        edited_function(retention._cut, "page.begin_record", "page.begin_record - 1"),
    ),
    "a deleted source keeps nothing for its forks": (
        lifetimes.cut_to_pins,
        "__code__",
        edited_function(
            lifetimes.cut_to_pins,
            "max((pin.record + (pin.prefix > 0) for pin in stream.pins.values()))",
            "0 * max((pin.record + (pin.prefix > 0) for pin in stream.pins.values()))",
        ).__code__,
    ),
    # … and the workers of sim/workers.py
    "a lease is given twice": (
        subscriptions,
        "_TABLE",
        subscriptions._TABLE
        | {(State.LEASED, subscriptions.PULL_WAKE, subscriptions.Event.CLAIM): _claims_at_once},
    ),
    "updates that a node had when it died are lost": (Subscriptions, "_sweep", _nothing),
    "a webhook is done with what came after": (
        Wakes,
        "_delivered",
        edited_function(
            Wakes._delivered,
            "[(info.name, info.stream_uid, info.tail_record, info.tail_byte) for info in links]",
            "[(info.name, info.stream_uid, info.tail_record, info.tail_byte) for info in await "
            "self.links.oldest(subscription)]",
        ),
    ),
    # … and the loss of all nodes (sim/loss.py)
    "a recovery looks for no packs that came after the copies": (
        FromStore,
        "_look_at_packs",
        _nothing,
    ),
    # … and operators (sim/backups.py, sim/restored.py)
    "a restore goes on at the numbers of what was lost": (
        restore_history,
        "_jump",
        lambda stream: None,
    ),
    "a restore knows no producers": (restore_history, "_jump", _forgets_producers),
    # … and what is left over (sim/leftovers.py)
    "packs that no log knows are never deleted": (Collector, "sweep", _nothing),
    # … and streams that end by themselves (sim/expiry.py)
    "a stream ends when it was not read for half of its time": (
        lifetimes.is_expired,
        "__code__",
        edited_function(
            lifetimes.is_expired, "stream.ttl_seconds * 1000", "stream.ttl_seconds * 500"
        ).__code__,
    ),
    # … and streams of bounded length (sim/retention.py)
    "what is young is trimmed": (
        retention_job,
        "cut_of",
        edited_function(
            bounds.cut_of, "retention.age_seconds * 1000", "retention.age_seconds * 500"
        ),
    ),
    # … and subscriptions that come and go (sim/members.py)
    "wakes are not announced": (Wakes, "_announce", _nothing),
    "groups are not told of subscriptions that are gone": (SubscriptionLinks, "untell", _nothing),
    # … and clients that change a source between the steps of a fork (sim/forks.py)
    "pins that are not confirmed pin nothing": (
        trimming,
        "_needed",
        edited_function(
            trimming._needed,
            "(stream.pins or {}).values()",
            "(pin for pin in (stream.pins or {}).values() if pin.confirmed)",
        ),
    ),
    "a deleted source keeps nothing for forks that are not confirmed": (
        lifetimes.cut_to_pins,
        "__code__",
        edited_function(
            lifetimes.cut_to_pins,
            "max(pin.record + (pin.prefix > 0) for pin in stream.pins.values())",
            "max((pin.record + (pin.prefix > 0) for pin in stream.pins.values() if "
            "pin.confirmed), default=0)",
        ).__code__,
    ),
    # … and the planner's nodes in zones (sim/planned.py)
    "what is together in one zone stays so": (PlacementGoals, "_spread", lambda goals, group: None),
    # … and object stores that do not tell what they did
    "what a put without an answer brought is another's": (
        taking,
        "put_again",
        lambda store, key, parts: store.put(key, parts),
    ),
}
MUTANTS |= LIVED | KAFKA | GROUP | COMMIT | SLICE | PAGE | DISKLESS_WRITER | COPY_DELTA | WORLD
MUTANTS |= COORDINATOR | TOGETHER | REDUCED | CONDITIONS
MUTANTS |= TRANSACTION
MUTANTS |= COMPACTION
NOTICED: dict[
    str, tuple[Any, str, Any]
] = {  # by a test (`STORIES`), where a seed rarely comes upon them
    "a stream that is taken off a subscription stays linked": (
        links,
        "_set_streams",
        edited_function(links._set_streams, "_unlink(watch, stream, EXPLICIT)", "pass"),
    ),
    "less is kept than is to be": (
        retention_job,
        "cut_of",
        edited_function(
            bounds.cut_of,
            "_last_boundary_before_byte(stream, stream.next_byte - retention.bytes)",
            "_last_boundary_before_byte(stream, stream.next_byte)",
        ),
    ),
    "data goes by the map alone": (PlacementReconciler, "_drop", _by_the_map_alone),
    "what was dropped is found again": (Recovery, "dropped", _dropped_is_not_noticed),
    "learners count, and one majority of two": (Configuration, "agreed", _learners_too),
    "leads follow to nodes that lag": (leadership, "_follows", lambda raft, node, lacks=0: True),
    "leads stay where their writers are, however they came there": (
        leadership.LeaderPlacement,
        "_follow",
        edited_function(leadership.LeaderPlacement._follow, "self._is_to_stay(number)", "True"),
    ),
    "leads follow at once from where they were put": (leadership, "PLACED_SECONDS", 0.0),
    "a lease is judged by the time of the last turn": (
        Raft,
        "readable",
        lambda raft, now_ms: reading.has_lease(raft),
    ),
    "a lease takes no account of clocks that drift": (
        Settings,
        "lease_ms",
        property(lambda settings: settings.election_ms - 2),
    ),
    "a leader without contact to a majority leads on": (
        leading,
        "beat",
        edited_function(
            leading.beat,
            "now_ms - raft.configuration.agreed(lambda node: _heard_ms(raft, node)) >= "
            "settings.election_ms",
            "now_ms - raft.configuration.agreed(lambda node: _heard_ms(raft, node)) >= 2 ** 62 + "
            "settings.election_ms",
        ),
    ),
    "a snapshot has its name before it is synced": (
        SnapshotStore,
        "_write_new",
        edited_function(SnapshotStore._write_new, "self._files.sync(fd)", "pass"),
    ),
    "a segment is written to before its name is synced": (
        writer.SegmentWriter,
        "_sync_folder",
        lambda journal: None,
    ),
    # … of what each way of failing is for (test_cluster_revealed.py)
    "a candidate skips the pre-vote": (election, "hurry", _campaigns_at_once),
    "who hears a leader votes for others": (
        election,
        "promised",
        lambda raft, candidate: raft.role is Role.LEADER,
    ),
    "what was lost is not missed": (
        leading,
        "_held",
        edited_function(leading._held, "held < peer.beat_next - 1", "False"),
    ),
    "what comes again cuts what came after": (following, "_extend", _cuts_what_follows()),
    "chunks that found no room are never sent again": (raft_snapshots, "beat", lambda raft: None),
    "log time follows each step of the wall's clock": (
        clocks.LogClock,
        "now_ms",
        _follows_each_step,
    ),
    "what cannot be read is taken for zeros": (SimDisk, "read", _end_for_error),
    "a backup is taken from a deposed leader": (
        Backups,
        "_capture",
        edited_function(Backups._capture, "await service.local.linearize(number)", "pass"),
    ),
    "an older copy of a node's data is let in": (
        PeerJournalPositions,
        "lacks",
        lambda positions, hello: "",
    ),
    # … of evictions, of backups, and of what a recovery finds
    "a stream that was evicted and trimmed is recovered with what was trimmed": (
        store_recovery.whole_again,
        "__code__",
        edited_function(
            store_recovery.whole_again,
            "if is_merged or view.first_record > stream.first_record: _trim(image, stream, first)",
            "pass",
        ).__code__,
    ),
    "requests do not wait for an eviction that is on its way": (
        Rehydration,
        "before",
        edited_function(
            Rehydration.before,
            "[name for name in named_by(command) if name in self.racing] if self.racing else []",
            "[]",
        ),
    ),
    "a late eviction takes what has come back": (
        Rehydration,
        "only_present",
        lambda rehydration, machine, command: command,
    ),
    "old backups go though others are under way": (pruning, "_running", _nobody_is_running()),
    "old backups go though another one has begun": (
        pruning,
        "prune",
        edited_function(
            pruning.prune,
            "if not (await _running(store, backups))[0]: await _delete(store, useless)",
            "await _delete(store, useless)",
        ),
    ),
    "a backup does not look again at what it counts on": (
        taking.BackupWriter,
        "_look_again",
        _nothing,
    ),
}


@contextmanager
def mutated(name: str) -> Iterator[list[BaseException]]:
    """Apply this defect; yields the errors that the defect itself raises. Raises Stale when its
    target is gone."""
    owner, attribute, defect = (MUTANTS | NOTICED)[name]
    if not hasattr(owner, attribute):
        raise Stale(
            f"{name}: {owner.__name__} has no {attribute} any more, which the mutant replaces"
        )
    sound = getattr(owner, attribute)
    raised: list[BaseException] = []
    setattr(owner, attribute, watched(defect, raised))
    try:
        yield raised
    finally:
        setattr(owner, attribute, sound)


def caught(name: str) -> str:
    """Name the tests and the seed that catch the mutant; empty when it survives one of them.
    Raises Stale when the mutant itself fails."""
    with mutated(name) as raised:
        by = _caught(name, raised)
    if raised:
        raise Stale(f"{name}: the defect itself raised {raised[0]!r}: adapt it to the code")
    return by


def _caught(name: str, raised: list[BaseException]) -> str:
    found = ""
    if name in STORIES:
        test = STORIES[name]
        fault = failing_test(f"{TESTS}/{test}")
        found = f"{test}: {fault}" if fault else ""
        by_tests = (
            NOTICED
            | KAFKA
            | GROUP
            | COMMIT
            | SLICE
            | PAGE
            | DISKLESS_WRITER
            | COPY_DELTA
            | CONDITIONS
        )
        if not fault or name in by_tests.keys() - WORLD_CAUGHT_BY.keys():
            return found
    known = [CAUGHT_BY[name]] if name in CAUGHT_BY else []
    for tried in (
        *known,
        *(Known(world, Knobs.draw(seed)) for seed in range(SEEDS) for world in TRIED),
    ):
        try:
            tried.run()
        except Exception as fault:
            check_fault(fault)
            seed = (
                f"seed {tried.knobs.seed} of the {tried.world} world: {str(fault).splitlines()[:1]}"
            )
            return f"{seed}; {found}" if found else seed
        if raised:
            break
    return ""


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    serve(caught)
