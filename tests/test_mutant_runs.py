"""Mutants are edits of syntax trees, and one that does not fit the code any more fails the run
instead of counting as caught."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sim import mutants as sim_mutants
from sim import raft_mutants
from sim.code_edits import Stale, edited_function, edited_source
from sim.mutant_runs import ERRORS, Trials, check_fault, watched

from polynya.engine.replicas.linearizable_reads import LinearizableReads

SOURCE = (
    "def first(a):\n    return a + 1\n\nclass Kind:\n    def first(self, a):\n        return a + "
    "1\n"
)


def test_an_edit_does_not_depend_on_formatting() -> None:
    source = (
        "def each(a, b):\n    # a comment\n    if (a\n            > b) :\n        a = (b )\n      "
        "  b=''\n    return a\n"
    )
    assert (
        edited_source(source, "a > b", "a >= b")
        == "def each(a, b):\n    if a >= b:\n        a = b\n        b = ''\n    return a"
    )
    assert "a = 1\n    return" in edited_source(source, 'if a > b:\n    a = b\n    b = ""', "a = 1")


@pytest.mark.parametrize(
    ("old", "within", "times"),
    [("a + 1", "", 2), ("a + 2", "", 0), ("return a - 1", "Kind", 0), ("a", "Kind.second", 0)],
)
def test_an_edit_that_does_not_match_once_is_stale(old: str, within: str, times: int) -> None:
    with pytest.raises(Stale, match=f"{times} times, expected once"):
        edited_source(SOURCE, old, "0", within)


def test_an_edit_can_be_within_one_definition() -> None:
    assert edited_source(SOURCE, "a + 1", "a", "Kind.first").endswith("return a")


BOUND = 3


def bounded(number: int, *, least: int = 0) -> int:
    return max(least, min(number, BOUND))


def test_an_edited_function_uses_the_globals_of_the_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edited = edited_function(bounded, "min(number, BOUND)", "number + BOUND")
    monkeypatch.setattr(f"{__name__}.BOUND", 10)
    assert (edited(1), edited(-20), bounded(12)) == (11, 0, 10)


@pytest.mark.parametrize("kind", ERRORS)
def test_a_fault_that_comes_of_a_name_that_is_gone_is_stale(kind: type[Exception]) -> None:
    def simulated(grouped: bool) -> None:
        try:
            if grouped:
                raise ExceptionGroup("tasks", [ValueError("one"), kind("no such thing")])
            raise kind("no such thing")
        except Exception as fault:
            raise AssertionError("a task died") from fault

    for grouped in (False, True):
        with pytest.raises(AssertionError) as raised:
            simulated(grouped)
        with pytest.raises(Stale, match="no such thing"):
            check_fault(raised.value)
    check_fault(AssertionError("a check failed"))


def test_an_error_of_the_defect_is_noted_also_when_somebody_catches_it() -> None:
    raised: list[BaseException] = []

    def defect(core: Any) -> None:
        core.gone()

    async def asynchronous(core: Any) -> None:
        core.gone()

    with pytest.raises(AttributeError):
        watched(defect, raised)(None)
    with pytest.raises(AttributeError):
        asyncio.run(watched(asynchronous, raised)(None))
    assert len(raised) == 2
    assert watched({"not": "a function"}, raised) == {"not": "a function"}


def test_a_mutant_of_what_is_gone_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sim_mutants.MUTANTS, "of a method that was renamed", (LinearizableReads, "linearise", None)
    )
    with pytest.raises(Stale, match="LinearizableReads has no linearise"):
        sim_mutants.caught("of a method that was renamed")


def test_a_mutant_that_uses_what_is_gone_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    async def defect(core: Any, group: int) -> None:
        core.method_that_was_renamed(group)

    monkeypatch.setitem(
        sim_mutants.MUTANTS,
        "uses a method that was renamed",
        (LinearizableReads, "linearize", defect),
    )
    with pytest.raises(Stale, match="method_that_was_renamed"):
        sim_mutants.caught("uses a method that was renamed")


@pytest.mark.process
def test_what_a_process_that_tries_mutants_cannot_do_is_stale() -> None:
    with Trials("sim.mutants") as trials, pytest.raises(Stale, match="no such mutant"):
        trials.caught("no such mutant")


@pytest.mark.process
def test_a_mutant_of_the_agreement_that_names_what_is_gone_is_stale() -> None:
    with pytest.raises(Stale, match="has no attribute 'method_that_was_renamed'"):
        raft_mutants.caught(
            raft_mutants.Mutant(
                "reading.py", "has_lease(raft)", "raft.method_that_was_renamed()", within="_take"
            )
        )


OUTCOMES = {  # what a test does -> the outcome of the mutant under which it runs
    "def test_it(): pass": "",
    "def test_it(): assert 1 == 2, 'lost'": "lost",
    "import pytest\ndef test_it():\n    with pytest.raises(ValueError): pass": "DID NOT RAISE",
    "def test_it(): None.gone()": "Stale: .*'gone'",
    "import polynya.gone\ndef test_it(): pass": "Stale: .*(polynya.gone|cannot be run)",
    "def test_other(): pass": "Stale: .*cannot be run",
}
RUN = """
import os
import sys
from pathlib import Path
from sim.mutant_runs import failing_test

for path in map(Path, sys.argv[1:]):
    if not os.fork():
        try:
            outcome = failing_test(f"{path}::test_it")
        except BaseException as fault:
            outcome = f"{type(fault).__name__}: {fault}"
        path.with_suffix(".outcome").write_text(outcome)
        os._exit(0)
    os.wait()
"""


@pytest.mark.process
def test_what_a_test_tells_of_a_mutant(tmp_path: Path) -> None:
    """Run in forks of a process: pytest cannot run inside itself."""
    paths = [tmp_path / f"test_of_mutant_{number}.py" for number in range(len(OUTCOMES))]
    for path, code in zip(paths, OUTCOMES, strict=True):
        path.write_text(code)
    script = f"import sys; sys.path[:0] = {sys.path!r}\n{RUN}"
    command = [sys.executable, "-c", script, *map(str, paths)]
    subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    for path, found in zip(paths, OUTCOMES.values(), strict=True):
        outcome = " ".join(path.with_suffix(".outcome").read_text().split())
        assert re.match(found, outcome) if found else not outcome, outcome
