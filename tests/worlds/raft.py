"""A small group in one thread: members with disks that lose unsynced data, clocks that drift, and
a scripted network."""

from __future__ import annotations

from typing import Any

import msgspec
from sim.raft_checks import Checks

from polynya.raft import (
    NEVER,
    ChunkWanted,
    Configuration,
    Effects,
    Entry,
    EntryKind,
    HardState,
    Identity,
    Message,
    Raft,
    Recovery,
    RestoredMember,
    Settings,
    Snapshot,
    decode_message,
    encode_message,
)

SETTINGS = Settings(
    heartbeat_ms=50,
    election_ms=300,
    clock_drift=0.05,
    sleep_after_ms=1500,
    message_bytes_max=600,
    inflight_messages_max=4,
    inflight_bytes_max=1500,
    uncommitted_bytes_max=20_000,
    log_bytes_max=2000,
    reads_max=64,
    rounds_max=4,
    chunk_bytes=64,
    chunk_window_bytes=192,
    caught_up_entries=20,
    rejoin_ms=0,  # those who leave keep what they have
)


class Disk:
    """A member's disk: frames in write order. Only `frames[:synced]` surely survives a crash."""

    def __init__(self) -> None:
        self.frames: list[tuple[str, Any]] = []
        self.synced = 0
        self.snapshots: dict[int, tuple[Snapshot, bytes]] = {}
        self.hard_state = HardState()  # of what is synced
        self.terms: dict[int, int] = {}  # index -> term of the log that is synced

    def write(self, effects: Effects) -> int:
        """Returns the position up to which it must be synced."""
        if effects.reset is not None:
            self.frames.append(("reset", (effects.reset.index, effects.reset.term)))
        if effects.hard_state is not None:
            self.frames.append(("hard", effects.hard_state))
        self.frames += [
            ("entry", (entry.term, entry.index, entry.kind, entry.payload))
            for entry in effects.entries
        ]
        return len(self.frames)

    def sync(self, position: int) -> None:
        for kind, frame in self.frames[self.synced : position]:
            if kind == "hard":
                self.hard_state = frame
            elif kind == "reset":
                self.terms = {frame[0]: frame[1]}
            else:
                term, index, _, _ = frame
                for above in [known for known in self.terms if known > index]:
                    del self.terms[above]
                self.terms[index] = term
        self.synced = max(self.synced, position)

    def crash(self, kept: int) -> None:
        """Crash: `kept` of the unsynced frames survive."""
        position = min(self.synced + kept, len(self.frames))
        del self.frames[position:]
        self.sync(position)

    def recover(self, group: int, identity: Snapshot) -> RestoredMember:
        recovery = Recovery(group)
        for kind, frame in self.frames:
            if kind == "hard":
                recovery.hard_state(frame)
            elif kind == "reset":
                recovery.reset(*frame)
            else:
                term, index, entry_kind, payload = frame
                recovery.entry(Entry(payload, entry_kind, term, index, group))
        newest = max(self.snapshots, default=None)
        return recovery.result(identity if newest is None else self.snapshots[newest][0])

    def entry(self, index: int) -> Entry | None:
        for kind, frame in reversed(self.frames):
            if kind == "reset" and frame[0] >= index:
                return None
            if kind == "entry" and frame[1] == index:
                return Entry(frame[3], frame[2], frame[0], index, 1)
        return None


