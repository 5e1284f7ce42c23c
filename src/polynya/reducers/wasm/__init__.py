"""Reducers that are WebAssembly modules, each in a sandbox process of its own.

A module is code of a user. It runs in a child process that has no token, socket or file
(`child.py`, `lockdown.py`, `system_calls.py`), and inside of it in `wasmtime`: one memory, no
threads, canonical NaNs, and limits of fuel, memory, time and stack (`engine.py`, `limits.py`). The
parent (`sandbox.py`) writes frames to the child's stdin and reads replies from its stdout
(`pipe.py`).

ABI 1 (`abi.py`, `instance.py`): a core module without imports. The exception is WASI preview 1,
which the runtime of some languages asks for; `wasi.py` answers with constants.

Invariants:

* The same records give the same state: nothing a module can ask depends on the machine or the time.
* Whatever a module does ends as a `Fault` with its kind and reason. The parent never fails with it.
* The parent trusts no byte of a reply: lengths are bounded, and a malformed reply is a fault.

`wasmtime` is imported by the child alone.
"""
