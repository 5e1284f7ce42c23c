"""The state of one group, and the dispatch table from command to rule."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from polynya.base.limits import ATTEMPTS_REMEMBERED_MAX
from polynya.stream import read_plan
from polynya.stream.command import Command
from polynya.stream.features.appends import conditions
from polynya.stream.features.appends import kafka as kafka_writes
from polynya.stream.features.appends import rules as writes
from polynya.stream.features.appends.commands import Append, AppendIf, Bundle, Produce, ProducerIds
from polynya.stream.features.consumer_groups import rules as group_rules
from polynya.stream.features.consumer_groups.state import ConsumerGroups
from polynya.stream.features.forks import rules as forks
from polynya.stream.features.forks.commands import (
    Acknowledge,
    ConfirmPin,
    PinSource,
    RefuseAttempt,
    Unpin,
)
from polynya.stream.features.lifetimes import creation
from polynya.stream.features.lifetimes import rules as lifetimes
from polynya.stream.features.lifetimes.commands import Create, Delete, Expire, Touch
from polynya.stream.features.packs import rules as publishing
from polynya.stream.features.packs.commands import (
    PackDeleted,
    PackWritten,
    PublishSlices,
    ReleasePack,
    ReplaceSlices,
)
from polynya.stream.features.pages import eviction
from polynya.stream.features.pages import rules as paging
from polynya.stream.features.pages.commands import PageEntries, ReleasePaged
from polynya.stream.features.placement import rules as placement
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.profiles import rules as profiles
from polynya.stream.features.profiles.commands import CommitSlices, SealProfileEpoch, SetProfile
from polynya.stream.features.profiles.commits import apply_commit_slices
from polynya.stream.features.retention import rules as retention
from polynya.stream.features.retention import trimming
from polynya.stream.features.retention.commands import BucketRetention, SetRetention, Trim, TrimTo
from polynya.stream.features.segments import rules as segments
from polynya.stream.features.segments.commands import Rollover
from polynya.stream.features.settings import rules as settings
from polynya.stream.features.subscriptions import links
from polynya.stream.features.subscriptions.state import SubscriptionState
from polynya.stream.features.tables import failures as table_failures
from polynya.stream.features.tables import lifetimes as table_lifetimes
from polynya.stream.features.tables import rules as tables
from polynya.stream.features.tables import watches as table_watches
from polynya.stream.features.tables.commands import (
    ClaimRanges,
    ForgetTable,
    TableAbandon,
    TableAlter,
    TableCommit,
    TableCreate,
    TableDrop,
    TableFail,
    TableFault,
    TableMake,
    TableMove,
    TableOpen,
    TablePlanned,
    TableRetry,
    WatchStreams,
)
from polynya.stream.features.tables.state import Table, Watch
from polynya.stream.features.topics import rules as topics
from polynya.stream.features.topics.state import Topic, TopicChanges
from polynya.stream.parts import Retention
from polynya.stream.read_plan import ReadPlan, ReadRefused
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots import encode as snapshots
from polynya.stream.state import index
from polynya.stream.state.changes import Changes, KeptChanges
from polynya.stream.state.effects import TailMoved
from polynya.stream.state.index import Index
from polynya.stream.state.model import HotBatch, PackReference, Stream, WriterState
from polynya.stream.state.pack_tables import HeldPacks, OwnedPacks, is_page_key

_UID = attrgetter("uid")


class Machine:
    """The streams of one group. Only `apply` changes it, in log order.

    Invariants: `streams` and `by_uid` hold the same streams in the same order: creation order,
      until an evicted stream returns
    (`disordered`). A stream is in `streams` or in `evicted`. `hot` holds the streams with hot
    batches, and `hot_bytes` is the sum of
    their payloads. `retaining` holds the streams with their own retention policy, `leased` those
    with segments, `diskless` those whose profile is diskless or changes, `changing` the latter.
    Each pack in `held` is referenced by a slice entry in an index, a past, a held page or an evicted
    stub; no other pack is, but those in `pages_gone`. `pack_keys` maps the numbers of these packs to
    their keys. `changes` names everything changed since `take_changes`, except the small parts that
    every snapshot contains."""

    def __init__(self, group: int, groups: int = 1) -> None:
        """Create the empty state. `groups` is the number of user groups; a stream's name selects
        its group."""
        self.group = group
        self.groups = groups
        self.streams: dict[str, Stream] = {}
        self.by_uid: dict[int, Stream] = {}
        self.evicted: dict[
            str, bytes
        ] = {}  # name -> packed `EvictedView`; the full state is in the object store
        self.disordered = False
        self.hot: dict[int, Stream] = {}
        self.hot_bytes = 0
        self.retaining: dict[int, Stream] = {}
        self.leased: dict[int, Stream] = {}
        self.diskless: dict[int, Stream] = {}
        self.changing: dict[int, Stream] = {}
        self.writers: dict[str, WriterState] = {}  # of diskless streams, with their last commits
        self.outbox: dict[int, tuple[int, Command]] = {}
        self.unconfirmed: dict[
            str, int
        ] = {}  # fork attempts whose pin awaits confirmation: attempt -> uid of the source
        self.attempts: dict[
            str, None
        ] = {}  # fork attempts that are refused here from now on, oldest first
        self.held = HeldPacks()
        self.packs = OwnedPacks()
        self.pages_gone: dict[str, None] = {}  # held pages that no index names any more
        self.released: dict[
            str, None
        ] = {}  # packs that this group has released and must never hold again, oldest first
        self.tables: dict[int, Table] = {}  # meta group only
        self.watches: dict[int, Watch] = {}  # tables that a stream group was told of
        self.claimed_jobs: dict[int, int] = {}  # table -> the latest job that claimed here
        self.subscriptions = SubscriptionState()
        self.meta: dict[str, bytes] = {}  # meta group only
        self.buckets: dict[str, Retention] = {}  # meta group only: retention policies of buckets
        self.topics: dict[str, Topic] = {}  # meta group only: Kafka topics by name
        self.topic_changes = TopicChanges()
        self.consumer_groups = ConsumerGroups()
        self.map: ClusterMap | None = None  # meta group of a cluster only
        self.level = 1  # feature level of the rules (base/levels.py)
        self.uid_counter = 0
        self.message_counter = 0
        self.pack_counter = 0
        self.producer_id_counter = 0  # Kafka producer ids that this group has allotted
        # what each restore has added to the Kafka leader epochs; those before the first added 0
        self.epoch_bases: list[int] = []
        self.log_ms = 0  # the largest applied log time; refused commands count too
        self.changes = Changes()
        self.kept = KeptChanges()
        # no `SetLevel` comes, so newer rules raise the level themselves; no part of the state
        self.standalone = False
        self.diskless_left = 0  # streams that left `diskless`; no part of the state
        # uids whose tails somebody follows here; no part of the state
        self.watched: Container[int] = frozenset()
        self.effects: list[TailMoved] = []  # on watched streams, since `take_effects`
        self._room = 0  # spare dict slots that `streams` may have allocated beyond its entries

    @property
    def pack_keys(self) -> Mapping[int, str]:
        """The keys of the held packs, by pack number."""
        return self.held.by_number

    @property
    def epoch_base(self) -> int:
        """The difference between a Kafka leader epoch and the group's term."""
        return self.epoch_bases[-1] if self.epoch_bases else 0

    def apply(self, command: Command, place: int = 0) -> Reply:
        """Apply the next log entry; `place` is its journal place."""
        now_ms: int = command.now_ms if type(command) is Append else getattr(command, "now_ms", 0)
        if now_ms > self.log_ms:
            self.log_ms = now_ms
        return _RULES[type(command)](self, command, place)

    def take_effects(self) -> list[TailMoved]:
        """Return the effects since the last call, in log order."""
        effects, self.effects = self.effects, []
        return effects

    def lookup(self, name: str) -> Stream | None:
        """Return the stream of a canonical name, including soft-deleted and excluding evicted
        streams."""
        return self.streams.get(name)

    def absent(self, name: str) -> Reply:
        """Return the refusal for a command whose stream is not in `streams`."""
        return Reply(Code.EVICTED if name in self.evicted else Code.NOT_FOUND)

    @property
    def count(self) -> int:
        """The number of streams, including evicted ones."""
        return len(self.streams) + len(self.evicted)

    def in_order(self) -> Iterable[Stream]:
        """Return the streams that are not evicted, in creation order."""
        return sorted(self.streams.values(), key=_UID) if self.disordered else self.streams.values()

    def expired(self, stream: Stream, now_ms: int, touched_ms: int = 0) -> bool:
        """Report whether the stream's TTL or Expires-At has passed. A sliding TTL counts from the
        later of `touched_ms` and the last logged activity."""
        return lifetimes.is_expired(stream, now_ms, touched_ms)

    def plan_read(
        self,
        stream: Stream,
        record: int,
        byte: int,
        *,
        bytes_max: int,
        whole_records: bool,
        until: tuple[int, int] | None = None,
        uncommitted: bool = False,
    ) -> ReadPlan | ReadRefused:
        """Plan a page that begins at (record, byte). See `read_plan.plan_read`."""
        index = self.index_of(stream) if until is None else self.whole_index_of(stream)
        return read_plan.plan_read(
            stream,
            index,
            read_plan.Want(record, byte, bytes_max, whole_records, until, uncommitted),
        )

    def index_of(self, stream: Stream) -> Index:
        """Return the stream's cold slices in order. The view is valid only until the next command
        is applied."""
        return Index(stream.cold, self.pack_keys)

    def whole_index_of(self, stream: Stream) -> Index:
        """Return the cold slices, preceded by the trimmed slices that forks still need. Records may
        be missing between the two."""
        past = trimming.past_of(stream)
        return Index(index.preceded(stream.cold, past) if past else stream.cold, self.pack_keys)

    def flush_candidates(self) -> Iterator[tuple[Stream, list[HotBatch]]]:
        """Yield each stream with hot batches, and those batches in order."""
        for stream in self.hot.values():
            assert stream.hot
            yield stream, stream.hot

    def needed_places(self) -> int | None:
        """Return the lowest journal place that a hot batch still needs, or None if everything is
        cold."""
        return min(
            (batch.place for stream in self.hot.values() for batch in stream.hot or ()),
            default=None,
        )

    def condemned(self, before_ms: int) -> Iterator[str]:
        """Yield the packs of this home group that every group released by `before_ms`. Delete the
        object, then log `PackDeleted`."""
        return self.packs.condemned(before_ms)

    def snapshot(self) -> bytes:
        """Return the state without hot payloads; the same log gives the same bytes."""
        return snapshots.encode(self)

    @classmethod
    def restore(cls, data: bytes, read_payload: Callable[[int, int], bytes]) -> Machine:
        """Decode a snapshot. `read_payload(place, uid)` returns the payload of a hot batch from the
        journal."""
        return snapshots.decode(cls, data, read_payload)

    def take_changes(self) -> Changes:
        """Return the changes since the last call and those that were put back, and start a new
        set."""
        changes, self.changes = self.changes, Changes(self.uid_counter)
        return self.kept.take(changes)

    # Changes that rules make outside streams.

    def take_slots(self, pack: str, owner_group: int, now_ms: int, taken: Iterable[bool]) -> Reply:
        """Apply a pack that carries parts for several streams of this group. Iterating `taken`
        applies one part after the other and yields whether it was accepted. The reply's detail
        lists the accepted positions. A pack that was already released yields none; a pack without a
        reference here is released."""
        if pack in self.released:
            return Reply(Code.OK, detail=[])
        accepted = [at for at, is_taken in enumerate(taken) if is_taken]
        if pack not in self.held:
            self.release_pack(pack, owner_group, now_ms)
        return Reply(Code.OK, detail=accepted)

    def compact_dicts(self, gone: int) -> None:
        """Rebuild the stream dicts after `gone` removals if they are mostly empty: a dict never
        shrinks in place."""
        self._room = max(self._room, len(self.streams) + gone)
        if self._room > 2 * len(self.streams) + 1024:
            self.streams, self.by_uid = dict(self.streams), dict(self.by_uid)
            self._room = len(self.streams)

    def next_uid(self) -> int:
        """Return a uid that no stream ever had: the birth group and a counter."""
        self.uid_counter += 1
        return self.group << 48 | self.uid_counter

    def send(self, group: int, command: Command) -> None:
        """Put an idempotent command for a group (this one included) into the outbox."""
        self.message_counter += 1
        self.outbox[self.message_counter] = (group, command)
        self.changes.messages.add(self.message_counter)

    def refuse_attempt(self, attempt: str) -> None:
        """Remember that this fork attempt must not be carried out from now on."""
        if _remember(self.attempts, attempt):
            self.changes.remember(self.changes.attempts, attempt)

    def hold_slice(self, pack: str, owner_group: int) -> int:
        """Add one reference to the pack and return its number."""
        held = self.held.get(pack)
        if held is None:
            self.pack_counter += 1
            held = PackReference(owner_group, 0, self.pack_counter)
        held.slices += 1
        self.held[pack] = held
        self.changes.held.add(pack)
        return held.number

    def drop_slice(self, number: int, now_ms: int, count: int = 1) -> None:
        """Remove references to the pack of this number; the last removal releases the pack. A page
        stays until the packs of its entries are released."""
        pack = self.pack_keys[number]
        held = self.held[pack]
        held.slices -= count
        self.held[pack] = held
        self.changes.held.add(pack)
        if held.slices == 0 and is_page_key(pack):
            self.pages_gone[pack] = None
        elif held.slices == 0:
            del self.held[pack]
            self.release_pack(pack, held.owner_group, now_ms)

    def forget_page(self, page: str, now_ms: int) -> None:
        """Release a page that no index names."""
        del self.pages_gone[page], self.held[page]
        self.changes.held.add(page)
        self.release_pack(page, self.group, now_ms)

    def release_pack(self, pack: str, owner_group: int, now_ms: int) -> None:
        """Notify the pack's home group that this group no longer needs the pack and never will."""
        if _remember(self.released, pack):
            self.changes.remember(self.changes.released, pack)
        self.send(owner_group, ReleasePack(pack, self.group, now_ms))