class Member:
    """One member and the stand-in for its core: it writes, applies and keeps snapshots."""

    def __init__(
        self, world: World, node: int, *, rate: float = 1.0, settings: Settings = SETTINGS
    ) -> None:
        self.world, self.node, self.rate, self.settings = world, node, rate, settings
        self.disk = Disk()
        self.life = 0
        self.raft: Raft | None = None
        self.start()

    @property
    def now_ms(self) -> int:
        return int(self.world.now * self.rate) + 1000 * self.node

    @property
    def live(self) -> Raft:
        assert self.raft is not None
        return self.raft

    def start(self) -> None:
        self.life += 1
        self.pending: list[tuple[int, int]] = []  # (ticket, position) not yet synced
        self.incoming = b""
        self.installing: tuple[Snapshot, bytes] | None = None
        restored = self.disk.recover(1, self.world.identity)
        newest = max(self.disk.snapshots, default=None)
        self.applied, self.state = (
            (0, "") if newest is None else self.world.checks.open(*self.disk.snapshots[newest])
        )
        identity = Identity(1, self.node, self.world.seed_of(self.node, self.life))
        self.ready: list[Raft] = []
        self.raft = Raft(identity, restored, self.settings, now_ms=self.now_ms, ready=self.ready)

    def crash(self, kept: int = 0) -> None:
        self.raft = None
        self.disk.crash(kept)

    def settle(self) -> None:
        """End a turn: all effects are carried out, except that nothing is synced."""
        while self.raft is not None and self.ready:
            self.ready.clear()
            self.carry_out(self.raft.take())

    def carry_out(self, effects: Effects) -> None:
        raft, world = self.live, self.world
        if effects.ticket:
            world.checks.written(self, effects)
            self.pending.append((effects.ticket, self.disk.write(effects)))
        for message in effects.messages:
            world.checks.sent(self, message)
            world.send(message)
        if effects.committed:
            for entry in effects.committed:
                self.apply(entry)
            raft.applied_to(self.applied)
        for token in effects.reads:
            world.checks.read(self, token)
        if effects.changed:
            world.checks.changed(self)
        for wanted in effects.chunks_wanted:
            self.answer_chunk(wanted)
        for arrived in effects.chunks_arrived:
            self.incoming = arrived.data if arrived.offset == 0 else self.incoming + arrived.data
        if effects.install is not None:
            self.install(effects.install)
        if effects.load is not None:
            found = [
                self.disk.entry(index)
                for index in range(
                    effects.load.begin, min(effects.load.end, effects.load.begin + 5)
                )
            ]
            entries = [] if None in found else [entry for entry in found if entry is not None]
            raft.loaded(effects.load.begin, entries, self.now_ms)

    def apply(self, entry: Entry) -> None:
        assert entry.index == self.applied + 1, (
            f"member {self.node} applies {entry.index} after {self.applied}"
        )
        self.applied = entry.index
        self.state = self.world.checks.applied(self, entry, self.state)

    def answer_chunk(self, wanted: ChunkWanted) -> None:
        found = self.disk.snapshots.get(wanted.snapshot.index)
        if found is None or found[0] != wanted.snapshot:
            self.live.snapshots.chunk_missing(wanted, self.now_ms)
        else:
            self.live.snapshots.chunk_read(
                wanted, found[1][wanted.offset : wanted.offset + wanted.length], self.now_ms
            )

    def install(self, snapshot: Snapshot) -> None:
        """Install a snapshot that is here as a whole; `finish_install` comes at once, or when the
        world says so."""
        assert len(self.incoming) == snapshot.size
        self.installing = (snapshot, self.incoming)
        if self.world.installs_at_once:
            self.finish_install()

    def keep_install(self) -> None:
        """Make the installed file durable; the applied state stays."""
        if self.installing is not None:
            snapshot = self.installing[0]
            self.disk.snapshots = {snapshot.index: self.installing}

    def fail_install(self) -> None:
        if self.installing is not None:
            snapshot, self.installing = self.installing[0], None
            self.live.snapshots.install_failed(snapshot.identity, self.now_ms)

    def finish_install(self) -> None:
        """Install in one step: durable, and as the new applied state."""
        if self.installing is None:
            return
        self.keep_install()
        (snapshot, body), self.installing = self.installing, None
        self.applied, self.state = self.world.checks.open(snapshot, body)
        self.world.note(self.node, f"installs the snapshot at {snapshot.index}")
        self.live.snapshots.installed(snapshot.identity, self.now_ms)

    def take_snapshot(self, *, keep: int = 0) -> None:
        """Take a snapshot of the applied state; `keep` entries before its end stay for lagging
        members."""
        raft = self.live
        if self.applied > raft.snapshot.index:
            body = self.world.checks.body(self)
            identity = self.node << 32 | self.applied
            snapshot = raft.snapshots.describe(self.applied, len(body), identity)
            self.disk.snapshots = {self.applied: (snapshot, body)}
            raft.snapshots.taken(snapshot, self.applied + 1 - keep, self.now_ms)

    def lose_writes(self) -> int:
        """Undo unsynced writes of a full disk. Returns the first lost entry, or 0."""
        raft = self.live
        del self.disk.frames[self.disk.synced :]
        self.pending = []
        first = raft.unwritten(self.now_ms)
        if first:
            self.world.checks.retracted(raft.node, raft.term, first)
        return first

    def sync(self, writes: int = 1 << 30) -> None:
        done, self.pending = self.pending[:writes], self.pending[writes:]
        if done and self.raft is not None:
            self.disk.sync(done[-1][1])
            self.raft.persisted(done[-1][0], self.now_ms)


