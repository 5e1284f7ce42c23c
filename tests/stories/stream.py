"""Story scripts: commands in, trace out. A line is a command; the lines under it, indented, are
what it answered.

    at 1000                                   the log's time from here on
    create NAME [type=T] [json] [ttl=S] [expires=MS] [closed] [body=B] [producer=ID/EPOCH/SEQ]
    [seq=S] [fork=SOURCE attempt=A …]
    produce NAME RECORDS [body=B] [producer=ID/EPOCH/FIRST] [uid=UID]; ids COUNT
    append NAME [RECORD …] [type=T] [producer=ID/EPOCH/SEQ] [seq=S] [close] [incarnation=UID]
    read NAME [from=TOKEN|start|now|@BYTE] [max=N] [whole]
    trim NAME at=TOKEN [NAME at=TOKEN]; trim NAME at=TOKEN inside; retain NAME [age=S] [bytes=N]
    [none]; bucket NAME [age=S] [bytes=N] [none] pin, confirm, unpin, refuse, deliver, flush,
    publish, merge, written, release, erase, delete, expire, touch, show table, open, planned,
    claim, commit, abandon create … diskless; profile NAME diskless|replicated [uid=UID] [epoch=N];
    seal NAME epoch=N pack append …, pack produce … (as above): into the next pack slices PACK
    WRITER/N [intent=MS]; again: the same command once more; writers; entries NAME; evict NAME …;
    bring NAME …

Names go to the group that `@N` before the name says (default 1). `x*70000` is a long body. A `uid`
is written group.counter.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs
from stories.scripts import traced
from worlds.packed import commit_of
from worlds.stream import World, json_batch, kafka_batch, kafka_producer, position_of, raw_batch

from polynya.base.names import companion_of
from polynya.stream.command_validation import fault_of
from polynya.stream.features.appends.commands import Append, AppendIf, Produce, ProducerIds
from polynya.stream.features.attributes.commands import ANY_REVISION, SetAttributes
from polynya.stream.features.forks.commands import (
    Acknowledge,
    ConfirmPin,
    PinSource,
    RefuseAttempt,
    Unpin,
)
from polynya.stream.features.lifetimes.commands import (
    Create,
    CreateWithAttributes,
    Delete,
    Expire,
    Touch,
)
from polynya.stream.features.lifetimes.rules import is_expired
from polynya.stream.features.marks.commands import OVERDUE, DropSnapshot, PublishSnapshot
from polynya.stream.features.packs.commands import (
    PackDeleted,
    PackWritten,
    PublishSlices,
    ReleasePack,
    ReplaceSlices,
)
from polynya.stream.features.profiles.commands import (
    CommitSlices,
    Profile,
    SealProfileEpoch,
    SetProfile,
)
from polynya.stream.features.retention.commands import BucketRetention, SetRetention, Trim, TrimTo
from polynya.stream.features.retention.rules import cut_of, retention_of
from polynya.stream.features.tables.commands import (
    ClaimRanges,
    ForgetTable,
    TableAbandon,
    TableAlter,
    TableCommit,
    TableCreate,
    TableDrop,
    TableFail,
    TableOpen,
    TablePlanned,
    TableRetry,
    WatchStreams,
)
from polynya.stream.features.tables.rules import lag_of
from polynya.stream.features.tables.state import Failure
from polynya.stream.parts import Batch, ColdSlice, Encoding, Fork, Producer, Retention
from polynya.stream.read_plan import HotPiece, ReadRefused, Want
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index
from polynya.stream.state.model import Stream


def run(text: str) -> str:
    """The script with its trace."""
    return traced(text, _Story().step)


class _Words:
    """A command's words: plain ones in order, `key=value` ones by key, the group from `@N`."""

    def __init__(self, words: list[str]) -> None:
        self.group = 1
        if words and words[0].startswith("@"):
            self.group = int(words.pop(0)[1:])
        self.plain = [word for word in words if "=" not in word]
        self.named = dict(word.split("=", 1) for word in words if "=" in word)

    def number(self, key: str, default: int | None = None) -> int | None:
        return int(self.named[key]) if key in self.named else default

    def flag(self, word: str) -> bool:
        if word in self.plain:
            self.plain.remove(word)
            return True
        return False


