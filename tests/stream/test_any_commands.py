"""Any commands in any order: a member that has just begun with a snapshot says the same to each,
and is the same, byte for byte; and so is what the chain of deltas says (both are compared by the
world)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from long_tests import long
from msgspec.structs import replace
from worlds.packed import commit_of
from worlds.stream import World, raw_batch

from polynya.base.limits import WRITE_MS_MAX, WRITER_IDLE_MS
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import (
    Acknowledge,
    ConfirmPin,
    PinSource,
    RefuseAttempt,
    Unpin,
)
from polynya.stream.features.lifetimes.commands import Create, Delete, Expire, Touch
from polynya.stream.features.packs.commands import (
    PackDeleted,
    PackWritten,
    PublishSlices,
    ReplaceSlices,
)
from polynya.stream.features.profiles.commands import (
    CommitSlices,
    Profile,
    SealProfileEpoch,
    SetProfile,
)
from polynya.stream.features.retention.commands import SetRetention, Trim
from polynya.stream.features.subscriptions.commands import (
    AckLinks,
    ForgetFailure,
    LinkSubscription,
    ResetLinks,
    SubscriptionConfig,
    SubscriptionDelete,
    SubscriptionEvent,
    SubscriptionLinked,
    SubscriptionPut,
    SubscriptionPutLimited,
    SubscriptionRetry,
    SubscriptionStreams,
    SubscriptionWorker,
    UnlinkSubscription,
)
from polynya.stream.features.subscriptions.rules import Event
from polynya.stream.features.subscriptions.state import Subscription
from polynya.stream.features.tables.commands import ClaimRanges, WatchStreams
from polynya.stream.machine import Machine
from polynya.stream.parts import ColdSlice, Fork, Producer, Retention
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index
from polynya.stream.state.model import Stream
from polynya.stream.state.profile_epochs import profile_epoch_of

NAMES = [*(f"test/{letter}" for letter in "abcde"), "other/x"]
OWNER = 1  # of packs and subscriptions
STEPS = 250
JOBS = {7: "test/", 9: ""}  # tables and their prefixes


class Player:
    """Each method does something with group `group`, if it can."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(2)
        self.now_ms = 1000
        self.packs = 0
        self.jobs = dict.fromkeys(JOBS, 1)
        self.attempts: list[tuple[int, str, str]] = []
        self.commits: dict[tuple[int, str], CommitSlices] = {}  # the last, by group and writer

    def play(self) -> None:
        moves: list[Callable[[], object]] = [self.write] * 6 + [
            *(
                self.create,
                self.create,
                self.end,
                self.touch,
                self.trim,
                self.retain,
                self.fork,
                self.unpin,
                self.deliver,
                self.flush,
            ),
            *(
                self.flush,
                self.merge,
                self.evict,
                self.bring,
                self.claim,
                self.watch,
                self.put,
                self.members,
                self.link,
                self.event,
                self.acknowledge,
                self.workers,
            ),
            *(
                self.members,
                self.link,
                self.link,
                self.create,
                self.end,
                self.forget,
                self.collect,
                self.restart,
            ),
            *[self.pack] * 6,
            *(self.profile, self.profile, self.seal),
        ]
        for _ in range(STEPS):
            self.now_ms += self.random.choice([0, 1, 5, 50, 400])
            self.now_ms += WRITER_IDLE_MS if self.chance(0.004) else 0
            self.group, self.name = self.random.choice([1, 1, 1, 2]), self.random.choice(NAMES)
            self.random.choice(moves)()

    def apply(self, command: Command, group: int = 0) -> Reply:
        return self.world.apply(group or self.group, command)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    @property
    def machine(self) -> Machine:
        return self.world.machines[self.group]

    @property
    def stream(self) -> Stream | None:
        return self.machine.directory.streams.get(self.name)

    # Streams.

    def create(self) -> None:
        body = raw_batch(b"x" * self.random.randint(1, 5)) if self.chance(0.4) else None
        retention = Retention(age_seconds=1, bytes=3) if self.chance(0.15) else None
        ttl_seconds = 1 if self.chance(0.25) else None
        closed, producer = self.chance(0.1), Producer("p", 0, 0) if self.chance(0.3) else None
        self.apply(
            Create(
                self.name,
                self.now_ms,
                "text/plain",
                0,
                ttl_seconds=ttl_seconds,
                closed=closed,
                batch=body,
                producer=producer,
                retention=retention,
                profile=int(self.chance(0.5)),
            )
        )

    def write(self) -> None:
        body = raw_batch(b"y" * self.random.randint(1, 9))
        producer = (
            Producer(self.random.choice("pq"), 0, self.random.randint(0, 3))
            if self.chance(0.4)
            else None
        )
        self.apply(
            Append(
                self.name,
                self.now_ms,
                "text/plain",
                body,
                producer=producer,
                close=self.chance(0.03),
            )
        )

    def end(self) -> None:
        stream = self.stream
        if stream is not None and self.chance(0.5):
            self.apply(Expire(self.name, stream.uid, stream.activity_ms, self.now_ms))
        else:
            self.apply(Delete(self.name, self.now_ms))

    def touch(self) -> None:
        self.apply(
            Touch(
                [
                    (stream.uid, self.now_ms)
                    for stream in list(self.machine.directory.streams.values())[:3]
                ],
                self.now_ms,
            )
        )

    def trim(self) -> None:
        stream = self.stream
        if stream is not None and not stream.deleted:
            record = self.random.randint(stream.first_record, stream.next_record + 1)
            self.apply(Trim([(stream.uid, record, -1)], self.now_ms, [self.name]))

    def retain(self) -> None:
        retention = self.random.choice([None, Retention(age_seconds=5), Retention(bytes=4)])
        self.apply(SetRetention(self.name, retention, self.now_ms))

    def fork(self) -> None:
        attempt = f"{self.random.getrandbits(128):032x}"
        self.attempts.append((self.group, attempt, self.name))
        pinned = self.apply(PinSource(self.name, attempt, self.random.choice(NAMES), self.now_ms))
        if pinned.code != Code.OK or self.chance(0.3):
            return
        record, byte, content_type, encoding, ttl_seconds, _, depth, _, *rest = pinned.detail
        fork = Fork(attempt, self.name, pinned.uid, record, byte, "", 0, depth, *rest[:2])
        command = Create(
            self.random.choice(NAMES),
            self.now_ms,
            content_type,
            encoding,
            ttl_seconds=ttl_seconds,
            fork=fork,
            profile=sum(rest[2:]),  # that of the source
        )
        self.apply(command, self.random.choice([1, 2]))
        if self.chance(0.6):
            self.apply(ConfirmPin(pinned.uid, attempt))

    def unpin(self) -> None:
        if not self.attempts:
            return
        group, attempt, name = self.random.choice(self.attempts)
        source = self.world.machines[group].directory.streams.get(name)
        if source is not None and self.chance(0.6):
            self.apply(Unpin(source.uid, attempt, self.now_ms), group)
        else:
            self.apply(RefuseAttempt(self.name, attempt, self.now_ms))

    def deliver(self) -> None:
        for message, (group, command) in list(self.machine.outbox.messages.items())[:2]:
            self.apply(command, group)
            self.apply(Acknowledge(message))

    # Diskless streams.

    def pack(self) -> None:
        """A commit of one of two writers, or a repeat, or a late one, or another of its pack."""
        writer = self.random.choice("vw")
        last = self.commits.get((self.group, writer))
        if last is not None and self.chance(0.2):
            self.apply(replace(last, now_ms=self.now_ms))
            return
        if last is not None and self.chance(0.1):
            self.apply(replace(last, now_ms=self.now_ms, sequence=last.sequence - 1 or 1))
            return
        self.packs += 1
        appends = [
            Append(
                self.random.choice(NAMES),
                max(0, self.now_ms - self.random.randint(0, 30)),
                "text/plain",
                raw_batch(b"z" * self.random.randint(1, 9)),
                Producer(self.random.choice("pq"), 0, self.random.randint(0, 3))
                if self.chance(0.4)
                else None,
                close=self.chance(0.03),
            )
            for _ in range(self.random.randint(1, 4))
        ]
        command = commit_of(
            self.world,
            last.pack if last is not None and self.chance(0.2) else f"pack{self.packs}",
            (writer, 1 if last is None else last.sequence + self.random.randint(1, 2)),
            appends,
            now_ms=self.now_ms,
            intent_ms=max(0, self.now_ms - self.random.choice([*range(9), WRITE_MS_MAX + 1])),
        )
        self.commits[self.group, writer] = command
        self.apply(command)

    def profile(self) -> None:
        profile = self.random.choice([Profile.DISKLESS, Profile.DISKLESS, Profile.REPLICATED])
        self.apply(SetProfile(self.name, profile, self.now_ms, epoch=self.random.choice([0, 0, 2])))

    def seal(self) -> None:
        stream = self.stream
        if stream is not None:
            self.apply(
                SealProfileEpoch(self.name, stream.uid, profile_epoch_of(stream).epoch, self.now_ms)
            )

    # Packs, blocks and tables.

    def flush(self) -> None:
        hot = list(self.machine.directory.hot.values())
        if hot:
            stream = self.random.choice(hot)
            self.packs += 1
            cold = self.world.slice_of(
                stream, self.random.randint(1, len(stream.hot or ())), f"pack{self.packs}"
            )
            self.apply(PackWritten(cold.pack, [self.group], self.now_ms), OWNER)
            self.apply(PublishSlices(cold.pack, OWNER, 1, [(stream.uid, cold)], self.now_ms))

    def merge(self) -> None:
        several = [
            stream
            for stream in self.machine.directory.streams.values()
            if index.count(stream.cold) > 1
        ]
        if not several:
            return
        stream = self.random.choice(several)
        entries = list(self.machine.packs.index_of(stream))
        first, last = sorted(self.random.sample(range(len(entries)), 2))
        some, world = entries[first : last + 1], self.world
        self.packs += 1
        records, length = sum(cold.records for cold in some), sum(cold.length for cold in some)
        cold = ColdSlice(
            some[0].record, some[0].byte, records, length, f"pack{self.packs}", 0, 10, 5
        )
        world.slices[cold.pack, 0] = [batch for each in some for batch in world.batches_of(each)]
        self.apply(PackWritten(cold.pack, [self.group], self.now_ms), OWNER)
        self.apply(ReplaceSlices(cold.pack, OWNER, 1, [(stream.uid, cold)], self.now_ms))

    def collect(self) -> None:
        for key in list(self.world.machines[OWNER].packs.condemned(self.now_ms)):
            self.apply(PackDeleted(key), OWNER)

    def evict(self) -> None:
        names = [name for name in self.machine.directory.streams if self.chance(0.6)]
        if names:
            self.world.evict(self.group, names, self.now_ms)

    def bring(self) -> None:
        names = [name for name in self.machine.directory.evicted if self.chance(0.6)]
        if names:
            self.world.bring(self.group, names, self.now_ms)

    def claim(self) -> None:
        table = self.random.choice(list(JOBS))
        self.jobs[table] += self.chance(0.6)
        job, bytes_max, fresh = self.jobs[table], self.random.choice([5, 1000]), self.chance(0.9)
        self.apply(
            ClaimRanges(
                table,
                job,
                self.random.choice([job - 1, job - 1, 0]),
                JOBS[table],
                [],
                bytes_max,
                fresh,
            )
        )

    def watch(self) -> None:
        table = self.random.choice(list(JOBS))
        self.apply(WatchStreams(table, [JOBS[table]], self.chance(0.3), self.now_ms))

    def restart(self) -> None:
        self.world.restart(self.group)

    # Subscriptions.

    @property
    def owned(self) -> Subscription | None:
        return self.random.choice([*self.world.machines[OWNER].subscriptions.owned.values(), None])

    def put(self) -> None:
        pattern, kind = self.random.choice(["test/*", "**", ""]), self.random.choice([0, 1])
        config = SubscriptionConfig(kind, pattern, [self.name], "http://hook/", "wake/x", 1000)
        put = (self.random.choice("stu"), self.now_ms, config, "http://here")
        self.apply(
            SubscriptionPutLimited(*put, 3, "dead/x")
            if self.chance(0.3)
            else SubscriptionPut(*put),
            OWNER,
        )

    def members(self) -> None:
        subscription = self.owned
        if subscription is not None:
            self.apply(
                SubscriptionStreams(
                    subscription.id, [self.name], [self.random.choice(NAMES)], self.now_ms
                ),
                OWNER,
            )

    def link(self) -> None:
        subscription = self.owned
        if subscription is not None:
            for group in (1, 2):
                command = LinkSubscription(
                    subscription.id,
                    subscription.uid,
                    subscription.revision,
                    subscription.config.pattern,
                    "wake/x",
                    list(subscription.streams),
                )
                self.apply(command, group)
            self.apply(
                SubscriptionLinked(subscription.id, subscription.uid, subscription.revision), OWNER
            )

    def event(self) -> None:
        subscription = self.owned
        if subscription is not None:
            event, wake_id = self.random.choice(list(Event)), subscription.wake_id or "w"
            self.apply(
                SubscriptionEvent(
                    subscription.id,
                    subscription.uid,
                    event,
                    self.now_ms,
                    subscription.generation,
                    wake_id,
                    self.name,
                    self.now_ms + 10,
                ),
                OWNER,
            )

            if self.chance(0.3):
                cursor = (self.name, self.random.randint(0, 3), 0)
                fence = (subscription.generation, subscription.wake_id)
                self.apply(
                    SubscriptionRetry(
                        subscription.id,
                        subscription.uid,
                        self.now_ms,
                        *fence,
                        *cursor,
                        self.now_ms + 10,
                        "boom",
                    ),
                    OWNER,
                )

    def workers(self) -> None:
        subscription, worker = self.owned, self.random.choice("uvw")
        if subscription is not None:
            until_ms = self.now_ms + self.random.choice([0, 5, 50])
            report = (worker, 4, until_ms if until_ms > self.now_ms else 0, [])
            self.apply(
                SubscriptionWorker(subscription.id, subscription.uid, self.now_ms, *report), OWNER
            )
            if self.chance(0.2):
                self.apply(ForgetFailure(subscription.id, subscription.uid, self.name), OWNER)

    def acknowledge(self) -> None:
        subscription, stream = self.owned, self.stream
        if subscription is not None and stream is not None:
            position = (
                self.random.randint(0, stream.next_record + 1),
                self.random.randint(0, stream.next_byte),
            )
            kind = ResetLinks if self.chance(0.2) else AckLinks
            self.apply(
                kind(subscription.id, subscription.uid, [(stream.name, stream.uid, *position)])
            )

    def forget(self) -> None:
        subscription = self.owned
        if subscription is not None:
            self.apply(SubscriptionDelete(subscription.id, self.now_ms), OWNER)
            for group in (1, 2) if self.chance(0.7) else ():
                self.apply(UnlinkSubscription(subscription.id, subscription.uid), group)


@pytest.mark.parametrize("seed", [*range(15), *long(range(15, 40))])
def test_a_member_that_began_with_a_snapshot_goes_on_like_the_others(seed: int) -> None:
    Player(seed).play()
