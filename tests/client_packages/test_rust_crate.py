"""The Rust client: its own tests, against a node, and over the death of a node; and the crate as
cargo packs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from fault_proxy import Faults
from long_tests import long
from missing import missing
from package_cache import BUILD, ROOT, built, ran
from survivor import NUMBERS, Guarded, survive

CLIENT = ROOT / "clients" / "rust"
OLDEST = (1, 85)  # `rust-version` in Cargo.toml
PLAIN = ["--locked", "--no-default-features"]  # without TLS, whose library takes longest to compile
NODE_TESTS = 11

pytestmark = pytest.mark.process


def environment(**more: str) -> dict[str, str]:
    """Return the environment of cargo, with a target folder that keeps the builds of other
    crates."""
    return {**os.environ, "CARGO_TARGET_DIR": str(BUILD / "cargo-target"), **more}


@pytest.fixture(scope="module")
def toolchain() -> str:
    """Return the version of Rust; skip the tests where it is missing or too old."""
    if shutil.which("cargo") is None:
        missing("not installed: cargo")
    version = ran(["rustc", "--version"], CLIENT, environment())
    found = re.search(r"(\d+)\.(\d+)", version)
    assert found, version
    if (int(found[1]), int(found[2])) < OLDEST:
        missing(f"Rust {OLDEST[0]}.{OLDEST[1]} or newer, not {version}")
    return version


def build(folder: Path) -> None:
    """Compile the tests, and pack the crate."""
    source, env = folder / "source", environment()
    command = ["cargo", "test", *PLAIN, "--lib", "--test", "node", "--no-run"]
    output = ran([*command, "--message-format=json-render-diagnostics"], source, env)
    for line in output.splitlines():
        artifact = json.loads(line)
        if artifact.get("executable") and artifact["profile"]["test"]:
            shutil.copy(artifact["executable"], folder / artifact["target"]["name"])
    ran(["cargo", "package", "--locked", "--no-verify", "--allow-dirty"], source, env)
    shutil.copy(BUILD / "cargo-target" / "package" / "polynya-0.1.0.crate", folder)


@pytest.fixture(scope="module")
def crate(toolchain: str) -> Path:
    return built("rust", CLIENT, toolchain, build)


def run(binary: Path, env: Mapping[str, str]) -> str:
    """Run a test binary on one thread, for a machine that runs other tests too."""
    command = [str(binary), "--test-threads=1"]
    done = subprocess.run(
        command, env=dict(env), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_crate_has_its_sources_and_no_tests(crate: Path) -> None:
    names = subprocess.run(
        ["tar", "-tzf", str(crate / "polynya-0.1.0.crate")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    inside = {name.partition("/")[2] for name in names}
    assert {"Cargo.toml", "README.md", "src/lib.rs", "examples/follow.rs"} <= inside
    assert not [name for name in inside if name.startswith(("tests", "target"))]


@pytest.mark.parametrize(
    "faults", [Faults(), *long([Faults(cut=0.7, refuse=0.2, replay=0.5, delay=0.1)])]
)
def test_the_client_works_and_outlives_its_node(
    crate: Path, faults: Faults, tmp_path: Path
) -> None:
    run(crate / "polynya", environment())
    with Guarded(tmp_path / "data", faults).serving() as guarded:
        output = run(crate / "node", environment(**guarded.variables))
        assert f"{NODE_TESTS} passed; 0 failed; 1 ignored" in output
        count = NUMBERS if faults == Faults() else 5 * NUMBERS
        variables = guarded.variables | {"SERVER": guarded.proxy_url}
        env = environment(STREAM="survivors/numbers", COUNT=str(count), **variables)
        command = [str(crate / "node"), "--ignored", "--exact", "--nocapture", "survive"]
        survive(guarded, command, tmp_path, env)


@pytest.mark.long
def test_the_client_speaks_tls(crate: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Guarded(data, Faults(), "--tls-self").serving() as guarded:
        env = environment(ROOT=str(data / "tls" / "self.crt"), **guarded.variables)
        output = ran(["cargo", "test", "--locked", "--test", "node"], crate / "source", env)
    assert f"{NODE_TESTS} passed; 0 failed; 1 ignored" in output


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        "fmt --check",
        "clippy --locked --all-targets -- -D warnings",
        "clippy --locked --all-targets --no-default-features -- -D warnings",
        "test --locked --lib",
        "test --locked --doc",
        "doc --locked --no-deps",
        "package --locked --allow-dirty",
    ],
)
def test_cargo_finds_nothing_wrong(crate: Path, command: str) -> None:
    env = environment(RUSTDOCFLAGS="-D warnings")
    ran(["cargo", *command.split()], crate / "source", env)
