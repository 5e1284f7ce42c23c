"""The tutorial of docs/reducers-wasm.md runs as it stands: a shopping cart by a module in Rust."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from missing import needed_module
from product import polynya, running_node
from worlds.rust_modules import TARGET, cargo

from polynya.reducers.wasm import abi, wasi
from polynya.reducers.wasm.faults import KINDS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "reducers-wasm.md").read_text("utf-8")
ABI = (ROOT / "docs" / "formats" / "modules.md").read_text("utf-8")
TUTORIAL = PAGE[PAGE.index("## A shopping cart in Rust") : PAGE.index("## AssemblyScript")]


def block(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TUTORIAL, re.DOTALL)


@pytest.mark.process
def test_a_shopping_cart_in_rust(tmp_path: Path) -> None:
    needed_module("wasmtime")
    (manifest,), (source,), (expected,) = block("toml"), block("rust"), block("json")
    build, use = block("sh")
    crate = tmp_path / "cart"
    (crate / "src").mkdir(parents=True)
    assert "../sdk/rust" in manifest
    (crate / "Cargo.toml").write_text(manifest.replace("../sdk/rust", str(ROOT / "sdk" / "rust")))
    (crate / "src" / "lib.rs").write_text(source)
    assert f"rustup target add {TARGET}" in build
    command = [cargo(), "build", "--offline", "--release", "--target", TARGET]
    variables = {**os.environ, "CARGO_TARGET_DIR": str(crate / "target")}
    done = subprocess.run(
        command, cwd=crate, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    module = crate / "target" / TARGET / "release" / "cart.wasm"
    records = crate / "orders.ndjson"
    records.write_text('{"item": "book", "count": 2}\n')
    tried = polynya("reduce", "test", str(module), str(records))
    assert (tried.code, json.loads(tried.out)) == (0, {"book": 2})
    with running_node(tmp_path / "data", "--cores", "1") as node:
        for line in use.splitlines():
            words = [str(module) if word == "cart.wasm" else word for word in shlex.split(line)]
            ran = polynya(*words[1:], server=node.url)
            assert ran.code == 0, ran.err
    assert json.loads(ran.out) == json.loads(expected)


def test_the_page_of_the_abi_has_every_export_and_import() -> None:
    exports = set(re.findall(r"^\| `(\w+)` \| (?:memory|`)", ABI, re.MULTILINE))
    assert exports == {"memory", *abi.REQUIRED, *abi.OPTIONAL}
    named = ABI.replace("`args_…`", "args_get args_sizes_get").replace(
        "`environ_…`", "environ_get environ_sizes_get"
    )
    assert all(re.search(rf"\b{name}\b", named) for name in wasi._KNOWN)


def test_the_page_names_every_kind_of_fault() -> None:
    listed = PAGE[PAGE.index("| kind |") :]
    assert set(re.findall(r"`([A-Z]+)`", listed)) == KINDS
