"""The sandbox process: it has nothing, it ends with its parent, and every failure is a fault."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from missing import left_out, needed_module
from polling import wait_until
from worlds.wasm_modules import COUNTING, TEN, compiled, module, nested_blocks

from polynya.base.limits import MIB, MODULE_BYTES_MAX
from polynya.reducers.reducer import Record
from polynya.reducers.wasm.compile_cache import CompileCache
from polynya.reducers.wasm.faults import Fault, NotInstalled
from polynya.reducers.wasm.limits import Budget
from polynya.reducers.wasm.module_reducer import ModuleReducer, batches
from polynya.reducers.wasm.pipe import Verb
from polynya.reducers.wasm.records import encode
from polynya.reducers.wasm.sandbox import Sandbox, _ended

needed_module("wasmtime")
pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent.parent
SPIN = "(loop br 0) unreachable"


@pytest.fixture
def counting() -> Iterator[Sandbox]:
    with Sandbox(compiled(COUNTING)) as sandbox:
        yield sandbox


def pid_of(sandbox: Sandbox) -> int:
    assert sandbox._process is not None
    return sandbox._process.pid


def test_a_module_is_a_reducer(counting: Sandbox) -> None:
    reducer = ModuleReducer(counting)
    assert reducer.content_type == "application/octet-stream"
    reducer.restore(None)
    assert reducer.apply(TEN) == 10
    assert reducer.state() == (100).to_bytes(4, "little")
    reducer.restore(reducer.state())
    assert reducer.apply([Record(10, 0, 0, b"key", b"abc")]) == 1
    assert reducer.state() == (103).to_bytes(4, "little")
    assert reducer.get(b"key") == b"key"
    assert reducer.get(b"") is None
    with pytest.raises(Fault, match="ABI: the module does not export migrate"):
        reducer.migrate(b"")
    assert counting.fuel_used > 100 and counting.log() == ""
    reducer.close()


def test_large_batches_are_cut(counting: Sandbox) -> None:
    records = [Record(number, 0, 0, None, bytes(400_000)) for number in range(7)]
    assert [len(each) for each in batches(records)] == [2, 2, 2, 1]
    assert list(batches([])) == []
    reducer = ModuleReducer(counting)
    reducer.restore(None)
    assert reducer.apply(records) == 7
    assert reducer.state() == (2_800_000).to_bytes(4, "little")


def test_a_call_that_spins_is_ended_and_the_sandbox_goes_on() -> None:
    code = module(apply=SPIN)
    with Sandbox(code, Budget(fuel_per_mib=10**15, cpu_seconds=0.1)) as sandbox:
        for _ in range(2):
            sandbox.begin()
            pid = pid_of(sandbox)
            with pytest.raises(Fault, match=r"TIME: .* more than 0.1 CPU seconds"):
                sandbox.apply(encode(TEN), 10)
            assert pid_of(sandbox) == pid


def test_four_mib_of_nested_blocks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks compile in 4 seconds and 1.2 GiB, which a lower limit does not allow."""
    monkeypatch.setattr("polynya.reducers.wasm.sandbox.COMPILE_DATA_BYTES", 256 * MIB)
    code = nested_blocks(MODULE_BYTES_MAX)
    assert len(code) > MODULE_BYTES_MAX - 100
    sandbox = Sandbox(code)
    with pytest.raises(Fault, match="compiling takes more than 256 MiB") as raised:
        sandbox.begin()
    assert raised.value.kind == "COMPILE"
    assert sandbox._process is None


COMPILING = """
from polynya.reducers.wasm import lockdown
lockdown.begin_compile(1)
lockdown.end_compile()
lockdown.begin_compile(1)
while True: pass
"""


def test_the_kernel_ends_a_compilation_that_takes_too_long() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILING],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    fault = _ended(Verb.LOAD, done.returncode, "it exited")
    assert (fault.kind, fault.reason) == ("COMPILE", "compiling takes more than 60 CPU seconds")


def test_a_process_that_is_killed_is_a_fault_and_started_again(counting: Sandbox) -> None:
    counting.begin()
    os.kill(pid_of(counting), signal.SIGKILL)
    with pytest.raises(Fault, match="SANDBOX: the sandbox process failed in STATE"):
        counting.state()
    with pytest.raises(Fault, match="has no instance"):
        counting.state()
    counting.begin()
    counting.apply(encode(TEN), 10)
    assert counting.state() == (100).to_bytes(4, "little")


