"""Modules of ABI 1 in this process: results, refusals, and attacks that end as faults."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from missing import needed_module
from worlds.wasm_modules import COUNT_TEN, COUNTING, TEN, compiled, module

from polynya.base.limits import MIB, MODULE_BYTES_MAX
from polynya.reducers.reducer import Record
from polynya.reducers.wasm.compile_cache import FILES_MAX, CompileCache
from polynya.reducers.wasm.engine import engine, load
from polynya.reducers.wasm.faults import Fault
from polynya.reducers.wasm.instance import Instance
from polynya.reducers.wasm.limits import LOG_BYTES_MAX, Budget
from polynya.reducers.wasm.records import encode, split
from polynya.reducers.wasm.sandbox import Sandbox
from polynya.reducers.wasm.timer import CallTimer

needed_module("wasmtime")


def instance(code: bytes, budget: Budget | None = None) -> Instance:
    """Return an instance whose time is not limited."""
    made = engine()
    timer = CallTimer(made.increment_epoch)
    return Instance(made, load(made, code, b""), budget or Budget(), timer)


def run(code: bytes, budget: Budget | None = None) -> bytes:
    """Return the state after ten records."""
    made = instance(code, budget)
    made.content_type()
    made.apply(encode(TEN), len(TEN))
    return made.state()


def fault_of(code: bytes, budget: Budget | None = None) -> Fault:
    with pytest.raises(Fault) as raised:
        run(code, budget)
    return raised.value


def test_a_module_counts_and_goes_on_from_its_state() -> None:
    code = compiled(COUNTING)
    whole = instance(code)
    whole.apply(encode(TEN), 10)
    assert whole.state() == (100).to_bytes(4, "little")
    begun = instance(code)
    begun.restore(whole.state())
    begun.apply(encode([Record(10, 5, 6, b"key", b"123")]), 1)
    assert begun.state() == (103).to_bytes(4, "little")
    assert begun.get(b"a key") == b"a key"


def test_fuel_is_the_same_in_each_run() -> None:
    def used() -> int:
        made = instance(compiled(COUNTING))
        made.apply(encode(TEN), 10)
        return made.fuel_used

    assert used() == used() > 100


def test_a_frame_splits_into_its_records() -> None:
    records = [
        Record(0, 1, 2, None, b"value"),
        Record(1, 3, 4, b"", b""),
        Record(2, 5, -6, b"key", None),
    ]
    assert list(split(encode(records))) == [(each.record_ms, encode([each])) for each in records]
    assert encode(records[:1]) == (
        bytes(8) + b"\1" + bytes(7) + b"\2" + bytes(7) + b"\xff\xff\xff\xff" + b"\5\0\0\0value"
    )


BIG = f"""(if (i32.eq (memory.grow (i32.const 600)) (i32.const -1)) (then unreachable))
  (if (i32.eq (memory.grow (i32.const 600)) (i32.const -1)) (then unreachable)) {COUNT_TEN}"""


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({"apply": "(loop br 0) unreachable"}, "FUEL", "used its fuel of 1000000"),
        ({"apply": "unreachable"}, "TRAP", "unreachable"),
        ({"apply": "(i32.load (i32.const -4))"}, "TRAP", "^TRAP: out of bounds memory access"),
        ({"apply": "unreachable"}, "TRAP", "in the batch that begins at record 0$"),
        ({"apply": "(i32.div_u (i32.const 1) (i32.const 0))"}, "TRAP", "divide by zero"),
        ({"apply": "i32.const 9"}, "ABI", "apply returned 9 for 10 records"),
        ({"apply": "i32.const -1"}, "ABI", "apply returned 4294967295 for 10 records"),
        ({"apply": BIG}, "MEMORY", r"37.6 of 64.0 MiB of memory"),
        ({"apply": "call $deep i32.const 10", "more": "(func $deep call $deep)"}, "STACK", "1048576"),
        ({"alloc": "i32.const -8"}, "ABI", "alloc returned 4294967288 for 420 bytes"),
        ({"alloc": "i32.const 65500"}, "ABI", "outside the memory of 65536 bytes"),
        ({"alloc": "i32.const 0"}, "MEMORY", "alloc returned 0 for 420 bytes"),
        ({"state": "i64.const 0xffff000000000010"}, "ABI", "state returned 4294901760 for 16"),
        ({"state": "i64.const -1"}, "OUTPUT", "4294967295 bytes; at most 33554432"),
        ({"state": "i64.const 0x2000001"}, "OUTPUT", "33554433 bytes"),
        ({"abi": 2}, "ABI", "has ABI 2; this release runs ABI 1"),
        ({"more": "(func $spin (loop br 0)) (start $spin)"}, "FUEL", "fuel"),
        ({"memory": '(memory (export "memory") 2000)'}, "MEMORY", "2000 pages"),
        ({"more": "(table 1000000 funcref)"}, "MODULE", "1000000 elements.* at most 10000"),
        ({"more": "(table 1 funcref)" * 5}, "MODULE", "table count"),
        ({"more": "(memory 1)"}, "MODULE", "multiple memories"),
        ({"memory": '(memory (export "memory") i64 1)'}, "MODULE", "memory64"),
        ({"memory": '(memory (export "memory") 1 2 shared)'}, "MODULE", "threads"),
        ({"memory": "(memory 1)"}, "MODULE", "exports no memory"),
        ({"imports": '(import "env" "now" (func))'}, "MODULE", "imports env.now"),
        ({"imports": '(import "wasi_snapshot_preview1" "memory" (memory 1))', "memory": ""}, "MODULE", "exports no memory"),
        ({"more": '(func (export "get") (param i32) (result i32) i32.const 0)'}, "MODULE", r"get\(i32\) -> i32, not get\(i32, i32\) -> i64"),
        ({"more": '(func (export "polynya_content_type") (result i64) i64.const 5)'}, "ABI", "polynya_content_type returned"),
    ],
)  # fmt: skip
def test_each_violation_is_a_fault(changes: dict[str, str], kind: str, reason: str) -> None:
    code = module(**changes)  # type: ignore[arg-type]
    with pytest.raises(Fault, match=reason) as raised:
        run(code, Budget(fuel_per_mib=10**6))
    assert raised.value.kind == kind


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (b"", "does not begin with"),
        (b"(module)", "does not begin with"),
        (b"\0asm\x0d\0\1\0", "a component cannot be a reducer"),
        (b"\0asm\1\0\0\0" + bytes(MODULE_BYTES_MAX), "at most 4194304"),
        (b"\0asm\1\0\0\0\xff", "failed to parse"),
        (b"\0asm\1\0\0\0", "exports no memory"),
    ],
)
def test_bytes_that_are_no_module_are_refused(code: bytes, reason: str) -> None:
    with pytest.raises(Fault, match=reason) as raised:
        load(engine(), code, b"")
    assert raised.value.kind == "MODULE"


def test_a_missing_export_is_named_with_its_signature() -> None:
    code = compiled('(module (memory (export "memory") 1) (func (export "state")))')
    with pytest.raises(Fault, match=r"no function polynya_abi\(\) -> i32"):
        load(engine(), code, b"")


def test_a_module_tells_why_it_stopped() -> None:
    error_function = """(data (i32.const 8) "line 3: no item")
      (func (export "polynya_error") (result i64) i64.const 0x80000000f)"""
    fault = fault_of(module(apply="unreachable", more=error_function))
    assert (fault.kind, fault.reason) == (
        "TRAP",
        "line 3: no item (0.1 of 64.0 MiB of memory), in the batch that begins at record 0",
    )


@pytest.mark.parametrize("body", ["unreachable", "(loop br 0) unreachable", "i64.const -1"])
def test_a_bad_reason_is_passed_over(body: str) -> None:
    more = f'(func (export "polynya_error") (result i64) {body})'
    fault = fault_of(module(apply="unreachable", more=more), Budget(fuel_per_mib=10**6))
    assert fault.kind == "TRAP" and "unreachable" in fault.reason


def test_nan_has_the_same_bits_whatever_made_it() -> None:
    """Pass a NaN with a payload through an addition: its bits are the canonical ones."""
    nan = """(f32.store (i32.const 8)
      (f32.add (f32.reinterpret_i32 (i32.const 0x7fa12345)) (f32.const 1))) i32.const 10"""
    assert run(module(apply=nan, state="i64.const 0x800000004")) == b"\0\0\xc0\x7f"


def wasi(name: str, kind: str) -> str:
    return f'(import "wasi_snapshot_preview1" "{name}" (func ${name} {kind}))'


def test_the_clock_of_wasi_stands_at_the_time_of_each_record() -> None:
    """The state is the sum of the record times in nanoseconds; batches make no difference."""
    code = module(
        imports=wasi("clock_time_get", "(param i32 i64 i32) (result i32)"),
        apply="""(drop (call $clock_time_get (i32.const 0) (i64.const 1) (i32.const 16)))
          (i64.store (i32.const 8) (i64.add (i64.load (i32.const 8)) (i64.load (i32.const 16))))
          i32.const 1""",
        state="i64.const 0x800000008",
    )
    records = [Record(number, 0, 100 + number, None, b"") for number in range(5)]
    whole, pieces = instance(code), instance(code)
    whole.apply(encode(records), 5)
    pieces.apply(encode(records[:2]), 2)
    pieces.apply(encode(records[2:]), 3)
    assert whole.state() == pieces.state() == (510 * 10**6).to_bytes(8, "little")


def test_a_sleep_of_wasi_is_over_at_once() -> None:
    """The subscription at 64 has the number 7; its event goes to 8."""
    code = module(
        imports=wasi("poll_oneoff", "(param i32 i32 i32 i32) (result i32)"),
        apply=f"""(i64.store (i32.const 64) (i64.const 7))
          (drop (call $poll_oneoff (i32.const 64) (i32.const 8) (i32.const 1) (i32.const 40)))
          {COUNT_TEN}""",
        state="i64.const 0x800000024",
    )
    assert run(code) == b"\7" + bytes(31) + b"\1\0\0\0"


def test_random_bytes_of_wasi_are_zeros() -> None:
    code = module(
        imports=wasi("random_get", "(param i32 i32) (result i32)"),
        memory=MEMORY_OF_ONES,
        apply=f"(drop (call $random_get (i32.const 8) (i32.const 3))) {COUNT_TEN}",
        state="i64.const 0x800000004",
    )
    assert run(code) == b"\0\0\0\1"


MEMORY_OF_ONES = '(memory (export "memory") 1) (data (i32.const 8) "\\01\\01\\01\\01")'
WRITING = wasi("fd_write", "(param i32 i32 i32 i32) (result i32)")
# a vector at 8 names "hello " at 32
HELLO = '(memory (export "memory") 1) (data (i32.const 8) "\\20\\00\\00\\00\\06\\00\\00\\00") (data (i32.const 32) "hello ")'


def test_the_output_of_a_run_is_a_short_log() -> None:
    write = "(drop (call $fd_write (i32.const 1) (i32.const 8) (i32.const 1) (i32.const 24)))"
    made = instance(module(imports=WRITING, memory=HELLO, apply=write + COUNT_TEN))
    for _ in range(LOG_BYTES_MAX // 6 + 10):
        made.apply(encode(TEN), 10)
    assert made.log == (b"hello " * 1000)[:LOG_BYTES_MAX]
    fault = fault_of(module(imports=WRITING, memory=HELLO, apply=f"{write} unreachable"))
    assert "; its output: hello" in fault.reason


@pytest.mark.parametrize(
    ("imports", "call", "errno"),
    [
        (WRITING, "$fd_write (i32.const 3) (i32.const 8) (i32.const 1) (i32.const 24)", 8),
        (WRITING, "$fd_write (i32.const 1) (i32.const 8) (i32.const -1) (i32.const 24)", 28),
        (WRITING, "$fd_write (i32.const 1) (i32.const -8) (i32.const 1) (i32.const 24)", 21),
        (wasi("fd_prestat_get", "(param i32 i32) (result i32)"), "$fd_prestat_get (i32.const 3) (i32.const 8)", 8),
        (wasi("poll_oneoff", "(param i32 i32 i32 i32) (result i32)"), "$poll_oneoff (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 8)", 28),
        (wasi("random_get", "(param i32 i32) (result i32)"), "$random_get (i32.const -1) (i32.const -1)", 21),
        (wasi("sock_open", "(result i32)"), "$sock_open", 8),
    ],
)  # fmt: skip
def test_what_wasi_does_not_have_is_an_error_number(imports: str, call: str, errno: int) -> None:
    code = module(
        imports=imports,
        apply=f"(i32.store (i32.const 8) (call {call})) {COUNT_TEN}",
        state="i64.const 0x800000004",
    )
    assert run(code) == errno.to_bytes(4, "little")


def test_a_function_may_be_imported_twice() -> None:
    twice = '(import "wasi_snapshot_preview1" "random_get" (func (param i32 i32) (result i32)))'
    assert run(module(imports=twice * 2)) == b""
    other = '(import "wasi_snapshot_preview1" "random_get" (func (param i32)))'
    fault = fault_of(module(imports=twice + other))
    assert (fault.kind, "random_get" in fault.reason) == ("MODULE", True)


def test_exit_is_a_trap() -> None:
    leave = wasi("proc_exit", "(param i32)")
    fault = fault_of(module(imports=leave, apply=f"(call $proc_exit (i32.const 3)) {COUNT_TEN}"))
    assert (fault.kind, fault.reason) == (
        "TRAP",
        "the module called proc_exit(3), in the batch that begins at record 0",
    )


def test_memory_is_the_budgets() -> None:
    code = module(memory='(memory (export "memory") 20)')
    assert run(code, Budget(memory_bytes=2 * MIB)) == b""
    assert fault_of(code, Budget(memory_bytes=MIB)).kind == "MEMORY"


def test_native_code_of_another_version_is_compiled_again() -> None:
    made = engine()
    code = compiled(COUNTING)
    native = bytes(load(made, code, b"").serialize())
    assert load(made, b"", native).exports  # not compiled
    assert load(made, code, b"older native code").exports


def test_a_call_is_interrupted_once_and_the_next_one_is_not() -> None:
    interrupts: list[int] = []
    timer = CallTimer(lambda: interrupts.append(1))
    timer.tick()
    with timer.limit(-1.0):
        timer.tick()
        timer.tick()
    timer.tick()
    with timer.limit(1000.0):
        timer.tick()
    assert interrupts == [1]


def test_a_module_that_is_too_long_starts_no_process() -> None:
    sandbox = Sandbox(b"\0asm\1\0\0\0" + bytes(MODULE_BYTES_MAX))
    with pytest.raises(Fault, match="longer than the 4194304"):
        sandbox.load()
    assert sandbox._process is None


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_module_has_a_state_or_a_fault(seed: int) -> None:
    """Bytes are changed at random: nothing but a Fault comes of it."""
    rng, faults = random.Random(seed), Counter[str]()
    whole = compiled(COUNTING)
    for _ in range(20):
        code = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            code[rng.randrange(8, len(code))] = rng.randrange(256)
        try:
            run(bytes(code), Budget(fuel_per_mib=10**5))
        except Fault as fault:
            faults[fault.kind] += 1
    assert faults["MODULE"] > 5
    assert faults["SANDBOX"] == 0


def test_the_folder_of_native_code_is_bounded(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path)
    for number in range(FILES_MAX + 5):
        cache.put(b"%d" % number, b"native")
    assert len(list(tmp_path.iterdir())) == FILES_MAX
    assert cache.get(b"%d" % (FILES_MAX + 4)) == b"native"
    assert cache.get(b"other") == b""
    nothing = CompileCache(tmp_path / "0" / "file")
    (tmp_path / "0").write_bytes(b"")
    nothing.put(b"", b"native")
    assert nothing.get(b"") == b""
