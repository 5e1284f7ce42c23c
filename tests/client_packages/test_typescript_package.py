"""The TypeScript client as npm packs it: alone, against a node, and over the death of a node."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from client_pages import check_module
from fault_proxy import Faults
from long_tests import long
from node_js import environment, node, npm
from package_cache import ROOT, built, ran
from survivor import NUMBERS, Guarded, survive

CLIENT = ROOT / "clients" / "typescript"
SUITES = {"unit": 21, "node": 11, "untrusted": 1}

pytestmark = pytest.mark.process


def build(folder: Path) -> None:
    """Compile and pack the client, and install the package into a project of its own."""
    env = environment()
    ran([*npm(), "ci", "--no-audit", "--no-fund", "--loglevel=error"], folder / "source", env)
    packed = json.loads(ran([*npm(), "pack", "--json", "--silent"], folder / "source", env))
    (folder / "packed.json").write_text(json.dumps(packed[0]))
    user = folder / "user"
    user.mkdir()
    (user / "package.json").write_text('{"private": true, "type": "module"}')
    archive = folder / "source" / packed[0]["filename"]
    ran([*npm(), "install", "--offline", "--no-audit", "--no-fund", str(archive)], user, env)
    for file in (folder / "source" / "test").iterdir():
        (user / file.name).write_bytes(file.read_bytes())


@pytest.fixture(scope="module")
def package() -> Path:
    return built("typescript", CLIENT, node(), build)


def test_the_package_has_the_compiled_client_its_types_and_nothing_to_install(
    package: Path,
) -> None:
    packed = json.loads((package / "packed.json").read_text())
    files = {file["path"] for file in packed["files"]}
    assert {"package.json", "README.md", "dist/index.js", "dist/index.d.ts"} <= files
    assert not [name for name in files if name.startswith(("test", "node_modules"))]
    installed = package / "user" / "node_modules"
    assert [each.name for each in installed.iterdir() if each.name[0] != "."] == ["@polynya"]


def suite(name: str, package: Path, **variables: str) -> None:
    """Run a file of tests of the client's own."""
    command = [node(), "--test", "--test-reporter=tap", f"{name}.test.mjs"]
    done = subprocess.run(
        command,
        cwd=package / "user",
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    summary = dict(re.findall(r"^# (tests|pass|skipped|todo) (\d+)$", done.stdout, re.MULTILINE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary == {
        "tests": f"{SUITES[name]}",
        "pass": f"{SUITES[name]}",
        "skipped": "0",
        "todo": "0",
    }


@pytest.mark.parametrize(
    "faults", [Faults(), *long([Faults(cut=0.7, refuse=0.2, replay=0.5, delay=0.1)])]
)
def test_the_client_works_and_outlives_its_node(
    package: Path, faults: Faults, tmp_path: Path
) -> None:
    suite("unit", package)
    with Guarded(tmp_path / "data", faults).serving() as guarded:
        suite("node", package, **guarded.variables)
        if faults == Faults():
            arguments = guarded.variables["SERVER"], guarded.variables["TOKEN"]
            check_module("typescript", package / "user", [node()], environment(), *arguments)
        count = NUMBERS if faults == Faults() else 5 * NUMBERS
        command = [node(), "survive.mjs", guarded.proxy_url, "survivors/numbers", str(count)]
        env = environment(TOKEN=guarded.variables["TOKEN"])
        survive(guarded, command, package / "user", env)


@pytest.mark.long
def test_the_client_speaks_tls(package: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Guarded(data, Faults(), "--tls-self").serving() as guarded:
        root = str(data / "tls" / "self.crt")
        suite("node", package, NODE_EXTRA_CA_CERTS=root, **guarded.variables)
        suite("untrusted", package, **guarded.variables)
