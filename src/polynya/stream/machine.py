"""The state of one group, and the dispatch table from command to rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from polynya.stream.features.tables.state import TableClaims
from polynya.stream.features.topics import rules as topics
from polynya.stream.read_plan import ReadPlan, ReadRefused
from polynya.stream.replies import Code, Reply
from polynya.stream.state.changes import Changes, KeptChanges
from polynya.stream.state.counters import GroupCounters
from polynya.stream.state.directory import StreamDirectory
from polynya.stream.state.effects import TailWatch
from polynya.stream.state.meta import MetaState
from polynya.stream.state.model import Stream
from polynya.stream.state.outbox import ForkAttempts, Outbox
from polynya.stream.state.pack_ledger import PackLedger
from polynya.stream.state.profile_epochs import DisklessStreams


class Machine:
    """The state of one group, in parts. Only `apply` changes it, in log order.

    `changes` names everything changed since `take_changes`, except the small parts that every
    snapshot contains."""

    def __init__(self, group: int, groups: int = 1) -> None:
        """Create the empty state. `groups` is the number of user groups; a stream's name selects
        its group."""
        self.group = group
        self.groups = groups
        self.changes = Changes()
        self.kept = KeptChanges()
        self.counters = GroupCounters(group)
        self.directory = StreamDirectory()
        self.diskless = DisklessStreams()
        self.outbox = Outbox(self.changes)
        self.forks = ForkAttempts(self.changes)
        self.packs = PackLedger(group, self.outbox, self.changes)
        self.claims = TableClaims()
        self.subscriptions = SubscriptionState()
        self.consumer_groups = ConsumerGroups()
        self.meta = MetaState()
        self.tails = TailWatch()

    def apply(self, command: Command, place: int = 0) -> Reply:
        """Apply the next log entry; `place` is its journal place."""
        now_ms: int = command.now_ms if type(command) is Append else getattr(command, "now_ms", 0)
        counters = self.counters
        if now_ms > counters.log_ms:
            counters.log_ms = now_ms
        return _RULES[type(command)](self, command, place)

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
        packs = self.packs
        return read_plan.plan_read(
            stream,
            packs.index_of(stream) if until is None else packs.whole_index_of(stream),
            read_plan.Want(record, byte, bytes_max, whole_records, until, uncommitted),
        )

    def take_changes(self) -> Changes:
        """Return the changes since the last call and those that were put back, and start a new
        set."""
        return self.kept.take(self.changes.take(self.counters.uids))


def _apply_bundle(machine: Machine, bundle: Bundle, place: int) -> Reply:
    """Apply each append as if it were alone."""
    counters = machine.counters
    replies, log_ms = [], counters.log_ms
    for number, command in enumerate(bundle.commands, place):
        apply = writes.apply_append if type(command) is Append else _RULES[type(command)]
        replies.append(apply(machine, command, number))  # type: ignore[arg-type]
        if command.now_ms > log_ms:
            counters.log_ms = log_ms = command.now_ms
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
