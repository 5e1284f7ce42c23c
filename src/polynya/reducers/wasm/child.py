"""The sandbox process: `python -m polynya.reducers.wasm.child DATA_BYTES`, requests on stdin,
replies on stdout. It ends with its parent."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from polynya.reducers.wasm import lockdown
from polynya.reducers.wasm.engine import engine, load
from polynya.reducers.wasm.faults import Fault
from polynya.reducers.wasm.instance import Instance
from polynya.reducers.wasm.limits import Budget
from polynya.reducers.wasm.pipe import (
    REPLY,
    REQUEST,
    FaultReport,
    Load,
    Loaded,
    Status,
    Verb,
    read_exactly,
    write_all,
)
from polynya.reducers.wasm.timer import CallTimer

if TYPE_CHECKING:
    from wasmtime import Engine, Module


class Child:
    """Answers the parent's requests: it loads one module, then runs one instance after another."""

    def __init__(self, engine: Engine, timer: CallTimer) -> None:
        self._engine, self._timer = engine, timer
        self._module: Module | None = None
        self._budget = Budget()
        self._instance: Instance | None = None

    def answer(self, verb: int, count: int, body: bytes) -> bytes:
        """Return the reply to a request."""
        begun, used = time.process_time(), self._fuel()
        status, result = Status.OK, b""
        if verb in (Verb.LOAD, Verb.BEGIN):
            self._instance, used = None, 0
        try:
            result = self._run(verb, count, body)
        except Fault as fault:
            status, result = (
                Status.FAULT,
                msgspec.msgpack.encode(FaultReport(fault.kind, fault.reason)),
            )
        except Exception as error:  # noqa: BLE001 (a defect of ours is the fault of this module alone)
            report = FaultReport("SANDBOX", f"{type(error).__name__}: {error}"[:500])
            status, result = Status.FAULT, msgspec.msgpack.encode(report)
        micros = int((time.process_time() - begun) * 1e6)
        return REPLY.pack(status, self._fuel() - used, micros, len(result)) + result

    def _fuel(self) -> int:
        return self._instance.fuel_used if self._instance else 0

    def _run(self, verb: int, count: int, body: bytes) -> bytes:
        match verb:
            case Verb.LOAD:
                return self._load(msgspec.msgpack.decode(body, type=Load))
            case Verb.BEGIN:
                self._instance = self._new()
            case Verb.RESTORE:
                self._current.restore(body)
            case Verb.MIGRATE:
                self._current.migrate(body)
            case Verb.APPLY:
                self._current.apply(body, count)
            case Verb.STATE:
                return self._current.state()
            case Verb.GET:
                return self._current.get(body)
            case Verb.LOG:
                return self._current.log
            case _:
                raise AssertionError(f"no such request: {verb}")
        return b""

    def _load(self, given: Load) -> bytes:
        lockdown.begin_compile(given.cpu_seconds)
        self._module = load(self._engine, given.module, given.compiled)
        lockdown.end_compile()
        self._budget = given.budget
        native = bytes(self._module.serialize()) if given.keep else b""
        self._instance = self._new()  # tables and memory are checked here
        return msgspec.msgpack.encode(Loaded(native, self._instance.content_type()))

    def _new(self) -> Instance:
        assert self._module is not None
        return Instance(self._engine, self._module, self._budget, self._timer)

    @property
    def _current(self) -> Instance:
        assert self._instance is not None
        return self._instance


def main() -> int:
    stdin, stdout = os.dup(0), os.dup(1)
    try:
        made = engine()
    except ImportError:
        write_all(stdout, REPLY.pack(Status.NOT_INSTALLED, 0, 0, 0))
        return 1
    timer = CallTimer(made.increment_epoch)
    timer.start()
    child = Child(made, timer)
    lockdown.lock_down(int(sys.argv[1]))
    try:
        while True:
            verb, count, length = REQUEST.unpack(read_exactly(stdin, REQUEST.size))
            write_all(stdout, child.answer(verb, count, read_exactly(stdin, length)))
    except (EOFError, BrokenPipeError):
        return 0  # the parent has closed the pipe


if __name__ == "__main__":
    sys.exit(main())
