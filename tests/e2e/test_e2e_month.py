"""The soak in short: two days of log time in less than a minute, in which nothing may grow or be
lost; and that its judge can say no."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from product import environment

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from bench import _fast_node, soak  # noqa: E402  (not a part of the package)
from bench import _soak_measures as measures  # noqa: E402

STEADY = measures.Sample(
    seconds=0.0,
    appends=0,
    resident=80 << 20,
    files=30,
    journal=128 << 20,
    disk=100 << 20,
    objects=60,
    streams=200,
    slices=900,
    hot=1 << 20,
    cache=8 << 20,
)


def samples(**growth: int) -> list[measures.Sample]:
    """Build a run of a hundred samples; each named field grows by so much from one to the next."""
    more = [
        {field: getattr(STEADY, field) + step * number for field, step in growth.items()}
        for number in range(100)
    ]
    return [
        msgspec.structs.replace(STEADY, seconds=float(number), **fields)
        for number, fields in enumerate(more)
    ]


@pytest.mark.process
@pytest.mark.timeout(500)
@pytest.mark.long
def test_nothing_grows_in_two_days() -> None:
    command = [sys.executable, "-m", "bench.soak", "--minutes", "0.7", "--rate", "1500"]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=450,
        check=False,
    )
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["nothing grew"]), (
        ran.stdout + ran.stderr
    )


def test_the_clock_of_its_nodes_is_made_as_the_product_makes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(_fast_node.SPEED, "1e6")
    loop = asyncio.new_event_loop()
    clock = _fast_node.FastClock(7, boot=None, wall=None, loop=loop)
    loop.close()
    began = clock.now_ms()
    assert all(clock.now_ms() > began for _ in range(3))


def test_what_is_flat_passes() -> None:
    assert measures.judge(samples()) == []


@pytest.mark.parametrize("bound", measures.BOUNDS)
def test_what_grows_is_named(bound: str) -> None:
    name, slack = measures.BOUNDS[bound]
    field = "resident" if bound == "memory" else bound
    # between the two halves there are thirty steps
    step = getattr(STEADY, field) // 20 + slack // 20 + 1
    assert [found.split(" grew")[0] for found in measures.judge(samples(**{field: step}))] == [name]


def test_a_cache_that_fills_is_no_growth() -> None:
    assert measures.judge(samples(resident=1 << 20, cache=1 << 20)) == []


def test_a_soak_in_which_nothing_happened_does_not_pass() -> None:
    outcome = soak.Outcome(samples=samples(), counters={"polynya_merge_packs_total": 0})
    assert len(outcome.problems()) == 6


def test_a_lost_or_repeated_record_is_found() -> None:
    size = 20
    held = [b"%012d" % number + b"." * (size - 12) for number in range(5)]
    assert soak.check_numbers(b"".join(held[1:4]), "0004_0080", size, "x") == (1, 4)
    for wrong in (
        held[1:3] + held[4:],
        [*held[1:3], held[2], held[3]],
        [held[2], held[1], held[3]],
        [held[1][:-1]],
    ):
        with pytest.raises(soak.Failed, match="x: "):
            soak.check_numbers(b"".join(wrong), "0004_0080", size, "x")
