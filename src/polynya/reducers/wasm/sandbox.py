"""The parent's side of a sandbox: it starts the process, sends requests, and makes a Fault of
everything that goes wrong in there."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeVar

import msgspec

import polynya
from polynya.base.limits import MIB, MODULE_BYTES_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.reducers.reducer import ReducerFault
from polynya.reducers.wasm.compile_cache import CompileCache
from polynya.reducers.wasm.faults import KINDS, Fault, Kind, NotInstalled
from polynya.reducers.wasm.limits import (
    BATCH_BYTES_MAX,
    CALL_WALL_SECONDS,
    COMPILE_CPU_SECONDS,
    COMPILE_DATA_BYTES,
    COMPILE_WALL_SECONDS,
    COMPILED_BYTES_MAX,
    LOG_BYTES_MAX,
    Budget,
)
from polynya.reducers.wasm.pipe import REPLY, REQUEST, FaultReport, Load, Loaded, Status, Verb

MODULE = "polynya.reducers.wasm.child"
KEPT = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD")  # inherited environment
_TOLD_BYTES_MAX = 64 * 1024
MALFORMED = "the sandbox process sent a malformed reply"
OCTETS = "application/octet-stream"
_Decoded = TypeVar("_Decoded", Loaded, FaultReport)


class Sandbox:
    """A process that runs one module, for one stream at a time. A process that ended is started
    again by the next `begin`.

    Its methods block and raise Fault; one thread at a time may call them."""

    def __init__(
        self, module: bytes, budget: Budget | None = None, cache: CompileCache | None = None
    ) -> None:
        self.fuel_used = 0  # of all calls
        self.cpu_micros = 0
        self._module, self._cache = module, cache or CompileCache(None)
        self._budget = budget or Budget()
        self._process: subprocess.Popen[bytes] | None = None
        self.content_type = OCTETS

    def load(self) -> None:
        """Start the process and compile the module. Raises Fault if it is not a reducer."""
        if self._process is not None:
            return
        if len(self._module) > MODULE_BYTES_MAX:
            raise Fault(
                "MODULE",
                f"the module is longer than the {MODULE_BYTES_MAX} bytes that are allowed",
            )
        self._process = _spawn(COMPILE_DATA_BYTES + self._budget.memory_bytes)
        native = self._cache.get(self._module)
        keep = self._cache.keeps and not native
        load = Load(self._module, native, keep, COMPILE_CPU_SECONDS, self._budget)
        try:
            made = _decode(self._ask(Verb.LOAD, msgspec.msgpack.encode(load)), Loaded)
        except ReducerFault:
            self.close()
            raise
        self.content_type = made.content_type
        if keep:
            self._cache.put(self._module, made.native)

    def begin(self) -> None:
        """Make a new instance, without records."""
        self.load()
        self._ask(Verb.BEGIN)

    def restore(self, state: bytes) -> None:
        self._ask(Verb.RESTORE, state)

    def migrate(self, state: bytes) -> None:
        """Begin at a state of an older revision of the module."""
        self._ask(Verb.MIGRATE, state)

    def apply(self, frame: bytes, count: int) -> None:
        """Apply a frame of `count` records (`records.encode`)."""
        if len(frame) > BATCH_BYTES_MAX:
            raise ValueError(f"a frame of {len(frame)} bytes; at most {BATCH_BYTES_MAX}")
        self._ask(Verb.APPLY, frame, count)

    def state(self) -> bytes:
        return self._ask(Verb.STATE)

    def get(self, key: bytes) -> bytes:
        return self._ask(Verb.GET, key)

    def log(self) -> str:
        """Return what the instance has written to its output, at most 4 KiB."""
        return self._ask(Verb.LOG).decode(errors="replace")

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()
        process.wait()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, verb: Verb, body: bytes = b"", count: int = 0) -> bytes:
        """Send a request and return the body of its reply. Raises Fault."""
        if self._process is None:
            raise Fault("SANDBOX", "the sandbox has no instance: begin one")
        seconds = COMPILE_WALL_SECONDS if verb is Verb.LOAD else CALL_WALL_SECONDS
        try:
            reply = _Exchange(self._process, seconds).run(
                REQUEST.pack(verb, count, len(body)) + body, self._bound(verb)
            )
        except _Ended as ended:
            status = self._end()
            raise _ended(verb, status, str(ended)) from None
        status, fuel, micros, result = reply
        if status == Status.NOT_INSTALLED:
            self.close()
            raise NotInstalled
        self.fuel_used += fuel
        self.cpu_micros += micros
        if status == Status.OK:
            return result
        raise self._fault_of(result)

    def _bound(self, verb: Verb) -> int:
        """Return how long the reply may be."""
        if verb is Verb.LOAD:
            return COMPILED_BYTES_MAX
        longest = self._budget.state_bytes if verb in (Verb.STATE, Verb.GET) else LOG_BYTES_MAX
        return max(longest, _TOLD_BYTES_MAX)

    def _fault_of(self, body: bytes) -> Fault:
        report = _decode(body, FaultReport)
        if report.kind not in KINDS:
            self.close()
            return Fault("SANDBOX", MALFORMED)
        kind: Kind = report.kind  # type: ignore[assignment]
        return Fault(kind, report.reason)

    def _end(self) -> int:
        """End the process and return its exit status."""
        assert self._process is not None
        process = self._process
        try:
            process.wait(1)
        except subprocess.TimeoutExpired:
            pass
        self.close()
        return process.returncode


class _Ended(Exception):
    """The process has exited, does not answer, or sent what is no reply."""


class _Exchange:
    """One request and its reply over the pipes, with a deadline."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._in, self._out = process.stdin.fileno(), process.stdout.fileno()
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def run(self, request: bytes, bound: int) -> tuple[int, int, int, bytes]:
        try:
            self._send(request)
            status, fuel, micros, length = REPLY.unpack(self._receive(REPLY.size))
            if status not in set(Status) or length > bound:
                raise _Ended(MALFORMED)
            return status, fuel, micros, self._receive(length)
        except OSError as error:
            raise _Ended(f"its pipe broke: {error.strerror}") from None

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._wait(self._in, select.POLLOUT)
            try:
                view = view[os.write(self._in, view) :]
            except BlockingIOError:
                continue

    def _receive(self, length: int) -> bytes:
        parts: list[bytes] = []
        while length:
            self._wait(self._out, select.POLLIN)
            part = os.read(self._out, length)
            if not part:
                raise _Ended("it exited")
            parts.append(part)
            length -= len(part)
        return b"".join(parts)

    def _wait(self, descriptor: int, event: int) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        remaining = self._deadline - time.monotonic()
        if remaining <= 0 or not poll.poll(remaining * 1000):
            raise _Ended(f"it has not answered for {self._seconds:g} seconds")


def _decode(body: bytes, kind: type[_Decoded]) -> _Decoded:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except UNREADABLE:
        raise Fault("SANDBOX", MALFORMED) from None


def _ended(verb: Verb, status: int, how: str) -> Fault:
    """Return the fault of a process that ended in a call."""
    if verb is Verb.LOAD and status == -signal.SIGXCPU:
        return Fault("COMPILE", f"compiling takes more than {COMPILE_CPU_SECONDS} CPU seconds")
    if verb is Verb.LOAD and status == -signal.SIGABRT:
        return Fault("COMPILE", f"compiling takes more than {COMPILE_DATA_BYTES // MIB} MiB")
    return Fault("SANDBOX", f"the sandbox process failed in {verb.name}: {how} (status {status})")


def _spawn(data_bytes: int) -> subprocess.Popen[bytes]:
    source = str(Path(polynya.__file__).parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, str(data_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env={name: os.environ[name] for name in KEPT if name in os.environ}
        | {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process
