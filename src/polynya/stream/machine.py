"""The state of one group, and the table that says which rule a command follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

from polynya.base.limits import ATTEMPTS_REMEMBERED_MAX
from polynya.stream import placement, read_plan
from polynya.stream.commands import (
    Acknowledge,
    Append,
    BucketRetention,
    Bundle,
    ClaimRanges,
    Command,
    ConfirmPin,
    Create,
    Delete,
    Expire,
    PackDeleted,
    PackWritten,
    PinSource,
    PublishSlices,
    RefuseAttempt,
    ReleasePack,
    ReplaceSlices,
    Retention,
    SetRetention,
    TableAbandon,
    TableCommit,
    TableCreate,
    TableOpen,
    TablePlanned,
    Touch,
    Trim,
    Unpin,
)
from polynya.stream.read_plan import ReadPlan, ReadRefused
from polynya.stream.replies import Code, Reply
from polynya.stream.rules import eviction, forks, lifetimes, meta, publishing, retention, tables, trimming, writes
from polynya.stream.snapshots import encode as snapshots
from polynya.stream.state import feature_level
from polynya.stream.state.changes import Changes
from polynya.stream.state.index import Index
from polynya.stream.state.model import HotBatch, Pack, PackReference, Stream
from polynya.stream.subscriptions import links
from polynya.stream.subscriptions.state import SubscriptionState

_UID = attrgetter("uid")


class Machine:
    """One group's streams. Changed only by `apply`, in the order of the log.

    Invariants: `streams` and `by_uid` hold the same streams in the same order, which is that of their creation until one has come back that
    was evicted (`disordered`); a stream is in `streams` or in `evicted`; `hot` holds those of them with hot batches; `hot_bytes`
    is the sum of their payloads; `retaining` holds those with a retention of their own; every pack in `held` is named by `slices` entries
    of the streams' indexes and pasts, those of evicted ones and their places included, and no other is; `pack_keys` has their numbers;
    `changes` names whatever the rules have changed since `take_changes`, but for the small parts that are in every snapshot.
    """

    def __init__(self, group: int, groups: int = 1) -> None:
        """`groups`: the number of user groups, by which names find theirs."""
        self.group = group
        self.groups = groups
        self.streams: dict[str, Stream] = {}
        self.by_uid: dict[int, Stream] = {}
        self.evicted: dict[str, bytes] = {}  # packed stubs of streams whose states are in the object store
        self.disordered = False
        self.hot: dict[int, Stream] = {}
        self.hot_bytes = 0
        self.retaining: dict[int, Stream] = {}
        self.outbox: dict[int, tuple[int, Command]] = {}
        self.unconfirmed: dict[str, int] = {}  # fork attempts whose pin waits for its outcome: attempt -> uid of the source
        self.attempts: dict[str, None] = {}  # fork attempts that never will happen (again) here, oldest first
        self.held: dict[str, PackReference] = {}
        self.pack_keys: dict[int, str] = {}  # of the packs held, by the numbers that indexes call them
        self.packs: dict[str, Pack] = {}  # those whose home group this is
        self.released: dict[str, None] = {}  # packs that this group has let go of, oldest first: never to be held again
        self.tables: dict[int, tables.Table] = {}  # of the meta group
        self.claimed_jobs: dict[int, int] = {}  # table -> the latest job that claimed here
        self.subscriptions = SubscriptionState()
        self.meta: dict[str, bytes] = {}  # of the meta group
        self.buckets: dict[str, Retention] = {}  # of the meta group: retention of buckets
        self.map: placement.ClusterMap | None = None  # of the meta group of a cluster
        self.level = 1  # of the rules (base/levels.py)
        self.uid_counter = 0
        self.message_counter = 0
        self.pack_counter = 0
        self.log_ms = 0  # the largest log time that was applied, refused commands included
        self.changes = Changes()
        self._room = 0  # entries that `streams` may have room for, beyond those that it has

    def apply(self, command: Command, place: int = 0) -> Reply:
        """Apply the next entry of the log; `place` is its place in the journal."""
        now_ms: int = command.now_ms if type(command) is Append else getattr(command, "now_ms", 0)
        if now_ms > self.log_ms:
            self.log_ms = now_ms
        return _RULES[type(command)](self, command, place)

    def lookup(self, name: str) -> Stream | None:
        """The stream of a canonical name, soft-deleted ones included, evicted ones not."""
        return self.streams.get(name)

    def absent(self, name: str) -> Reply:
        """The answer to what names a stream that is not in `streams`."""
        return Reply(Code.EVICTED if name in self.evicted else Code.NOT_FOUND)

    @property
    def count(self) -> int:
        """Of the streams, evicted ones included."""
        return len(self.streams) + len(self.evicted)

    def in_order(self) -> Iterable[Stream]:
        """The streams that are not evicted, in the order of their creation."""
        return sorted(self.streams.values(), key=_UID) if self.disordered else self.streams.values()

    def expired(self, stream: Stream, now_ms: int, touched_ms: int = 0) -> bool:
        """Whether the stream's TTL (sliding, from the later of its last logged activity and `touched_ms`) or Expires-At is over."""
        return lifetimes.is_expired(stream, now_ms, touched_ms)

    def plan_read(
        self, stream: Stream, record: int, byte: int, *, bytes_max: int, whole_records: bool, until: tuple[int, int] | None = None
    ) -> ReadPlan | ReadRefused:
        """What a page from (record, byte) is made of. See `reading.plan_read`."""
        index = self.index_of(stream) if until is None else self.whole_index_of(stream)
        return read_plan.plan_read(stream, index, read_plan.Want(record, byte, bytes_max, whole_records, until))

    def index_of(self, stream: Stream) -> Index:
        """What of the stream is cold, in order: to be looked at before the next command is applied."""
        return Index(stream.cold, self.pack_keys)

    def whole_index_of(self, stream: Stream) -> Index:
        """The same with what was trimmed and forks still need before it; between the two records may be missing."""
        past = trimming.past_of(stream)
        return Index(past + (stream.cold or b"") if past else stream.cold, self.pack_keys)

    def flush_candidates(self) -> Iterator[tuple[Stream, list[HotBatch]]]:
        """The streams with hot batches, and those batches in order."""
        for stream in self.hot.values():
            assert stream.hot
            yield stream, stream.hot

    def needed_places(self) -> int | None:
        """The lowest journal place that a hot batch still needs; None when all is cold."""
        return min((batch.place for stream in self.hot.values() for batch in stream.hot or ()), default=None)

    def condemned(self, before_ms: int) -> Iterator[str]:
        """Packs of this home group that nobody needs since before `before_ms`: delete the object, then log `PackDeleted`."""
        return (key for key, pack in self.packs.items() if not pack.groups and pack.condemned_ms <= before_ms)

    def snapshot(self) -> bytes:
        """The state without hot payload; the same bytes for the same log."""
        return snapshots.encode(self)

    @classmethod
    def restore(cls, data: bytes, read_payload: Callable[[int, int], bytes]) -> Machine:
        """The machine of a snapshot. `read_payload(place, uid)` gives a hot batch's payload back from the journal."""
        return snapshots.decode(cls, data, read_payload)

    def take_changes(self) -> Changes:
        """What changed since the last call; from now on it is gathered anew."""
        changes, self.changes = self.changes, Changes(self.uid_counter)
        return changes

    # What the rules change beside streams.

    def take_slots(self, pack: str, home_group: int, now_ms: int, taken: Iterable[bool]) -> Reply:
        """Of a pack with something for several streams here: `taken` sees to one after the other as it is asked, and says which fit still; the reply's
        detail has their positions. A pack that is released already has nothing to give, and one that nothing here needs is released."""
        if pack in self.released:
            return Reply(Code.OK, detail=[])
        accepted = [at for at, is_taken in enumerate(taken) if is_taken]
        if pack not in self.held:
            self.release_pack(pack, home_group, now_ms)
        return Reply(Code.OK, detail=accepted)

    def make_small(self, gone: int) -> None:
        """After so many streams have gone: a dict gives room back only when it is made anew."""
        self._room = max(self._room, len(self.streams) + gone)
        if self._room > 2 * len(self.streams) + 1024:
            self.streams, self.by_uid = dict(self.streams), dict(self.by_uid)
            self._room = len(self.streams)

    def next_uid(self) -> int:
        """A uid that no stream ever had: birth group and counter."""
        self.uid_counter += 1
        return self.group << 48 | self.uid_counter

    def send(self, group: int, command: Command) -> None:
        """Put an idempotent command for another group (or this one) into the outbox."""
        self.message_counter += 1
        self.outbox[self.message_counter] = (group, command)
        self.changes.messages.add(self.message_counter)

    def refuse_attempt(self, attempt: str) -> None:
        """Remember that this fork attempt must not be carried out from now on."""
        if _remember(self.attempts, attempt):
            self.changes.remember(self.changes.attempts, attempt)

    def hold_slice(self, pack: str, home_group: int) -> int:
        """One reference more; the number of the pack."""
        held = self.held.get(pack)
        if held is None:
            self.pack_counter += 1
            held = self.held[pack] = PackReference(home_group, 0, self.pack_counter)
            self.pack_keys[held.number] = pack
        held.slices += 1
        self.changes.held.add(pack)
        return held.number

    def drop_slice(self, number: int, now_ms: int) -> None:
        """One reference to the pack of this number less; the last one releases it."""
        pack = self.pack_keys[number]
        held = self.held[pack]
        held.slices -= 1
        self.changes.held.add(pack)
        if held.slices == 0:
            del self.held[pack], self.pack_keys[number]
            self.release_pack(pack, held.home_group, now_ms)

    def release_pack(self, pack: str, home_group: int, now_ms: int) -> None:
        """Tell the pack's home group that this group does not need it, and never will."""
        if _remember(self.released, pack):
            self.changes.remember(self.changes.released, pack)
        self.send(home_group, ReleasePack(pack, self.group, now_ms))