def test_the_process_has_no_token_file_or_socket(
    counting: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYNYA_TOKEN", "secret")
    counting.begin()
    proc = Path(f"/proc/{pid_of(counting)}")
    if not proc.exists():
        return  # another system; the limits are the same
    assert b"secret" not in (proc / "environ").read_bytes()
    open_files = [os.readlink(each) for each in (proc / "fd").iterdir()]
    assert {each.split(":")[0] for each in open_files} == {"pipe", "/dev/null"}
    limits = (proc / "limits").read_text()
    assert any(
        line.split()[:5] == ["Max", "open", "files", "0", "0"] for line in limits.splitlines()
    )
    assert (proc / "cwd").readlink() == Path("/")


LOCKED = """
import ctypes, os, socket, subprocess
from polynya.reducers.wasm import lockdown, system_calls

restricted = []
whole = system_calls.restrict
system_calls.restrict = lambda: restricted.append(whole())
parent = os.getppid()
lockdown.lock_down(1 << 30)
tried = {
    "open": lambda: open("/etc/hostname"),
    "socket": socket.socket,
    "list": lambda: os.listdir("/"),
    "run": lambda: subprocess.run(["true"]),
    "fork": os.fork,
    "signal": lambda: os.kill(parent, 0),
    "limits": lambda: __import__("resource").prlimit(parent, 7),
}
worked = []
for name, call in tried.items():
    try:
        call()
        worked.append(name)
    except OSError:
        pass
print("filter" if restricted == [True] else "limits alone", *worked)
"""


def test_code_that_breaks_out_reaches_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOCKED],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=True,
    )
    kind, *worked = done.stdout.split()
    if kind != "filter":
        left_out("this kernel has no filter of system calls")
    assert worked == []


PARENT = """
import sys
from polynya.reducers.wasm.limits import Budget
from polynya.reducers.wasm.sandbox import Sandbox, _ended
sandbox = Sandbox(bytes.fromhex(sys.argv[1]), Budget(fuel_per_mib=10**15, cpu_seconds=1000.0))
sandbox.begin()
print(sandbox._process.pid, flush=True)
sandbox.apply(b"", 10)
"""


def test_it_ends_with_its_parent_also_in_a_call() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, module(apply=SPIN).hex()],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert parent.stdout is not None
    try:
        child = int(parent.stdout.readline())
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    wait_until(lambda: not _runs(child), what="the end of the sandbox process")


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"\x07" + bytes(20), "malformed"),
        (bytes(17) + b"\xff" * 4, "malformed"),
        (b"\x01" + bytes(16) + b"\x01\0\0\0?", "malformed"),
        (b"", "exited"),
    ],
)
def test_a_malformed_reply_is_a_fault(
    reply: bytes, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "liar.py").write_text(
        f"import os, sys\nos.read(0, 1)\nos.write(1, {reply!r})\nsys.exit(0)\n"
    )
    monkeypatch.setattr("polynya.reducers.wasm.sandbox.MODULE", "liar")
    monkeypatch.setattr("polynya.__file__", str(tmp_path / "polynya" / "__init__.py"))
    with (
        Sandbox(compiled(COUNTING)) as sandbox,
        pytest.raises(Fault, match=f"SANDBOX: .*{message}"),
    ):
        sandbox.begin()


def test_without_wasmtime_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "child.py").write_text(
        "import runpy, sys\nsys.modules['wasmtime'] = None\n"
        f"sys.path.insert(0, {str(ROOT / 'src')!r})\n"
        "runpy.run_module('polynya.reducers.wasm.child', run_name='__main__')\n"
    )
    monkeypatch.setattr("polynya.reducers.wasm.sandbox.MODULE", "child")
    monkeypatch.setattr("polynya.__file__", str(tmp_path / "polynya" / "__init__.py"))
    sandbox = Sandbox(compiled(COUNTING))
    with pytest.raises(NotInstalled, match=r"install the extra 'polynya\[wasm\]'"):
        sandbox.begin()
    assert sandbox._process is None


def test_native_code_is_kept_in_a_private_folder(tmp_path: Path) -> None:
    code, cache = compiled(COUNTING), CompileCache(tmp_path / "compiled")
    with Sandbox(code, cache=cache) as sandbox:
        sandbox.begin()
    (kept,) = (tmp_path / "compiled").iterdir()
    assert kept.name.startswith(hashlib.sha256(code).hexdigest())
    assert (tmp_path / "compiled").stat().st_mode & 0o777 == 0o700
    assert kept.stat().st_mode & 0o077 == 0
    with Sandbox(code, Budget(memory_bytes=4 * MIB), cache) as sandbox:
        sandbox.begin()
        sandbox.apply(encode(TEN), 10)
        assert sandbox.state() == (100).to_bytes(4, "little")