def _remember(known: dict[str, None], key: str) -> bool:
    """Add the key, evicting the oldest beyond the limit. Return False if it was present."""
    if key in known:
        return False
    known[key] = None
    if len(known) > ATTEMPTS_REMEMBERED_MAX:
        del known[next(iter(known))]
    return True


def _apply_bundle(machine: Machine, bundle: Bundle, place: int) -> Reply:
    """Apply each append as if it were alone."""
    replies, log_ms = [], machine.log_ms
    for number, command in enumerate(bundle.commands, place):
        apply = writes.apply_append if type(command) is Append else _RULES[type(command)]
        replies.append(apply(machine, command, number))  # type: ignore[arg-type]
        if command.now_ms > log_ms:
            machine.log_ms = log_ms = command.now_ms
    return Reply(Code.OK, detail=replies)


_RULES: dict[type[Command], Callable[[Machine, Any, int], Reply]] = {
    Create: creation.apply_create,
    Append: writes.apply_append,
    AppendIf: conditions.apply_append_if,
    Produce: kafka_writes.apply_produce,
    ProducerIds: kafka_writes.apply_producer_ids,
    Bundle: _apply_bundle,
    Delete: lifetimes.apply_delete,
    Expire: lifetimes.apply_expire,
    Touch: lifetimes.apply_touch,
    Trim: trimming.apply_trim,
    TrimTo: trimming.apply_trim_to,
    SetRetention: retention.apply_set_retention,
    Rollover: segments.apply_rollover,
    BucketRetention: retention.apply_bucket_retention,
    PinSource: forks.apply_pin_source,
    ConfirmPin: forks.apply_confirm_pin,
    Unpin: forks.apply_unpin,
    RefuseAttempt: forks.apply_refuse_attempt,
    Acknowledge: forks.apply_acknowledge,
    PublishSlices: publishing.apply_publish_slices,
    ReplaceSlices: publishing.apply_replace_slices,
    PageEntries: paging.apply_page_entries,
    ReleasePaged: paging.apply_release_paged,
    PackWritten: publishing.apply_pack_written,
    ReleasePack: publishing.apply_release_pack,
    PackDeleted: publishing.apply_pack_deleted,
    TableCreate: tables.apply_create,
    TableOpen: tables.apply_open,
    TablePlanned: tables.apply_planned,
    TableCommit: tables.apply_commit,
    TableAbandon: tables.apply_abandon,
    ClaimRanges: tables.apply_claim,
    TableMake: tables.apply_make,
    TableMove: tables.apply_move,
    TableFail: table_failures.apply_fail,
    TableRetry: table_failures.apply_retry,
    WatchStreams: table_watches.apply_watch,
    TableAlter: table_lifetimes.apply_alter,
    TableFault: table_failures.apply_fault,
    TableDrop: table_lifetimes.apply_drop,
    ForgetTable: table_lifetimes.apply_forget,
    CommitSlices: apply_commit_slices,
    SetProfile: profiles.apply_set_profile,
    SealProfileEpoch: profiles.apply_seal_profile_epoch,
    **links.RULES,
    **eviction.RULES,
    **placement.RULES,
    **settings.RULES,
    **topics.RULES,
    **group_rules.RULES,
}
