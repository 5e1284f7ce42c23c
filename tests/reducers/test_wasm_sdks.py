"""The examples of the SDKs, built from source: all give the same state for the same records."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from missing import needed_module, needed_program
from node_js import environment, installed, node, npm
from worlds.rust_modules import TARGET, cargo

from polynya.reducers.reducer import Record
from polynya.reducers.wasm.faults import Fault
from polynya.reducers.wasm.limits import Budget
from polynya.reducers.wasm.module_reducer import ModuleReducer
from polynya.reducers.wasm.sandbox import Sandbox

needed_module("wasmtime")
pytestmark = pytest.mark.process

SDK = Path(__file__).parent.parent.parent / "sdk"
SECONDS = 300
BUILT = ("target", "build", "node_modules", "Cargo.lock", "package-lock.json")
ITEMS = ("book", "pen", 'a "quoted" one', "Zürich", "new\nline", "<&>")


def ran(
    command: Sequence[str | Path], folder: Path, variables: dict[str, str] | None = None
) -> str:
    """Return the output of a command that succeeds."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def copied(name: str, folder: Path) -> Path:
    """Return a copy of an SDK, in which a build may leave files."""
    workdir = folder / name
    shutil.copytree(SDK / name, workdir, ignore=shutil.ignore_patterns(*BUILT))
    return workdir


def rust_cart(folder: Path) -> bytes:
    workdir = copied("rust", folder)
    build = [cargo(), "build", "--offline", "--release", "--target", TARGET, "--example", "cart"]
    ran(build, workdir, {"CARGO_TARGET_DIR": str(workdir / "target")})
    return (workdir / "target" / TARGET / "release" / "examples" / "cart.wasm").read_bytes()


def assemblyscript_cart(folder: Path) -> bytes:
    workdir = copied("assemblyscript", folder)
    modules = installed(SDK / "assemblyscript", "assemblyscript") / "node_modules"
    compiler = modules / "assemblyscript" / "bin" / "asc.js"
    ran([node(), compiler, "examples/cart.ts", "--target", "release"], workdir, environment())
    return (workdir / "build" / "cart.wasm").read_bytes()


def go_cart(folder: Path) -> bytes:
    workdir = copied("go", folder)
    flags = ["-buildmode=c-shared", "-ldflags=-s -w", "-o", "cart.wasm", "./cart"]
    variables = {"GOOS": "wasip1", "GOARCH": "wasm", "GOFLAGS": "-mod=mod", "GOPROXY": "off"}
    ran([needed_program("go"), "build", *flags], workdir, variables)
    return (workdir / "cart.wasm").read_bytes()


def orders(count: int) -> list[Record]:
    """Return records of a cart; each third takes items out."""
    return [
        Record(number, number, number, None, json.dumps(order, ensure_ascii=number % 2 == 0).encode())
        for number in range(count)
        for order in ({"item": ITEMS[number % 5 + number % 2], "count": number % 3 * 2 - 1},)
    ]  # fmt: skip


def expected(records: Sequence[Record]) -> bytes:
    """Return the state of the carts, from the same rule in Python."""
    sums: Counter[str] = Counter()
    for each in records:
        order = json.loads(each.value or b"")
        sums[order["item"]] += order["count"]
    kept = {item: sums[item] for item in sorted(sums, key=str.encode) if sums[item]}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode()


def check(code: bytes, error: str) -> str:
    """Run a cart in whole and in parts, and with bad records. Return the digest of its state."""
    records = orders(2000)
    with Sandbox(code, Budget(fuel_per_mib=10**12)) as sandbox:
        reducer = ModuleReducer(sandbox)
        assert reducer.content_type == "application/json"
        reducer.restore(None)
        assert reducer.apply(records) == len(records)
        state = reducer.state()
        assert state == expected(records)
        reducer.restore(None)
        reducer.apply(records[:777])
        reducer.restore(reducer.state())
        reducer.apply(records[777:1000])
        reducer.apply(records[1000:])
        assert reducer.state() == state
        for bad in (b'{"item": 5}', b'{"count": 5}', b"[1]", b"", None):
            reducer.restore(None)
            with pytest.raises(Fault, match=f"TRAP: .*record 41: {error}"):
                reducer.apply([Record(41, 0, 0, None, bad)])
        reducer.restore(None)
        reducer.apply([Record(0, 0, 0, b"key", b'{"item": "x", "count": 5}')])
        assert reducer.state() == b'{"x":5}'
    return hashlib.sha256(state).hexdigest()


@pytest.fixture(scope="module")
def rust(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return rust_cart(tmp_path_factory.mktemp("rust"))


def test_the_carts_in_rust_and_assemblyscript_have_equal_states(
    rust: bytes, tmp_path: Path
) -> None:
    assert check(rust, "it has no ") == check(assemblyscript_cart(tmp_path), "it has no ")


@pytest.mark.long
def test_the_cart_in_go_has_the_same_state(tmp_path: Path) -> None:
    """The compilation alone takes 20 CPU seconds."""
    assert check(go_cart(tmp_path), "") == hashlib.sha256(expected(orders(2000))).hexdigest()


def test_the_cart_in_rust_has_a_value_for_each_item(rust: bytes) -> None:
    with Sandbox(rust) as sandbox:
        reducer = ModuleReducer(sandbox)
        reducer.restore(b'{"book":2}')
        assert (reducer.get(b"book"), reducer.get(b"pen")) == (b"2", None)
        with pytest.raises(Fault, match="this reducer has no migrate"):
            reducer.migrate(b"{}")
        with pytest.raises(Fault, match="restore: the state is no JSON object"):
            reducer.restore(b"[]")


def test_the_crate_passes_its_tests_and_can_be_packaged(tmp_path: Path) -> None:
    workdir = copied("rust", tmp_path)
    target = {"CARGO_TARGET_DIR": str(workdir / "target")}
    assert "test result: ok. 4 passed" in ran(
        [cargo(), "test", "--offline", "--lib"], workdir, target
    )
    listed = ran([cargo(), "package", "--offline", "--list", "--allow-dirty"], workdir, target)
    assert {"Cargo.toml", "LICENSE", "README.md", "examples/cart.rs", "src/lib.rs"} <= set(
        listed.split()
    )


def test_the_package_for_npm_has_the_sources(tmp_path: Path) -> None:
    workdir = copied("assemblyscript", tmp_path)
    command = [*npm(), "pack", "--dry-run", "--json", "--offline"]
    (packed,) = json.loads(ran(command, workdir, environment()))
    names = {file["path"] for file in packed["files"]}
    assert {"assembly/index.ts", "assembly/abi.ts", "examples/cart.ts", "LICENSE"} <= names
    assert not {name for name in names if name.startswith(("node_modules", "build"))}
