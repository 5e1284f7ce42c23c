"""A check of the marks that divide the tests: a test has the mark of a tier of processes if it, or
a fixture that it uses, starts a process, and only then.

So no test is moved there because it is slow or fails by chance. An audit hook counts the starts of
processes; `multiprocessing` starts its own without an event, so its call is wrapped. What serves
from a process that runs already (a warm fork, a shared JVM) says so by `note_process`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from multiprocessing import util
from typing import Any

import pytest
from tiers.process_starts import EVENT, note_process

MARKS = frozenset({"process", "spark", "conformance"})
STARTS = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "subprocess.Popen", EVENT}
)


def is_of_processes(item: pytest.Item) -> bool:
    """Report whether a test belongs to the tier of processes, by its marks."""
    return any(mark.name in MARKS for mark in item.iter_markers())


class ProcessWatch:
    """A pytest plugin that fails a test with wrong marks."""

    def __init__(self) -> None:
        self._starts = 0
        self._last = ""
        self._at_begin = 0
        self._skipped = False
        self._starting: set[int] = set()  # fixture definitions, which live to the end
        sys.addaudithook(self._on_event)
        spawn = util.spawnv_passfds

        def noted(*arguments: Any) -> int:
            note_process()
            return spawn(*arguments)

        util.spawnv_passfds = noted

    def _on_event(self, event: str, details: tuple[Any, ...]) -> None:
        if event in STARTS:
            self._starts += 1
            self._last = f"{event} {details[1] if event == 'subprocess.Popen' else ''}"[:300]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        before = self._starts
        try:
            return (yield)
        finally:
            if self._starts > before:
                self._starting.add(id(fixturedef))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[Any]:
        self._at_begin, self._skipped = self._starts, False
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
        report = yield
        self._skipped |= report.skipped or report.failed
        judged = call.when == "teardown" and report.passed and not self._skipped
        if judged and (complaint := self._complaint(item)):
            report.outcome, report.longrepr = "failed", complaint
        return report

    def _complaint(self, item: pytest.Item) -> str:
        starts = self._starts > self._at_begin or any(
            id(definition) in self._starting for definition in _fixtures_of(item)
        )
        if starts == is_of_processes(item):
            return ""
        return (
            f"this test starts a process: give it the mark `process` ({self._last.strip()})"
            if starts
            else "this test starts no process: take its mark away"
        )


def _fixtures_of(item: pytest.Item) -> list[pytest.FixtureDef[Any]]:
    """Return the fixtures that a test used, also those of `getfixturevalue`."""
    request = getattr(item, "_request", None)
    return [] if request is None else list(request._fixture_defs.values())
