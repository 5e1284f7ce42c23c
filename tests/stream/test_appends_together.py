"""Appends to several streams at once against the same appends one by one: all or nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from worlds.stream import json_batch, kafka_batch

from polynya.base.levels import LEVEL
from polynya.stream.command_validation import fault_of
from polynya.stream.features.appends.commands import Append, AppendAll, AppendIf
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.machine import Machine
from polynya.stream.parts import Encoding, Producer
from polynya.stream.replies import Code, Reply

NAMES = ("a", "b", "c")
JSON = "application/json"

producers = st.none() | st.builds(
    Producer, st.sampled_from(["p", "q"]), st.integers(0, 1), st.integers(0, 3)
)
bodies = st.lists(st.integers(0, 9), max_size=2)


@st.composite
def parts(draw: st.DrawFn) -> list[Append | AppendIf]:
    found: list[Append | AppendIf] = []
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)):
        records = [b"%d" % number for number in draw(bodies)]
        batch = json_batch(*records) if records else None
        kind = JSON if draw(st.integers(0, 9)) else "text/plain"
        seq = draw(st.sampled_from([None, None, None, "b", "c"]))
        close = not draw(st.integers(0, 12))
        fields = (name, 9, kind, batch, draw(producers), seq, close)
        if batch is None and not close:
            found.append(AppendIf(name, 9, "", None, record=draw(st.integers(0, 3))))
        elif draw(st.booleans()):
            found.append(Append(*fields))
        else:
            found.append(AppendIf(*fields, record=draw(st.integers(0, 3))))
    return found


def singly(machine: Machine, commands: list[Append | AppendIf]) -> list[Reply]:
    """Apply those that append something."""
    return [
        machine.apply(each) if each.batch is not None or each.close else Reply(Code.OK)
        for each in commands
    ]


def begun() -> Machine:
    machine = Machine(1, 4)
    machine.counters.level = LEVEL
    for name in NAMES[:2]:
        machine.apply(Create(name, 1, JSON, Encoding.JSON))
    return machine


def state(machine: Machine) -> list[object]:
    """Return the streams as readers and writers see them."""
    return [
        (
            stream.name,
            stream.next_record,
            stream.next_byte,
            stream.closed,
            stream.stream_seq,
            stream.producers,
            stream.closed_by,
            [batch.payload for batch in stream.hot or ()],
        )
        for stream in machine.directory.streams.values()
    ]


@settings(max_examples=examples(300))
@given(st.lists(parts(), min_size=1, max_size=8))
def test_all_are_applied_as_one_by_one_or_none_is(steps: list[list[Append | AppendIf]]) -> None:
    """A twin applies one by one the steps of which none was refused."""
    machine, applied = begun(), list[list[Append | AppendIf]]()
    for commands in steps:
        command = AppendAll(commands)
        assert fault_of(command) == ""
        before = state(machine)
        reply = machine.apply(command)
        twin, trial = after(applied), after(applied)
        replies = singly(trial, commands)
        met = [
            trial_tail(twin, each) == each.record
            for each in commands
            if isinstance(each, AppendIf) and each.batch is None and not each.close
        ]
        codes = [each.code for each in replies]
        if reply.code == Code.OK:
            assert all(code in (Code.OK, Code.ALREADY_CLOSED) for code in codes) and all(met)
            applied.append(commands)
            assert [tuple(each) for each in reply.detail] == [
                (stream.uid, stream.next_record, stream.next_byte, stream.closed)
                for stream in (machine.directory.streams[each.name] for each in commands)
            ]
        else:
            assert state(machine) == before
            if reply.code == Code.DUPLICATE:
                judged = [
                    code
                    for code, each in zip(codes, commands, strict=True)
                    if each.producer is not None
                ]
                assert judged and set(judged) == {Code.DUPLICATE}
            else:
                assert reply.code == Code.NONE_APPENDED
                number = reply.detail[0]
                refused = Code(reply.detail[1][0])
                assert codes[number] == refused or (refused >= Code.NOT_FOUND and not all(met))
        assert state(machine) == state(after(applied))


def after(steps: list[list[Append | AppendIf]]) -> Machine:
    """Return a machine to which these steps were applied one by one."""
    machine = begun()
    for commands in steps:
        singly(machine, commands)
    return machine


def trial_tail(machine: Machine, command: AppendIf) -> int:
    stream = machine.directory.streams.get(command.name)
    return -2 if stream is None else stream.next_record


def test_a_stream_twice_and_a_kafka_batch_are_no_valid_command() -> None:
    one = Append("a", 1, JSON, json_batch(b"1"))
    assert "two appends to one stream" in fault_of(AppendAll([one, one]))
    assert "0 appends" in fault_of(AppendAll([]))
    kafka = Append("b", 1, "", kafka_batch(1))
    assert "Kafka batch" in fault_of(AppendAll([one, kafka]))


def test_a_repeat_is_known_after_one_of_the_streams_was_deleted() -> None:
    machine = begun()
    both = AppendAll(
        [
            Append("a", 2, JSON, json_batch(b"1"), Producer("p", 0, 0)),
            Append("b", 2, JSON, json_batch(b"2")),
        ]
    )
    assert machine.apply(both).code == Code.OK
    machine.apply(Delete("b", 3))
    again = machine.apply(both)
    assert (again.code, again.detail[1]) == (Code.DUPLICATE, [0, 0, 0, True])
