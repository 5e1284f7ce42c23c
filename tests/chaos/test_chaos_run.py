"""A run of the chaos on real processes: every fault once, or why it was left out; and whatever ends
a run, nothing of it stays.

Root is not asked of CI: where it is there, namespaces, power cuts and full disks are used.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from commit_seed import commit_seed
from missing import left_out
from polling import wait_until
from product import alive

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from chaos.faults import FAULTS  # noqa: E402  (not a part of the package)
from chaos.run import Outcome  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.timeout(2700)]
ACTS = 0.09  # share of the episodes in which nodes join or leave, or groups move; 3 of 38
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    report = tmp_path_factory.mktemp("chaos") / "outcome.json"
    command = [
        sys.executable,
        "-m",
        "chaos",
        f"--seed={commit_seed(7)}",
        "--once",
        f"--report={report}",
    ]
    command += ["--s3", "--lose-all", "--pace=0.4", f"--acts={ACTS}"]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    print(done.stdout)
    assert report.exists(), done.stdout + done.stderr
    return msgspec.json.decode(report.read_bytes(), type=Outcome)


def test_nothing_acknowledged_is_lost_out_of_order_or_twice(outcome: Outcome) -> None:
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
    assert len(outcome.episodes) >= 15, "that is few: most faults need nothing special"
    assert outcome.acknowledged > 300
    assert outcome.reads > 50
    assert outcome.tailed > 300
    assert outcome.recovered > 300, "all disks were lost in the end"


def test_nodes_came_or_groups_moved_beside_faults(outcome: Outcome) -> None:
    assert (
        sum(bool(episode.act) for episode in outcome.episodes)
        == int(len(outcome.episodes) * ACTS)
        > 0
    )


def test_the_store_failed(outcome: Outcome) -> None:
    assert sum(count for what, count in outcome.store.items() if what != "answered") > 10
    assert outcome.store["answered"] > 50


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS])
def test_a_fault_was_met(outcome: Outcome, name: str) -> None:
    if name in outcome.skipped:
        left_out(outcome.skipped[name])
    assert [episode.trouble for episode in outcome.episodes if episode.fault == name] == [""]


@pytest.fixture
def under_way(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """A run whose nodes serve; its name, and its folder."""
    command = [sys.executable, "-m", "chaos", "--seed=1", "--seconds=300", "--only=pause a node"]
    run = subprocess.Popen(
        command,
        cwd=ROOT,
        env=ENVIRONMENT | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert run.stdout is not None
        for line in run.stdout:
            if "are well" in line:
                break
        (folder,) = tmp_path.glob("polynya-chaos-*")
        yield run, f"pch{run.pid}", folder
    finally:
        run.kill()
        run.communicate(timeout=60)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_nothing_of_it_stays(
    under_way: tuple[subprocess.Popen[str], str, Path], end: signal.Signals
) -> None:
    run, name, folder = under_way
    nodes = [process for process in psutil.process_iter() if belongs(process, folder)]
    assert len(nodes) >= 3
    run.send_signal(end)
    wait_until(lambda: not any(map(alive, nodes)), what="the nodes to be gone")
    wait_until(
        lambda: str(folder) not in Path("/proc/mounts").read_text(),
        what="the disks to be unmounted",
    )
    spaces = Path("/run/netns")
    wait_until(
        lambda: not list(spaces.glob(f"{name}n*") if spaces.is_dir() else ()),
        what="the namespaces to be gone",
    )
    wait_until(lambda: not Path(f"/sys/class/net/{name}").exists(), what="the bridge to be gone")


def belongs(process: psutil.Process, folder: Path) -> bool:
    try:
        return (
            any(str(folder) in word for word in process.cmdline()) and "serve" in process.cmdline()
        )
    except psutil.Error:
        return False
