"""`polynya reduce test`: a module over the lines of a file, twice."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from missing import needed_module
from worlds.wasm_modules import COUNTING, compiled, module

from polynya.cli.reducers.trial import records_of
from polynya.cli.reducers.trial import test_command as command
from polynya.cli.terminal.exits import Misused
from polynya.reducers.reducer import Record

needed_module("wasmtime")
started = pytest.mark.process

ADDS = """(i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 1)))
  (i32.div_u (local.get 1) (i32.const 33))"""  # records of one byte each
MEMORY = '(memory (export "memory") 9)'
HAS_IT = "i64.const 0x800000004"


def invoke(tmp_path: Path, code: bytes, text: bytes, *options: str) -> Result:
    (tmp_path / "reducer.wasm").write_bytes(code)
    (tmp_path / "records.ndjson").write_bytes(text)
    arguments = [*options, str(tmp_path / "reducer.wasm"), str(tmp_path / "records.ndjson")]
    return CliRunner().invoke(command, arguments)


@started
def test_it_tells_the_state_and_that_a_repeat_is_equal(tmp_path: Path) -> None:
    state = (3000).to_bytes(4, "little")
    result = invoke(tmp_path, compiled(COUNTING), b"1\n\n2\r\n3" + b"\n4" * 2997)
    assert result.exit_code == 0
    assert result.stdout_bytes == state + b"\n"
    report = dict(line.split(maxsplit=1) for line in result.stderr.splitlines())
    assert report["records"] == "3,000"
    assert report["digest"] == f"sha256:{hashlib.sha256(state).hexdigest()}"
    assert report["repeated"] == "equal"
    report = json.loads(invoke(tmp_path, compiled(COUNTING), b"1\n2", "--json").stdout)
    assert (report["records"], report["state_bytes"], report["repeated"]) == (2, 4, "equal")


@started
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (module(apply=ADDS, state=HAS_IT, memory=MEMORY), "batches of 997 records gave"),
        (
            module(
                apply="""(i32.store (i32.const 8)
                  (i32.add (i32.load (i32.const 8)) (i32.div_u (local.get 1) (i32.const 33))))
                  (i32.div_u (local.get 1) (i32.const 33))""",
                state=HAS_IT,
                memory=MEMORY,
            ),
            "after restoring its own state at record 1000",
        ),
    ],
)
def test_it_tells_which_run_differs(tmp_path: Path, code: bytes, reason: str) -> None:
    result = invoke(tmp_path, code, b"1\n" * 2000)
    assert result.exit_code == 1
    assert reason in result.stderr.replace("\n", " ")


@started
@pytest.mark.parametrize(
    ("code", "options", "reason"),
    [
        (b"(module)", [], "MODULE: this is not a WebAssembly module"),
        (module(apply="i32.const 3"), [], "ABI: apply returned 3 for 1 records"),
        (compiled(COUNTING), ["--fuel", "5"], "FUEL: the call used its fuel of 5"),
        (compiled(COUNTING), ["--memory", str(1 << 20)], "MEMORY: memory minimum size of 20 pages"),
    ],
)
def test_a_fault_is_told(tmp_path: Path, code: bytes, options: list[str], reason: str) -> None:
    result = invoke(tmp_path, code, b"1", *options)
    assert result.exit_code == 1
    assert f"reducer.wasm: {reason}" in result.stderr


def test_each_line_is_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b'{"a": 1}\r\n\n2')
    assert list(records_of(tmp_path / "file")) == [
        Record(0, 0, 0, None, b'{"a": 1}'),
        Record(1, 1, 1, None, b"2"),
    ]
    monkeypatch.setattr("polynya.cli.reducers.trial.APPEND_BYTES_MAX", 7)
    with pytest.raises(Misused, match="line 1 of file has more than 7 bytes"):
        list(records_of(tmp_path / "file"))
