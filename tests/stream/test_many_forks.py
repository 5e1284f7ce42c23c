"""A stream with very many forks, created and released: constant cost each, and the same content
kept."""

from __future__ import annotations

from random import Random

import pytest
from google_crc32c import value

from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks import rules as forks
from polynya.stream.features.forks.commands import ConfirmPin, PinSource, Unpin
from polynya.stream.features.lifetimes import rules as lifetimes
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.packs.commands import PackWritten, PublishSlices
from polynya.stream.features.retention import trimming
from polynya.stream.features.retention.commands import Trim
from polynya.stream.machine import Machine
from polynya.stream.parts import Batch, ColdSlice
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots.encode import snapshot_of

NAME = "a/b"
covers = forks._covers


def append(number: int, data: bytes) -> Append:
    return Append(NAME, number, "text/plain", Batch(0, 1, data, value(data)))


@pytest.mark.parametrize("end", [Trim([(1 << 48 | 1, 3, -1)], 9), Delete(NAME, 9)])
def test_a_fork_that_goes_is_looked_at_with_no_other_that_needs_the_same(
    end: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(1, 4)
    machine.apply(Create(NAME, 1, "text/plain", 0))
    for number in range(5):
        machine.apply(append(2, b"%d" % number), number + 1)
    uid = machine.directory.streams[NAME].uid
    attempts = [f"{number:032x}" for number in range(50)]
    for attempt in attempts:
        assert machine.apply(PinSource(NAME, attempt, "t/u", 3)).code == Code.OK
    machine.apply(end)
    asked: list[object] = []
    for module, name in ((trimming, "_needed"), (lifetimes, "cut_to_pins"), (forks, "cut_to_pins")):
        whole = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *about, whole=whole: (asked.append(about), whole(*about))[1]
        )
    for attempt in attempts[:-1]:
        machine.apply(Unpin(uid, attempt, 10))
    assert not asked
    machine.apply(Unpin(uid, attempts[-1], 11))
    assert machine.directory.by_uid.get(uid) is None or (
        machine.directory.by_uid[uid].hot is not None
        and len(machine.directory.by_uid[uid].hot or ()) == 2
    )


class Twins:
    """Two machines: one scans all pins at each release, the other only when necessary."""

    def __init__(self) -> None:
        self.machine, self.other = Machine(1, 4), Machine(1, 4)

    def apply(self, command: Command, position: int = 0) -> Reply:
        forks._covers = covers
        reply = self.machine.apply(command, position)
        forks._covers = lambda other, pin: False
        assert self.other.apply(command, position) == reply
        assert snapshot_of(self.other) == snapshot_of(self.machine)
        return reply


@pytest.mark.parametrize("seed", range(40))
def test_what_is_kept_is_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_covers", covers)
    random, twins, attempts = Random(seed), Twins(), list[str]()
    twins.apply(Create(NAME, 1, "text/plain", 0))
    uid = twins.machine.directory.streams[NAME].uid
    for now_ms in range(2, 62):
        stream = twins.machine.directory.by_uid.get(uid)
        if stream is None:
            break
        kind = random.choices(
            ("append", "flush", "pin", "unpin", "trim", "delete"), (30, 15, 20, 25, 8, 2)
        )[0]
        if kind == "append":
            twins.apply(append(now_ms, b"x" * random.randint(1, 20)), now_ms << 4)
        elif kind == "flush" and stream.hot:
            hot, pack = stream.hot[: random.randint(1, len(stream.hot))], f"pack {now_ms}"
            length = sum(len(batch.payload) for batch in hot)
            twins.apply(PackWritten(pack, [1], now_ms))
            twins.apply(
                PublishSlices(
                    pack,
                    1,
                    1,
                    [
                        (
                            uid,
                            ColdSlice(
                                hot[0].record, hot[0].byte, len(hot), length, pack, 0, 10, 1, 5
                            ),
                        )
                    ],
                    now_ms,
                )
            )
        elif kind == "pin":
            record = random.choice((-1, random.randint(0, stream.next_record)))
            pin = PinSource(
                NAME,
                f"{now_ms:032x}",
                "t/u",
                now_ms,
                record,
                min(record, 0),
                sub_offset=random.choice((0, 0, 3)),
            )
            if twins.apply(pin).code == Code.OK:
                attempts.append(pin.attempt)
                twins.apply(ConfirmPin(uid, pin.attempt))
        elif kind == "unpin" and attempts:
            twins.apply(Unpin(uid, attempts.pop(random.randrange(len(attempts))), now_ms))
        elif kind == "trim":
            twins.apply(Trim([(uid, random.randint(0, stream.next_record), -1)], now_ms))
        elif kind == "delete":
            twins.apply(Delete(NAME, now_ms))
    for attempt in attempts:
        twins.apply(Unpin(uid, attempt, 99))
