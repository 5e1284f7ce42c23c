"""Two trees are compared by the traces of their seeds, and a renamed word is no difference."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sim import checksums
from sim.compare import differences, renamed_words, renaming
from sim.run import KINDS
from sim.traces import OTHERS, write

ROOT = Path(__file__).parents[1]


def folder(path: Path, **traces: str) -> Path:
    (path / "moves").mkdir(parents=True)
    for name, text in traces.items():
        (path / "moves" / f"{name}.txt").write_text(text)
    return path


def test_equal_traces_have_no_differences(tmp_path: Path) -> None:
    before, after = folder(tmp_path / "a", one="1 x\n2 y"), folder(tmp_path / "b", one="1 x\n2 y")
    assert not list(differences(before, after, renaming({})))


def test_the_first_event_that_differs_is_told(tmp_path: Path) -> None:
    before, after = (
        folder(tmp_path / "a", one="1 x\n2 y\n3 z"),
        folder(tmp_path / "b", one="1 x\n2 w\n3 v"),
    )
    assert list(differences(before, after, renaming({}))) == ["moves/one.txt:2: '2 y' became '2 w'"]
    shorter = folder(tmp_path / "c", one="1 x\n2 y")
    assert list(differences(before, shorter, renaming({}))) == [
        "moves/one.txt:3: '3 z' became '(the end)'"
    ]


def test_a_trace_that_is_missing_on_one_side_is_a_difference(tmp_path: Path) -> None:
    before, after = (
        folder(tmp_path / "a", one="1", two="2"),
        folder(tmp_path / "b", two="2", three="3"),
    )
    assert list(differences(before, after, renaming({}))) == [
        f"moves/one.txt: is not in {after}",
        f"moves/three.txt: is not in {before}",
    ]
    assert list(differences(tmp_path / "gone", tmp_path / "gone too", renaming({}))), (
        "nothing compared is no success"
    )


def test_renamed_words_are_replaced_whole_and_in_one_pass(tmp_path: Path) -> None:
    words = renamed_words("# of the rooms\n\nhere -> there\nthere -> here\nCode.OLD -> Code.NEW\n")
    assert (
        renaming(words)("1 here there herein Code.OLD Code.OLDER")
        == "1 there here herein Code.NEW Code.OLDER"
    )
    before, after = folder(tmp_path / "a", one="1 here"), folder(tmp_path / "b", one="1 there")
    assert not list(differences(before, after, renaming(words)))


@pytest.mark.parametrize("text", ["one two", "a -> b\na -> c", " -> b"])
def test_a_map_with_a_line_that_is_no_pair_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected 'old -> new'"):
        renamed_words(text)


@pytest.mark.process
def test_two_runs_of_the_same_tree_write_equal_traces(tmp_path: Path) -> None:
    for name in ("before", "after"):
        assert not write(tmp_path / name, ROOT, {"swarm": 1, "planned": 1}, mishaps=1)
    command = [
        sys.executable,
        "-m",
        "sim.compare",
        str(tmp_path / "before"),
        str(tmp_path / "after"),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}

    def compared() -> tuple[int, str]:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.strip()

    assert compared() == (0, "equal: 2 traces")
    changed = tmp_path / "after" / "planned" / "seed-0.txt"
    changed.write_text(changed.read_text() + "\n9.9 one more")
    code, output = compared()
    assert (
        code == 1 and output.startswith("planned/seed-0.txt:") and output.endswith("'9.9 one more'")
    )


OUTPUT = """seed 3: 29 s, 28 appends acknowledged in 4.3 s; 59b1088a0f51f75f
  1001.5 node 1 dies
seed 4 FAILED; again: make sim SEED=4 ARGS=--kafka
"""


def test_a_record_has_the_checksum_of_each_seed_and_those_that_failed() -> None:
    found = checksums.checksums_in(OUTPUT)
    assert found == {3: "59b1088a0f51f75f", 4: "failed"}
    record = checksums.Record(5, {("kafka", seed): each for seed, each in found.items()})
    assert checksums.read(checksums.written(record)) == record
    with pytest.raises(ValueError, match="expected 'WORLD SEED CHECKSUM'"):
        checksums.read("kafka 3")
    other = checksums.Record(5, {("kafka", 3): "0" * 16})
    assert checksums.differences(record, other) == [
        f"kafka seed 3: 59b1088a0f51f75f became {'0' * 16}",
        "kafka seed 4: failed became nothing",
    ]
    assert not checksums.differences(record, record)


def test_neighbours_of_a_world_share_a_process() -> None:
    seeds = [*(("plain", seed) for seed in range(12)), ("kafka", 12), ("kafka", 14)]
    assert list(checksums.jobs_of(seeds)) == [
        ("plain", 0, 10),
        ("plain", 10, 2),
        ("kafka", 12, 1),
        ("kafka", 14, 1),
    ]


@pytest.mark.process
def test_a_record_is_compared_with_another_run(tmp_path: Path) -> None:
    record = checksums.record_of([("plain", 0), ("plain", 1)], ROOT, 1)
    (tmp_path / "sums").write_text(checksums.written(record))
    command = [sys.executable, "-m", "sim.checksums", str(tmp_path / "sums"), "--check"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "equal: 2 checksums"), done.stderr


def test_every_world_that_a_shell_can_choose_is_traced() -> None:
    assert set(OTHERS) == set(KINDS)
