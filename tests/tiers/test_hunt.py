"""The search with seeds of the commit finds a failing seed and records it, and the gate runs
repaired ones."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from fuzz import run as fuzz_run
from sim.chaos import Episode
from sim.run import KINDS as EPISODES
from sim.swarm import SwarmEpisode
from tiers.found_seeds import FILE, FoundSeed, append_seed, read_seeds
from tiers.hunt import FUZZERS, KINDS, WORLDS, Hunt, turns
from tiers.planted import run_python

DEFECT = "log time is the node's own"
PLANTED = f"""
from sim.mutants import mutated
from sim.run import main
with mutated({DEFECT!r}):
    sys.exit(main())
"""
FIXED = [each for each in read_seeds(FILE.read_text()) if each.state == "fixed"]
IN_GATE = {"plain": Episode, "swarm": SwarmEpisode, **EPISODES}


def test_kinds_take_turns_and_no_seed_of_a_kind_comes_twice() -> None:
    kinds = {name: KINDS[name] for name in ("swarm", "mutant")}
    drawn = list(islice(turns(kinds, 100), 14))
    assert drawn[:7] == [*(("swarm", seed) for seed in range(100, 106)), ("mutant", 100)]
    assert drawn[7:8] == [("swarm", 106)] and drawn[13] == ("mutant", 101)


@pytest.mark.process
def test_a_seed_that_is_planted_to_fail_is_found_and_kept(tmp_path: Path) -> None:
    kinds = {
        "sound": lambda seed: ["-c", ""],
        "swarm": lambda seed: ["-c", PLANTED, f"--seed={seed}", "--no-shrink", "--mishaps=8"],
    }
    hunt = Hunt(kinds, 0, tmp_path / "found")
    hunt.run(seconds=100, lanes=1, failures=1)
    (found,) = read_seeds((tmp_path / "found").read_text())
    assert (found.kind, found.state) == ("swarm", "open")
    assert hunt.failed == [found]
    assert "1 failed" in hunt.summary()


@pytest.mark.process
def test_the_command_runs_seeds_until_the_time_is_over(tmp_path: Path) -> None:
    done = run_python(
        tmp_path, "-m", "tiers.hunt", "--seconds=0.1", "--only=plain", "--lanes=1", "--found=found"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "1 runs, 0 failed: plain 1"


@pytest.mark.process
def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    done = run_python(tmp_path, "-m", "tiers.hunt", "--only=swarm,nosuch")
    assert done.returncode == 2
    assert "expected some of swarm, plain" in done.stderr
    assert "got nosuch" in done.stderr


def test_a_seed_is_kept_once(tmp_path: Path) -> None:
    path = tmp_path / "found"
    append_seed(path, FoundSeed("swarm", 7, "abc", "open"))
    append_seed(path, FoundSeed("swarm", 7, "def", "open"))
    append_seed(path, FoundSeed("plain", 7, "def", "open"))
    assert path.read_text() == "swarm 7 abc open\nplain 7 def open\n"


def test_a_line_says_what_repaired_the_seed() -> None:
    (found,) = read_seeds("# comment\nswarm 7 abc fixed def Wait for room\n")
    assert (found.state, found.repair) == ("fixed", "def Wait for room")


@pytest.mark.parametrize("line", ["swarm 7 abc", "swarm x abc open", "swarm 7 abc closed"])
def test_a_line_that_is_none_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"expected 'KIND SEED COMMIT open\|fixed REPAIR', got"):
        read_seeds(line)


def test_every_world_and_fuzzer_is_hunted() -> None:
    assert {*WORLDS} == IN_GATE.keys()
    assert {*FUZZERS} == fuzz_run.FUZZERS.keys()
    assert {each.kind for each in read_seeds(FILE.read_text())} <= KINDS.keys()


@pytest.mark.parametrize("found", [each for each in FIXED if each.kind in IN_GATE], ids=str)
def test_a_seed_that_was_repaired_passes(found: FoundSeed) -> None:
    IN_GATE[found.kind](found.seed, 25).play()
