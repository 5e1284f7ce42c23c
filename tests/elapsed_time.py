"""Find asserts that bound elapsed time: a slow machine fails them, and no defect needs them.

A value is of a clock if it is read from one, or is computed, collected or returned from such a
value by a function of the same module. The time of a loop is one where the test runs a real loop
by `asyncio.run`: on a virtual loop no machine is slow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tiers.process_watch import MARKS

CLOCKS = {
    f"{name}{suffix}"
    for name in ("monotonic", "perf_counter", "process_time", "thread_time")
    for suffix in ("", "_ns")
}
READS_CLOCK = re.compile(rf"\b(?:{'|'.join(sorted(CLOCKS))})\b")
RUNS_LOOP = "asyncio.run("
COLLECT = {"append", "add", "extend"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def bounds(text: str) -> Iterator[int]:
    """Yield the lines of asserts with an upper bound on a clock's value, in tests without a mark
    for processes. A source that reads no clock is not parsed."""
    if not READS_CLOCK.search(text) and not (RUNS_LOOP in text and ".time()" in text):
        return
    tree = ast.parse(text)
    if any(isinstance(node, ast.Assign) and _marks(node) for node in tree.body):
        return
    functions = [node for node in tree.body if isinstance(node, Function) and not _marks(node)]
    functions += [
        node
        for each in tree.body
        if isinstance(each, ast.ClassDef)
        for node in each.body
        if isinstance(node, Function) and not _marks(node)
    ]
    timers: set[str] = set()  # functions that return a time
    for _ in range(3):
        timers |= {each.name for each in functions if _Times(each, timers).returned}
    for each in functions:
        times = _Times(each, timers)
        yield from (
            node.lineno
            for node in ast.walk(each)
            if isinstance(node, ast.Assert) and times.bounds(node.test)
        )


def _marks(node: ast.AST) -> bool:
    """Report whether a function's decorators, or `pytestmark`, name a mark for processes."""
    marks: list[ast.AST] = list(getattr(node, "decorator_list", ()))
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
        marks.append(node.value)
    names = {
        each.attr for one in marks for each in ast.walk(one) if isinstance(each, ast.Attribute)
    }
    return bool(names & MARKS)


class _Times:
    """The names in a function that hold a time of a clock."""

    def __init__(self, function: Function, timers: set[str]) -> None:
        self._names: set[str] = set()
        self._timers = timers
        nodes = list(ast.walk(function))
        self._clocks = CLOCKS | ({"time"} if RUNS_LOOP in ast.unparse(function) else set())
        before = -1
        while len(self._names) > before:
            before = len(self._names)
            for node in nodes:
                self._learn(node)
        self.returned = any(
            isinstance(node, ast.Return) and node.value is not None and self._is_time(node.value)
            for node in nodes
        )

    def bounds(self, test: ast.expr) -> bool:
        return any(
            (isinstance(way, ast.Lt | ast.LtE) and self._is_time(left))
            or (isinstance(way, ast.Gt | ast.GtE) and self._is_time(right))
            for node in ast.walk(test)
            if isinstance(node, ast.Compare)
            for left, way, right in zip(
                [node.left, *node.comparators], node.ops, node.comparators, strict=False
            )
        )

    def _is_time(self, value: ast.expr) -> bool:
        return any(
            (isinstance(node, ast.Name) and node.id in self._names)
            or (isinstance(node, ast.Call) and _called(node) in self._clocks | self._timers)
            for node in ast.walk(value)
        )

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign) and self._is_time(node.value):
            self._names |= {
                each.id
                for target in node.targets
                for each in ast.walk(target)
                if isinstance(each, ast.Name)
            }
        elif (
            isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr)
            and isinstance(node.target, ast.Name)
            and node.value is not None
            and self._is_time(node.value)
        ):
            self._names.add(node.target.id)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in COLLECT
            and isinstance(node.func.value, ast.Name)
            and any(map(self._is_time, node.args))
        ):
            self._names.add(node.func.value.id)


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