def _body(text: str) -> bytes:
    unit, star, times = text.rpartition("*")
    return (unit * int(times) if star else text).encode()


def _bound(words: _Words) -> list[str] | None:
    return words.named["bound"].split(",") if "bound" in words.named else None


def _producer(words: _Words) -> Producer | None:
    if "producer" not in words.named:
        return None
    name, epoch, sequence = words.named["producer"].split("/")
    return Producer(name, int(epoch), int(sequence))


def _uid(text: str) -> int:
    group, counter = text.split(".")
    return int(group) << 48 | int(counter)


def _show_uid(uid: int) -> str:
    return f"{uid >> 48}.{uid & (1 << 48) - 1}"


class _Story:
    def __init__(self) -> None:
        self.world = World()
        self.now_ms = 0
        self.slices: dict[str, list[tuple[int, ColdSlice]]] = {}
        self.packed: list[Append | Produce] = []  # for the next pack
        self.commit: CommitSlices | None = None  # the last one

    def step(self, words: list[str]) -> list[str]:
        verb: Callable[[_Words], list[str]] = getattr(self, f"do_{words[0]}")
        return verb(_Words(words[1:]))

    def answer(self, reply: Reply) -> list[str]:
        parts = [Code(reply.code).name]
        if reply.uid:
            parts += [f"uid={_show_uid(reply.uid)}", f"tail={reply.record}_{reply.byte}"]
        if reply.closed:
            parts.append("closed")
        for name in (
            "producer_epoch",
            "producer_sequence",
            "expected_sequence",
            "received_sequence",
            "first_record",
        ):
            if getattr(reply, name) >= 0:
                parts.append(f"{name}={getattr(reply, name)}")
        if reply.detail is not None:
            parts.append(f"detail={reply.detail}")
        return [" ".join(parts)]

    def batch(self, encoding: int, bodies: list[str]) -> Batch | None:
        if not bodies:
            return None
        return (
            json_batch(*map(_body, bodies))
            if encoding == Encoding.JSON
            else raw_batch(_body(bodies[0]))
        )

    def stream(self, group: int, name: str) -> Stream:
        stream = self.world.machines[group].directory.lookup(name)
        assert stream is not None, name
        return stream

    def do_at(self, words: _Words) -> list[str]:
        self.now_ms = int(words.plain[0])
        return []

    def do_create(self, words: _Words) -> list[str]:
        encoding = Encoding.JSON if words.flag("json") else Encoding.BYTES
        closed, profile = words.flag("closed"), int(words.flag("diskless"))
        command = Create(
            name=words.plain[0],
            now_ms=self.now_ms,
            content_type=words.named.get(
                "type", "application/json" if encoding == Encoding.JSON else "text/plain"
            ),
            encoding=encoding,
            ttl_seconds=words.number("ttl"),
            expires_at_ms=words.number("expires"),
            closed=closed,
            batch=self.batch(encoding, words.plain[1:]),
            producer=_producer(words),
            stream_seq=words.named.get("seq"),
            fork=self.fork(words),
            profile=profile,
        )
        if "attrs" in words.named:
            attributes = words.named["attrs"].encode()
            command = CreateWithAttributes(*structs.astuple(command), attributes=attributes)
        return self.answer(self.world.apply(words.group, command))

    def do_attrs(self, words: _Words) -> list[str]:
        """`attrs NAME none|JSON`"""
        name, value = words.plain
        command = SetAttributes(
            name,
            None if value == "none" else value.encode(),
            self.now_ms,
            _uid(words.named["uid"]) if "uid" in words.named else 0,
            words.number("revision", ANY_REVISION) or 0,
        )
        return self.answer(self.world.apply(words.group, command))

    def do_snapshot(self, words: _Words) -> list[str]:
        """`snapshot NAME RECORD_BYTE DIGEST [part=RECORD_BYTE] [kept=N] [origin=O] [bound=O,…]`"""
        name, position, digest = words.plain
        own = self.world.machines[words.group].directory.lookup(companion_of(name))
        part = (*position_of(words.named["part"]), 1) if "part" in words.named else None
        command = PublishSnapshot(
            name,
            self.stream(words.group, name).uid,
            *position_of(position),
            own.uid if own is not None else 0,
            () if part is None else (part,),
            0 if part is None else 1,
            digest.encode() * 32,
            "text/plain",
            words.named.get("origin", ""),
            words.number("kept", 2) or 2,
            _bound(words),
            self.now_ms,
        )
        return self.answer(self.world.apply(words.group, command))

    def do_unmark(self, words: _Words) -> list[str]:
        """`unmark NAME RECORD|overdue [origin=O] [bound=O,…]`"""
        name, text = words.plain
        record = OVERDUE if text == "overdue" else int(text)
        uid = self.stream(words.group, name).uid
        origin = words.named.get("origin", "")
        command = DropSnapshot(name, uid, origin, record, 2, _bound(words), self.now_ms)
        return self.answer(self.world.apply(words.group, command))

    def fork(self, words: _Words) -> Fork | None:
        if "fork" not in words.named:
            return None
        record, byte = position_of(words.named["at"])
        return Fork(
            attempt=words.named["attempt"],
            source_name=words.named["fork"],
            source_uid=_uid(words.named["source"]),
            record=record,
            byte=byte,
            requested_offset=words.named.get("offset", ""),
            requested_sub_offset=words.number("sub", 0) or 0,
            depth=words.number("depth", 1) or 1,
            first_record=position_of(words.named.get("first", "0_0"))[0],
            first_byte=position_of(words.named.get("first", "0_0"))[1],
        )

    def do_append(self, words: _Words) -> list[str]:
        return self.answer(self.world.apply(words.group, self.append(words)))

    def append(self, words: _Words) -> Append:
        close = words.flag("close")
        known = self.world.machines[words.group].directory.lookup(words.plain[0])
        batch = self.batch(known.encoding if known else Encoding.BYTES, words.plain[1:])
        plain = Append(
            name=words.plain[0],
            now_ms=self.now_ms,
            content_type=words.named.get("type", known.content_type if known and batch else ""),
            batch=batch,
            producer=_producer(words),
            stream_seq=words.named.get("seq"),
            close=close,
            incarnation=_uid(words.named["incarnation"]) if "incarnation" in words.named else 0,
        )
        record = words.number("if")
        return plain if record is None else AppendIf(*structs.astuple(plain), record)

    def do_produce(self, words: _Words) -> list[str]:
        command = self.produce(words)
        fault = fault_of(command)
        return [fault] if fault else self.answer(self.world.apply(words.group, command))

    def produce(self, words: _Words) -> Produce:
        records = int(words.plain[1])
        producer = None
        if "producer" in words.named:
            producer = kafka_producer(*map(int, words.named["producer"].split("/")), records)
        uid = _uid(words.named["uid"]) if "uid" in words.named else 0
        batch = kafka_batch(records, _body(words.named.get("body", "")))
        return Produce(words.plain[0], self.now_ms, batch, producer, uid)

    def do_pack(self, words: _Words) -> list[str]:
        make = {"append": self.append, "produce": self.produce}[words.plain.pop(0)]
        self.packed.append(make(words))
        return []

    def do_slices(self, words: _Words) -> list[str]:
        pack, named = words.plain
        name, number = named.split("/")
        self.commit = commit_of(
            self.world,
            pack,
            (name, int(number)),
            self.packed,
            now_ms=self.now_ms,
            intent_ms=words.number("intent", self.now_ms) or 0,
        )
        self.packed = []
        return self.do_again(words)

    def do_again(self, words: _Words) -> list[str]:
        assert self.commit is not None
        command = structs.replace(self.commit, now_ms=self.now_ms)
        assert fault_of(command) == ""
        reply = self.world.apply(words.group, command)
        if reply.code != Code.OK:
            return self.answer(reply)
        appends = [each for part in command.slices for each in part.appends]
        return [
            f"{each.command.name} {line}"
            for each, one in zip(appends, reply.detail, strict=True)
            for line in self.answer(one)
        ]

    def do_writers(self, words: _Words) -> list[str]:
        writers = self.world.machines[words.group].diskless.writers.values()
        return [f"{each.writer}/{each.sequence} at {each.time_ms}" for each in writers]

    def do_entries(self, words: _Words) -> list[str]:
        machine, stream = self.world.machines[words.group], self.stream(words.group, words.plain[0])
        return [
            f"{cold.record}_{cold.byte} records={cold.records} bytes={cold.length} in {cold.pack}: "
            f"batches {cold.first_batch} to {cold.first_batch + cold.batches}"
            for cold in machine.packs.index_of(stream)
        ]

    def do_evict(self, words: _Words) -> list[str]:
        return self.world.evict(words.group, words.plain, self.now_ms)

    def do_bring(self, words: _Words) -> list[str]:
        self.world.bring(words.group, words.plain, self.now_ms)
        return []

    def do_profile(self, words: _Words) -> list[str]:
        name, profile = words.plain
        command = SetProfile(
            name,
            Profile.NAMES.index(profile),
            self.now_ms,
            _uid(words.named["uid"]) if "uid" in words.named else 0,
            words.number("epoch", 0) or 0,
        )
        return self.answer(self.world.apply(words.group, command))

    def do_seal(self, words: _Words) -> list[str]:
        known = self.world.machines[words.group].directory.lookup(words.plain[0])
        uid = _uid(words.named["uid"]) if "uid" in words.named else known.uid if known else 0
        command = SealProfileEpoch(words.plain[0], uid, words.number("epoch", 1) or 1, self.now_ms)
        return self.answer(self.world.apply(words.group, command))

    def do_ids(self, words: _Words) -> list[str]:
        return self.answer(
            self.world.apply(words.group, ProducerIds(int(words.plain[0]), self.now_ms))
        )

    def do_delete(self, words: _Words) -> list[str]:
        incarnation = _uid(words.named["incarnation"]) if "incarnation" in words.named else 0
        return self.answer(
            self.world.apply(words.group, Delete(words.plain[0], self.now_ms, incarnation))
        )

    def do_expire(self, words: _Words) -> list[str]:
        activity_ms = words.number("activity")
        assert activity_ms is not None
        return self.answer(
            self.world.apply(
                words.group,
                Expire(words.plain[0], _uid(words.named["uid"]), activity_ms, self.now_ms),
            )
        )

    def do_touch(self, words: _Words) -> list[str]:
        read_ms = words.number("read", self.now_ms)
        assert read_ms is not None
        return self.answer(
            self.world.apply(
                words.group, Touch([(_uid(uid), read_ms) for uid in words.plain], self.now_ms)
            )
        )

    def do_trim(self, words: _Words) -> list[str]:
        """`trim NAME … at=TOKEN`: all of these streams at the same boundary, in one command.
        `trim NAME at=TOKEN inside`: also inside a batch."""
        cut = position_of(words.named["at"])
        if words.flag("inside"):
            (name,) = words.plain
            known = self.world.machines[words.group].directory.lookup(name)
            command = TrimTo(name, known.uid if known else 0, *cut, self.now_ms)
            fault = fault_of(command)
            return [fault] if fault else self.answer(self.world.apply(words.group, command))
        cuts = [(self.stream(words.group, name).uid, *cut) for name in words.plain]
        return self.answer(self.world.apply(words.group, Trim(cuts, self.now_ms)))

    def retention(self, words: _Words) -> Retention | None:
        return None if words.flag("none") else Retention(words.number("age"), words.number("bytes"))

    def do_retain(self, words: _Words) -> list[str]:
        retention = self.retention(words)
        return self.answer(
            self.world.apply(words.group, SetRetention(words.plain[0], retention, self.now_ms))
        )

    def do_bucket(self, words: _Words) -> list[str]:
        retention = self.retention(words)
        reply = self.world.apply(0, BucketRetention(words.plain[0], retention, self.now_ms))
        return [
            *self.answer(reply),
            *(f"{name}: {found}" for name, found in self.world.machines[0].meta.buckets.items()),
        ]

    def do_due(self, words: _Words) -> list[str]:
        """Print the trim that the stream's own retention currently requires."""
        stream = self.stream(words.group, words.plain[0])
        retention = retention_of(stream)
        assert retention is not None
        cut = cut_of(stream, retention, self.now_ms)
        cold = f" older than {cut.inside_ms} inside" if cut.inside_ms else ""
        return [
            ("nothing" if cut.boundary is None else f"to {cut.boundary[0]}_{cut.boundary[1]}")
            + cold
        ]

    def do_lag(self, words: _Words) -> list[str]:
        """`lag TABLE PREFIX committed=JOB`"""
        machine = self.world.machines[words.group]
        *_, lag = lag_of(
            machine, _uid(words.plain[0]), words.plain[1], [], words.number("committed", 0) or 0
        )
        lost = f" lost={lag.lost}" if lag.watched else ""
        return [
            f"streams={lag.streams} records={lag.records} skipped={lag.skipped} "
            f"since={lag.since_ms}{lost}"
        ]

    def do_watch(self, words: _Words) -> list[str]:
        """`watch TABLE PREFIX … [hold]`: the group learns of a table."""
        hold = words.flag("hold")
        return self.answer(
            self.world.apply(
                words.group, WatchStreams(_uid(words.plain[0]), words.plain[1:], hold, self.now_ms)
            )
        )

    def do_fail(self, words: _Words) -> list[str]:
        """`fail TABLE JOB NAME BEGIN END`: a range could not be read."""
        table, job, name, begin, end = words.plain
        row = (self.stream(words.group, name).uid, name, int(begin), int(end), "pack", 0, "damaged")
        return self.failures(
            self.world.apply(0, TableFail(_uid(table), int(job), [row], self.now_ms))
        )

    def do_retry(self, words: _Words) -> list[str]:
        return self.failures(self.world.apply(0, TableRetry(_uid(words.plain[0]), self.now_ms)))

    def do_alter(self, words: _Words) -> list[str]:
        """`alter TABLE NAME [hold]`"""
        hold = words.flag("hold")
        table, name = words.plain
        command = TableAlter(_uid(table), name, hold, [], self.now_ms)
        return self.table_answer(self.world.apply(0, command))

    def do_drop(self, words: _Words) -> list[str]:
        command = TableDrop(_uid(words.plain[0]), self.now_ms)
        return self.table_answer(self.world.apply(0, command))

    def do_forget(self, words: _Words) -> list[str]:
        """`forget TABLE [gone] [@0]`: a dropped table; `gone`: its files are."""
        gone = words.flag("gone")
        command = ForgetTable(_uid(words.plain[0]), gone)
        return self.answer(self.world.apply(words.group, command))

    def failures(self, reply: Reply) -> list[str]:
        lines = [
            f"{each.stream} {each.record}..{each.end} "
            f"{each.count}{' aside' * each.aside}{' again' * each.again}"
            for each in reply.detail.failures
        ]
        return [*self.table_answer(reply), *lines]

    def do_expired(self, words: _Words) -> list[str]:
        stream, touched_ms = self.stream(words.group, words.plain[0]), words.number("touched", 0)
        return [str(is_expired(stream, self.now_ms, touched_ms or 0)).lower()]

    def do_pin(self, words: _Words) -> list[str]:
        record, byte = position_of(words.named["at"]) if "at" in words.named else (-1, -1)
        command = PinSource(
            name=words.plain[0],
            attempt=words.named["attempt"],
            target_name=words.named.get("target", "default/fork"),
            now_ms=self.now_ms,
            record=record,
            byte=byte,
            content_type=words.named.get("type", ""),
            sub_offset=words.number("sub", 0) or 0,
            resolved=words.flag("resolved"),
        )
        return self.answer(self.world.apply(words.group, command))

    def do_confirm(self, words: _Words) -> list[str]:
        return self.answer(
            self.world.apply(
                words.group, ConfirmPin(_uid(words.named["source"]), words.named["attempt"])
            )
        )

    def do_unpin(self, words: _Words) -> list[str]:
        return self.answer(
            self.world.apply(
                words.group, Unpin(_uid(words.named["source"]), words.named["attempt"], self.now_ms)
            )
        )

    def do_refuse(self, words: _Words) -> list[str]:
        return self.answer(
            self.world.apply(
                words.group, RefuseAttempt(words.plain[0], words.named["attempt"], self.now_ms)
            )
        )

    def do_deliver(self, words: _Words) -> list[str]:
        """Send every message of every outbox until none is left, as shells do."""
        lines = []
        while waiting := [
            (machine, message)
            for machine in self.world.machines.values()
            for message in machine.outbox.messages
        ]:
            for machine, message in waiting:
                group, command = machine.outbox.messages[message]
                reply = self.world.apply(group, command)
                lines.append(
                    f"{machine.group}->{group} {type(command).__name__} {Code(reply.code).name}"
                )
                self.world.apply(machine.group, Acknowledge(message))
        return lines

    def do_flush(self, words: _Words) -> list[str]:
        """`flush PACK NAME COUNT`: put the first COUNT hot batches into a pack; published later, by
        `publish PACK`."""
        pack, name, count = words.plain
        stream = self.stream(words.group, name)
        cold = self.world.slice_of(stream, int(count), pack)
        self.slices.setdefault(pack, []).append((stream.uid, cold))
        return [
            f"slice {_show_uid(stream.uid)} {cold.record}_{cold.byte} records={cold.records} "
            f"bytes={cold.length}"
        ]

    def do_publish(self, words: _Words) -> list[str]:
        pack = words.plain[0]
        slices = [] if words.flag("nothing") else self.slices.get(pack, [])
        command = PublishSlices(pack, words.number("home", 1) or 1, 1, slices, self.now_ms)
        return self.answer(self.world.apply(words.group, command))

    def do_merge(self, words: _Words) -> list[str]:
        """Run `merge PACK NAME BEGIN END [again]`: the entries from BEGIN to before END become
        one; `again` repeats the command unchanged."""
        again = words.flag("again")
        pack, name, begin, end = words.plain
        if not again:
            stream = self.stream(words.group, name)
            entries = self.world.machines[words.group].packs.index_of(stream)[int(begin) : int(end)]
            self.slices[pack] = [(stream.uid, self.world.merged(entries, pack))]
        command = ReplaceSlices(
            pack, words.number("home", 1) or 1, 1, self.slices[pack], self.now_ms
        )
        return self.answer(self.world.apply(words.group, command))

    def do_written(self, words: _Words) -> list[str]:
        return self.answer(
            self.world.apply(
                words.group,
                PackWritten(words.plain[0], [int(word) for word in words.plain[1:]], self.now_ms),
            )
        )

    def do_release(self, words: _Words) -> list[str]:
        return self.answer(
            self.world.apply(
                words.group, ReleasePack(words.plain[0], int(words.plain[1]), self.now_ms)
            )
        )

    def do_erase(self, words: _Words) -> list[str]:
        return self.answer(self.world.apply(words.group, PackDeleted(words.plain[0])))

    def do_table(self, words: _Words) -> list[str]:
        return self.table_answer(self.world.apply(0, TableCreate(*words.plain, self.now_ms)))

    def do_open(self, words: _Words) -> list[str]:
        return self.table_answer(self.world.apply(0, TableOpen(_uid(words.plain[0]), self.now_ms)))

    def do_planned(self, words: _Words) -> list[str]:
        return self.table_answer(
            self.world.apply(0, TablePlanned(_uid(words.plain[0]), int(words.plain[1])))
        )

    def do_abandon(self, words: _Words) -> list[str]:
        return self.table_answer(
            self.world.apply(0, TableAbandon(_uid(words.plain[0]), int(words.plain[1])))
        )

    def do_commit(self, words: _Words) -> list[str]:
        """`commit TABLE JOB attempt=A [base=KEY] main=KEY rows=N`: the DLQ's keys are the table's
        with `-dlq`."""
        base, main = words.named.get("base", ""), words.named["main"]
        dlq = [key and key + "-dlq" for key in (base, main)]
        rows = words.number("rows", 0) or 0
        command = TableCommit(
            table=_uid(words.plain[0]),
            job=int(words.plain[1]),
            attempt=words.named["attempt"],
            base_main=base,
            base_dlq=dlq[0],
            main=main,
            dlq=dlq[1],
            rows=rows,
            dlq_rows=0,
            now_ms=self.now_ms,
        )
        return self.table_answer(self.world.apply(0, command))

    def do_claim(self, words: _Words) -> list[str]:
        """`claim TABLE JOB PREFIX committed=JOB [without=PREFIX] [max=N] [planned]`."""
        fresh = not words.flag("planned")
        command = ClaimRanges(
            table=_uid(words.plain[0]),
            job=int(words.plain[1]),
            committed=words.number("committed", 0) or 0,
            prefix=words.plain[2],
            without=[words.named["without"]] if "without" in words.named else [],
            bytes_max=words.number("max", 1 << 30) or 0,
            fresh=fresh,
            again=[
                (failure.stream, failure.uid, failure.record, failure.end)
                for failure in self.retried(_uid(words.plain[0]))
            ],
        )
        reply = self.world.apply(words.group, command)
        spans = []
        for found in reply.detail or ():
            last = found.slices[-1]
            spans.append(
                f"{found.name} "
                f"{max(found.first, found.slices[0].record)}..{found.end or last.record + last.records}"
            )
        return [Code(reply.code).name, *spans]

    def retried(self, table: int) -> list[Failure]:
        known = self.world.machines[0].meta.tables.get(table) if 0 in self.world.machines else None
        return [failure for failure in known.failures if failure.again] if known is not None else []

    def table_answer(self, reply: Reply) -> list[str]:
        table = reply.detail
        if table is None:
            return [Code(reply.code).name]
        state = "open" if table.open else "idle"
        pointer = f" main={table.main} dlq={table.dlq}" if table.main else ""
        planned = " planned" if table.planned else ""
        return [
            f"{Code(reply.code).name} {_show_uid(table.uid)} job={table.job} {state}{planned} "
            f"committed={table.committed} rows={table.rows}{pointer}"
        ]

    def do_read(self, words: _Words) -> list[str]:
        whole = words.flag("whole")
        record, byte = position_of(words.named.get("from", "start"))
        stream = self.stream(words.group, words.plain[0])
        found = self.world.read(
            stream, Want(record, byte, words.number("max", 1 << 20) or 0, whole)
        )
        if isinstance(found, ReadRefused):
            return [f"refused {Code(found.code).name} {found.record}_{found.byte}"]
        payload, begin, end = found
        shown = payload.decode() if len(payload) < 80 else f"({len(payload)} bytes)"
        plan = self.world.machines[words.group].plan_read(
            stream, record, byte, bytes_max=1 << 40, whole_records=whole
        )
        assert not isinstance(plan, ReadRefused)
        made_of = [
            "HotPiece" if isinstance(piece, HotPiece) else type(piece).__name__
            for piece in plan.pieces
        ]
        return [
            f"{begin[0]}_{begin[1]} .. {end[0]}_{end[1]} {shown!r}",
            f"then of {', '.join(made_of) or 'nothing'}",
        ]

    def do_show(self, words: _Words) -> list[str]:
        machine = self.world.machines[words.group]
        lines = [self.line_of(stream) for stream in machine.directory.streams.values()]
        lines += [
            f"message {message} to {group}: {command}"
            for message, (group, command) in machine.outbox.messages.items()
        ]
        lines += [f"holds {pack}: {held.slices}" for pack, held in machine.packs.held.items()]
        lines += [
            f"pack {key}: groups {pack.groups} condemned {pack.condemned_ms}"
            for key, pack in machine.packs.owned.items()
        ]
        return [
            *lines,
            f"hot bytes {machine.directory.hot_bytes}, needed places from {machine.directory.needed_positions()}",
        ]

    def line_of(self, stream: Stream) -> str:
        parts = [
            stream.name,
            f"uid={_show_uid(stream.uid)}",
            f"tail={stream.next_record}_{stream.next_byte}",
        ]
        parts += [
            word for word, true in (("closed", stream.closed), ("deleted", stream.deleted)) if true
        ]
        if stream.first_record:
            parts.append(f"first={stream.first_record}_{stream.first_byte}")
        if stream.extras is not None:
            parts.append(
                f"past={index.count(stream.extras.past)}{' detached' if stream.extras.detached else ''}"
            )
            if stream.extras.attributes is not None:
                parts.append(f"attributes={stream.extras.attributes.value.decode()}")
            parts += [
                f"mark {mark.record}{mark.origin and '@' + mark.origin}"
                f"{' superseded' if mark.dropped_ms else ''}"
                for mark in stream.extras.marks or ()
            ]
        parts.append(f"hot={len(stream.hot or ())} cold={index.count(stream.cold)}")
        for attempt, pin in (stream.pins or {}).items():
            parts.append(
                f"pin {attempt}@{pin.record}_{pin.byte}{'' if pin.confirmed else ' unconfirmed'}"
            )
        return " ".join(parts)
