"""Small modules of ABI 1 in WebAssembly text, good ones and attacks."""

from __future__ import annotations

from missing import needed_module

from polynya.reducers.reducer import Record

TEN = [Record(number, 0, 0, None, b"0123456789") for number in range(10)]
COUNT_TEN = "i32.const 10"
MEMORY = '(memory (export "memory") 1)'

# Adds the lengths of the values at address 8: its state is these 4 bytes. The input is placed at 1024.
COUNTING = """
  (module
    (memory (export "memory") 20)
    (func (export "polynya_abi") (result i32) i32.const 1)
    (func (export "alloc") (param i32) (result i32) i32.const 1024)
    (func (export "restore") (param i32 i32)
      (i32.store (i32.const 8) (i32.load (local.get 0))))
    (func $length (param $at i32) (result i32)
      (select (i32.const 0) (i32.load (local.get $at))
        (i32.eq (i32.load (local.get $at)) (i32.const -1))))
    (func (export "apply") (param $at i32) (param $frame i32) (result i32)
      (local $records i32) (local $end i32) (local $value i32)
      (local.set $end (i32.add (local.get $at) (local.get $frame)))
      (loop $next
        (if (i32.lt_u (local.get $at) (local.get $end)) (then
          (local.set $records (i32.add (local.get $records) (i32.const 1)))
          (local.set $value (call $length (i32.add (local.get $at) (i32.const 28))))
          (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (local.get $value)))
          (local.set $at (i32.add (i32.add (local.get $at) (i32.const 32))
            (i32.add (local.get $value) (call $length (i32.add (local.get $at) (i32.const 24))))))
          (br $next))))
      local.get $records)
    (func (export "state") (result i64) (i64.const 0x800000004))
    (func (export "get") (param i32 i32) (result i64)
      (i64.or (i64.shl (i64.extend_i32_u (local.get 0)) (i64.const 32))
        (i64.extend_i32_u (local.get 1)))))
"""


def compiled(text: str) -> bytes:
    """Return the binary form of a module's text."""
    return bytes(needed_module("wasmtime").wat2wasm(text))


def module(
    *,
    apply: str = COUNT_TEN,
    state: str = "i64.const 0",
    alloc: str = "i32.const 64",
    memory: str = MEMORY,
    abi: int = 1,
    imports: str = "",
    more: str = "",
) -> bytes:
    """Return a module whose functions have these bodies. It takes batches of ten records."""
    return compiled(f"""
      (module {imports} {memory} {more}
        (func (export "polynya_abi") (result i32) i32.const {abi})
        (func (export "alloc") (param i32) (result i32) {alloc})
        (func (export "restore") (param i32 i32))
        (func (export "apply") (param i32 i32) (result i32) {apply})
        (func (export "state") (result i64) {state}))""")


def nested_blocks(length: int) -> bytes:
    """Return a module of about `length` bytes whose one function is blocks within blocks."""
    depth = (length - 64) // 3
    body = b"\x00" + b"\x02\x40" * depth + b"\x0b" * depth + b"\x0b"
    code = _number(len(body)) + body
    return (
        b"\0asm\1\0\0\0"
        b"\x01\x04\x01\x60\0\0"  # a type: () -> ()
        b"\x03\x02\x01\0"  # a function of it
        b"\x0a" + _number(len(code) + 1) + b"\x01" + code
    )


def _number(value: int) -> bytes:
    """Return an unsigned LEB128."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
