"""Seeds of clusters in worlds drawn for each: with an object store that fails, disks that fail, rot
and misdirect, five nodes, clogged ways."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from long_tests import long
from sim.knobs import CONSTANTS, SETTINGS, Knobs
from sim.mutants import mutated
from sim.shrink import as_test, shorten, shrink
from sim.swarm import ALL, Step, SwarmEpisode, run_swarm

TESTS = Path(__file__).parent.parent
SEEDS = 1
LONG_SEEDS = 19  # more of them; `make sim` and `make evidence` try others
# schedules that once failed, with the seeds and knobs of their worlds, as `make sim` prints them
FOUND: list[tuple[Knobs, list[Step]]] = [
    # no leader: the last heartbeat of a past incarnation made a member quiescent permanently
    (Knobs(777140), [
        Step(0.5, "disturb", 1979563255),
        Step(0.1, "wall clock", 2123597589),
        Step(0.32, "start", 1212509858),
        Step(0.5, "wipe", 943418769),
    ]),
    # log time went back: a snapshot did not know the time of commands that changed no stream
    (Knobs(777028), [
        Step(0.79, "isolate", 1264319017),
        Step(0.104, "start", 2052545857),
        Step(0.828, "start", 1166333382),
        Step(1.0, "hand over", 87908690),
        Step(0.362, "clog", 1295212663),
        Step(0.941, "bad reads", 1929590232),
        Step(0.536, "start", 874470760),
        Step(1.792, "kill", 2097945364),
        Step(0.035, "start", 1075041468),
        Step(0.124, "start", 21714104),
        Step(1.111, "bad reads", 460173907),
        Step(1.536, "bad write", 291741870),
    ]),
]  # fmt: skip


@pytest.mark.parametrize("seed", [*range(SEEDS), *long(range(SEEDS, SEEDS + LONG_SEEDS))])
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    try:
        run_swarm(seed)
    except Exception as fault:
        raise AssertionError(f"again: make sim SEED={seed}") from fault


def test_what_once_failed_does_not_again() -> None:
    for knobs, schedule in FOUND:
        run_swarm(knobs.seed, schedule=schedule, knobs=knobs)


@pytest.mark.process
def test_a_seed_gives_the_same_run_in_another_process() -> None:
    code = (
        f"import sys; sys.path[:0] = {[str(TESTS), str(TESTS.parent / 'src')]!r}; from sim.swarm "
        "import run_swarm; print(run_swarm(1, 10).trace)"
    )
    others = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": salt},
        ).stdout.strip()
        for salt in ("1", "2")
    ]
    assert others == [run_swarm(1, 10).trace] * 2


@pytest.mark.process
def test_the_events_of_a_seed_are_written(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sim.run",
        "--plain",
        "--mishaps=2",
        "--seed=3",
        f"--trace={tmp_path / 'traces'}",
    ]
    path = {"PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent / "src")))}
    output = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | path, timeout=120
    ).stdout
    written = (tmp_path / "traces" / "seed-3.txt").read_bytes()
    assert output.strip().endswith(hashlib.sha256(written).hexdigest()[:16])
    assert b"test/a" in written


def test_a_knob_turns_what_is_there_and_its_key_is_fixed() -> None:
    """Fix the keys of the knobs: a seed's draws depend on them, so they survive the renaming of a
    target."""
    for modules, constant, _ in CONSTANTS.values():
        assert all(hasattr(module, constant) for module in modules), constant
    for kind, field, _ in SETTINGS.values():
        assert field in kind.__struct_fields__, field
    assert Knobs.draw(1).settings == {
        "Settings.inflight_messages_max": 1,
        "Settings.caught_up_entries": 0,
        "FlushSettings.interval_ms": 40,
        "FlushSettings.concurrency": 1,
        "MergeSettings.pack_bytes_max": 800,
        "EvictSettings.few": 3,
    }


def test_all_that_can_happen_happens() -> None:
    counts: Counter[str] = Counter()
    for seed in range(200):
        counts.update(step.mishap for step in SwarmEpisode(seed).schedule)
    assert set(counts) == set(ALL)
    wanted, store = {"503", "untold", "stale"}, Counter[str]()
    for seed in range(12):
        episode = run_swarm(seed, 8)
        if episode.world.store is not None:
            store += episode.world.store.faults
        if wanted <= set(store):
            break
    assert wanted <= set(store)


def test_a_schedule_shrinks_to_what_matters() -> None:
    steps = [Step(0.7, "kill" if number in (3, 17) else "heal", number) for number in range(25)]

    def fails(some: Sequence[Step]) -> bool:
        return [step.seed for step in some if step.mishap == "kill"] == [3, 17]

    small = shorten(shrink(steps, fails), fails)
    assert small == [Step(0.0, "kill", 3), Step(0.0, "kill", 17)]
    turned = Knobs(9, {"PASSES": 1}, {"Settings.rounds_max": 2}, {"fold_seconds": 0.3})
    assert pasted(as_test(turned, small, "AssertionError: lost")) == (turned, small)


def pasted(text: str) -> tuple[Knobs, list[Step]]:
    """Parse printed knobs and steps, as if pasted."""
    calls = [node for node in ast.walk(ast.parse(dedent(text))) if isinstance(node, ast.Call)]
    made: dict[str, list[Any]] = {"Knobs": [], "Step": []}
    for call in calls:
        assert isinstance(call.func, ast.Name)
        kind = {"Knobs": Knobs, "Step": Step}[call.func.id]
        named = {each.arg or "": ast.literal_eval(each.value) for each in call.keywords}
        made[call.func.id].append(kind(*map(ast.literal_eval, call.args), **named))
    return made["Knobs"][0], made["Step"]


def test_a_failing_seed_shrinks() -> None:
    """A defect that shows as soon as another node leads: few steps are needed, or none."""
    with mutated("log time is the node's own"):
        seed = next(seed for seed in range(20) if failing(seed, SwarmEpisode(seed).schedule[:8]))
        small = shrink(SwarmEpisode(seed).schedule[:8], lambda steps: failing(seed, steps))
        assert failing(seed, small)
        assert all(
            not failing(seed, small[:at] + small[at + 1 :])
            for at in range(len(small))
            if len(small) > 1
        )


def failing(seed: int, schedule: Sequence[Step] | None) -> bool:
    try:
        run_swarm(seed, schedule=schedule)
    except Exception:
        return True
    return False