class World:
    """Messages in flight are bytes, in `network`, in the order they were sent. True time is
    `now`."""

    def __init__(
        self, identity: Configuration, *, seed: int = 0, settings: Settings = SETTINGS
    ) -> None:
        self.now = 0.0
        self.seed = seed
        self.settings = settings
        self.identity = Snapshot(0, 0, identity)
        self.checks = Checks(settings)
        self.network: list[Message] = []
        self.installs_at_once = True
        self.trace: list[str] | None = None
        self.members: dict[int, Member] = {}

    def add(self, node: int, *, rate: float = 1.0, settings: Settings | None = None) -> Member:
        self.members[node] = Member(self, node, rate=rate, settings=settings or self.settings)
        return self.members[node]

    def seed_of(self, node: int, life: int) -> int:
        return ((self.seed << 20) + node * 1000 + life) * 0x9E3779B97F4A7C15 % 2**64

    def send(self, message: Message) -> None:
        copy = decode_message(encode_message(message))
        assert copy == message, "what is decoded is what was encoded"
        self.network.append(copy)
        if self.trace is not None:
            self.note(message.sender, f"-> {message.to} {describe(message)}")

    def note(self, node: int, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{node} {text}")

    def deliver(self, message: Message) -> None:
        member = self.members.get(message.to)
        if member is not None and member.raft is not None:
            member.raft.step(message, member.now_ms)

    def settle(self) -> None:
        for member in self.members.values():
            member.settle()
        self.checks.always(self)

    def next_deadline(self) -> float:
        """Return the next deadline in true time."""
        times = [
            (m.raft.deadline_ms - 1000 * m.node) / m.rate
            for m in self.members.values()
            if m.raft and m.raft.deadline_ms < NEVER
        ]
        return min(times, default=float(NEVER))

    def tick(self) -> None:
        for member in self.members.values():
            if member.raft is not None and member.now_ms >= member.raft.deadline_ms:
                member.raft.tick(member.now_ms)

    def pass_time(self, ms: float) -> None:
        """Advance the clock: all messages arrive at once, all writes are synced at once, and timers
        go off when they are due."""
        end = self.now + ms
        self.run_quiet()
        while (due := max(self.next_deadline(), self.now)) <= end:
            self.now = due + 0.001
            self.tick()
            self.run_quiet()
        self.now = max(self.now, end)

    def run_quiet(self) -> None:
        """Run until nothing is in flight."""
        self.settle()
        while self.network or any(member.pending for member in self.members.values()):
            messages, self.network = self.network, []
            for message in messages:
                self.deliver(message)
            for member in self.members.values():
                member.sync()
            self.settle()

    def leader(self) -> Member | None:
        """Return the leader of the newest term."""
        leaders = [
            member
            for member in self.members.values()
            if member.raft is not None and member.raft.leader == member.node
        ]
        return max(leaders, key=lambda member: member.live.term, default=None)


def describe(message: Message) -> str:
    """Format a message in one line, for traces."""
    fields = {field: getattr(message, field) for field in message.__struct_fields__[3:]}
    name = type(message).__name__
    if "entries" in fields:
        fields["entries"] = "[" + " ".join(text_of(entry) for entry in fields["entries"]) + "]"
    if "snapshot" in fields:
        fields["snapshot"] = f"{fields['snapshot'].index}.{fields['snapshot'].term}"
        fields["data"] = f"{len(fields['data'])}B"
    shown = [
        f"{field}={_plain(value)}"
        for field, value in fields.items()
        if value not in (0, False, "") or field in {"match", "granted"}
    ]
    return " ".join([name, *shown])


def text_of(entry: Entry) -> str:
    text = {EntryKind.NOOP: "-", EntryKind.CONFIGURATION: "config"}.get(entry.kind) or _short(
        entry.payload.decode()
    )
    return f"{entry.index}.{entry.term}:{text}"


def _short(text: str) -> str:
    return text if len(text) < 30 else f"{text[0]}*{len(text)}"


def _plain(value: object) -> str:
    return "yes" if value is True else "no" if value is False else str(value)


def commands(*texts: str) -> list[Entry]:
    return [Entry(text.encode()) for text in texts]


def body_of(index: int, state: str) -> bytes:
    """Build a snapshot's bytes, long enough for several chunks."""
    return msgspec.msgpack.encode((index, state, "." * 300))
