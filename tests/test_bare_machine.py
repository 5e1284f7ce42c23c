"""The tests on a machine without `iptables`, `ip`, FUSE, Chromium, Node, Java and uv: each part is
skipped with its reason, or comes from PyPI.

A slice of the suite runs as root and as an ordinary user, with one CPU and with eight. It is what
depends on the machine, and takes few seconds.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from missing import left_out
from worlds.bare_machine import LACKING, ROOT, BareMachine, Unavailable, poor_path

sys.path.insert(0, str(ROOT))

from chaos.run import Outcome  # noqa: E402  (not a part of the package)

SLICE = (
    "tests/test_missing.py",
    "tests/chaos/test_chaos_plan.py",
    "tests/chaos/test_chaos_shim.py",
    "tests/chaos/test_chaos_disks.py",
    "tests/chaos/test_chaos_network.py",
    "tests/console/test_console_units.py",
    "tests/lakehouse/test_lake_java.py",
    "tests/config/test_config.py",
    "tests/system/test_ports.py",
    "tests/system/test_scheduling.py",
    "tests/cli/test_doctor.py",
    "tests/access/test_access_tokens.py",
)
OF_ROOT = (
    "tests/wal/test_journal_power_cut.py"  # skipped for others, and root has it in the whole suite
)
BROWSER = "tests/clients/test_event_source.py"
NO_REGISTRY = {"npm_config_offline": "true"}
SKIPS_OF_ROOT = r"not installed: .*\biptables\b|cannot be mounted|no IPv6 loopback"
SKIPS_OF_A_USER = r"needs? root|no IPv6 loopback"


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    # pytest's own folders are closed to other users
    folder = Path(tempfile.mkdtemp(prefix="polynya-bare-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(
    params=[
        pytest.param((False, 1), id="user-1-cpu"),
        pytest.param((True, 8), id="root-8-cpus", marks=pytest.mark.long),
        pytest.param((True, 1), id="root-1-cpu", marks=pytest.mark.long),
        pytest.param((False, 8), id="user-8-cpus", marks=pytest.mark.long),
    ]
)
def machine(request: pytest.FixtureRequest, shared: Path) -> BareMachine:
    as_root, cpus = request.param
    return bare_machine(shared, as_root=as_root, cpus=cpus)


@pytest.fixture
def users_machine(shared: Path) -> BareMachine:
    return bare_machine(shared, as_root=False, cpus=1)


def bare_machine(shared: Path, *, as_root: bool, cpus: int) -> BareMachine:
    try:
        return BareMachine(shared, as_root=as_root, cpus=cpus)
    except Unavailable as why:
        left_out(str(why))


def skips(printed: str) -> list[str]:
    """Return the reasons that pytest printed."""
    return re.findall(r"^SKIPPED \[\d+\] \S+ (.*)$", printed, re.MULTILINE)


@pytest.mark.process
def test_a_slice_of_the_suite_passes_and_says_what_is_left_out(machine: BareMachine) -> None:
    expected = SKIPS_OF_ROOT if machine.as_root else SKIPS_OF_A_USER
    with_ci = machine.cpus == 8
    more, variables = ([], {"CI": "true"}) if with_ci else ([BROWSER], NO_REGISTRY)
    more += [] if machine.as_root else [OF_ROOT]
    ran = machine.python(
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        "--durations=10",
        *SLICE,
        *more,
        **variables,
    )
    print(ran.stdout)
    assert ran.returncode == 0, ran.stderr
    found = skips(ran.stdout)
    browser = [why for why in found if why.startswith("no browser: ")]
    assert bool(browser) is not with_ci, (
        "without a package registry there is no Chromium, and that is said"
    )
    others = [why for why in found if why not in browser]
    assert others and not [why for why in others if not re.search(expected, why)], ran.stdout
    assert "console" not in "".join(others) and "java" not in "".join(others), (
        "Node and Java come from PyPI"
    )


@pytest.mark.process
@pytest.mark.long
def test_chaos_inflicts_once_what_this_machine_supports(users_machine: BareMachine) -> None:
    report = users_machine.folder / "tmp" / "report.json"
    some = "--only=kill a core,silence,a full disk,flickers"
    ran = users_machine.python(
        "-m",
        "chaos",
        "--seed=1",
        "--once",
        "--pace=0.2",
        some,
        f"--report={report}",
        PYTHONPATH=str(ROOT / "src"),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    outcome = msgspec.json.decode(report.read_bytes(), type=Outcome)
    assert {"silence", "a full disk"} == outcome.skipped.keys()
    assert sorted(episode.fault for episode in outcome.episodes) == [
        "kill a core",
        "the wall's clock flickers",
    ]
    assert "skipped: silence: network namespaces need root" in ran.stdout


@pytest.mark.process
def test_make_sets_up_without_uv(users_machine: BareMachine) -> None:
    ran = users_machine.run("make", "-n", "setup", f"PYTHON={sys.executable}", "VENV=/nowhere/venv")
    assert ran.returncode == 0, ran.stderr
    assert " -m venv /nowhere/venv" in ran.stdout and " -m pip install" in ran.stdout


def test_a_bare_machine_lacks_those_programs_and_no_others(shared: Path) -> None:
    poor = str(poor_path(shared / "bin"))
    assert not [program for program in LACKING if shutil.which(program, path=poor)]
    assert shutil.which("sh", path=poor) and shutil.which("env", path=poor)