def _remember(known: dict[str, None], key: str) -> bool:
    """Whether it was not known."""
    if key in known:
        return False
    known[key] = None
    if len(known) > ATTEMPTS_REMEMBERED_MAX:
        del known[next(iter(known))]
    return True


_RULES: dict[type[Command], Callable[[Machine, Any, int], Reply]] = {
    Create: writes.apply_create,
    Append: writes.apply_append,
    Bundle: writes.apply_bundle,
    Delete: lifetimes.apply_delete,
    Expire: lifetimes.apply_expire,
    Touch: lifetimes.apply_touch,
    Trim: trimming.apply_trim,
    SetRetention: retention.apply_set_retention,
    BucketRetention: retention.apply_bucket_retention,
    PinSource: forks.apply_pin_source,
    ConfirmPin: forks.apply_confirm_pin,
    Unpin: forks.apply_unpin,
    RefuseAttempt: forks.apply_refuse_attempt,
    Acknowledge: forks.apply_acknowledge,
    PublishSlices: publishing.apply_publish_slices,
    ReplaceSlices: publishing.apply_replace_slices,
    PackWritten: publishing.apply_pack_written,
    ReleasePack: publishing.apply_release_pack,
    PackDeleted: publishing.apply_pack_deleted,
    TableCreate: tables.apply_create,
    TableOpen: tables.apply_open,
    TablePlanned: tables.apply_planned,
    TableCommit: tables.apply_commit,
    TableAbandon: tables.apply_abandon,
    ClaimRanges: tables.apply_claim,
    **links.RULES,
    **eviction.RULES,
    **feature_level.RULES,
    **placement.RULES,
    **meta.RULES,
}
