"""The state of one group."""

from __future__ import annotations

from polynya.stream import read_plan
from polynya.stream.command import RULES, Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.consumer_groups.state import ConsumerGroups
from polynya.stream.features.subscriptions.state import SubscriptionState
from polynya.stream.features.tables.state import TableClaims
from polynya.stream.features.transactions.state import Transactions
from polynya.stream.read_plan import ReadPlan, ReadRefused
from polynya.stream.replies import Reply
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
        self.transactions = Transactions()
        self.meta = MetaState()
        self.tails = TailWatch()

    def apply(self, command: Command, position: int = 0) -> Reply:
        """Apply the next log entry; `position` is its journal position."""
        now_ms: int = command.now_ms if type(command) is Append else getattr(command, "now_ms", 0)
        counters = self.counters
        if now_ms > counters.log_ms:
            counters.log_ms = now_ms
        return RULES[type(command)](self, command, position)

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
