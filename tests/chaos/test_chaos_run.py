"""A run of the chaos on real processes: faults of every kind, or why they were left out; and
whatever ends a run, nothing of it stays. Every fault once is in `make long`.

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
from long_tests import long
from missing import left_out
from polling import wait_until
from product import alive

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from chaos.faults import FAULTS  # noqa: E402  (not a part of the package)
from chaos.run import Outcome  # noqa: E402

pytestmark = [pytest.mark.process, pytest.mark.timeout(2700)]
ACTS = 0.09  # share of the episodes in which nodes join or leave, or groups move; 3 of 38
ACTS_OF_SOME = 0.34  # of 3 or 4 episodes: a machine may lack what a fault needs
SEED = 7  # `make hunt` draws others
# `test_e2e_cluster.py` lets a node stand still under writers
SOME = ("kill all", "cut a node off", "fsync fails", "power cut of all")
STORE = ("--s3", "--lose-all")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}


def run_of(folder: Path, *more: str) -> Outcome:
    report = folder / "outcome.json"
    command = [sys.executable, "-m", "chaos", f"--seed={SEED}", "--once", *more]
    command += [f"--report={report}", "--pace=0.4"]
    done = subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    print(done.stdout)
    assert report.exists(), done.stdout + done.stderr
    return msgspec.json.decode(report.read_bytes(), type=Outcome)


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    only = f"--only={','.join(SOME)}"
    more = (f"--acts={ACTS_OF_SOME}", "--no-kafka", "--pause=0.1")
    return run_of(tmp_path_factory.mktemp("chaos"), only, *STORE, *more)


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_of(tmp_path_factory.mktemp("chaos"), *STORE, f"--acts={ACTS}")


def check_that_nothing_is_lost(outcome: Outcome, *, episodes: int) -> None:
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
    assert len(outcome.episodes) >= episodes, "that is few: most faults need nothing special"
    assert outcome.acknowledged > 300
    assert outcome.reads > 50
    assert outcome.tailed > 300
    assert outcome.rollovers > 10
    assert outcome.recovered > 300, "all disks were lost in the end"


def check_acts_and_store(outcome: Outcome, acts: float) -> None:
    acted = sum(bool(episode.act) for episode in outcome.episodes)
    assert acted == int(len(outcome.episodes) * acts) > 0
    assert sum(count for what, count in outcome.store.items() if what != "answered") > 10
    assert outcome.store["answered"] > 50


def check_that_it_was_met(outcome: Outcome, name: str) -> None:
    if name in outcome.skipped:
        left_out(outcome.skipped[name])
    assert [episode.trouble for episode in outcome.episodes if episode.fault == name] == [""]


def test_nothing_acknowledged_is_lost_out_of_order_or_twice(some: Outcome) -> None:
    check_that_nothing_is_lost(some, episodes=3)


def test_nodes_came_or_groups_moved_and_the_store_failed(some: Outcome) -> None:
    check_acts_and_store(some, ACTS_OF_SOME)


@pytest.mark.parametrize("name", SOME)
def test_a_fault_was_met(some: Outcome, name: str) -> None:
    check_that_it_was_met(some, name)


@pytest.mark.long
def test_kafka_clients_and_their_group_lose_nothing_when_leaders_die(tmp_path: Path) -> None:
    """Run one fault; the other chaos runs, but for the one above, have these clients too."""
    outcome = run_of(tmp_path, "--only=kill a majority", "--pause=0.1")
    if "Kafka's clients" in outcome.skipped:
        left_out(outcome.skipped["Kafka's clients"])
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
    assert outcome.kafka_records > 50
    assert outcome.commits > 5
    assert outcome.compacted > 0


@pytest.mark.long
def test_every_fault_loses_nothing(every: Outcome) -> None:
    check_that_nothing_is_lost(every, episodes=15)
    assert every.kafka_records > 300
    assert every.commits > 30
    check_acts_and_store(every, ACTS)


@pytest.mark.parametrize("name", long(fault.name for fault in FAULTS))
def test_every_fault_was_met(every: Outcome, name: str) -> None:
    check_that_it_was_met(every, name)


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


@pytest.mark.parametrize("end", [signal.SIGKILL, *long([signal.SIGINT])])
def test_nothing_of_it_stays(
    under_way: tuple[subprocess.Popen[str], str, Path], end: signal.Signals
) -> None:
    run, name, folder = under_way
    nodes = [process for process in psutil.process_iter() if belongs(process, folder)]
    assert len(nodes) >= 3
    assert not Path(f"/sys/class/net/{name}").exists(), "the bridge is seen by the run alone"
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


def belongs(process: psutil.Process, folder: Path) -> bool:
    try:
        return (
            any(str(folder) in word for word in process.cmdline()) and "serve" in process.cmdline()
        )
    except psutil.Error:
        return False
