"""Runs of mutants, each in a process of its own. An error of the mutant itself fails the run and
does not count as a catch."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any

import msgspec
import pytest
from sim.code_edits import Stale

TESTS = Path(__file__).parents[1]
ERRORS = (AttributeError, NameError, TypeError, ImportError)  # of a mutant that names what is gone


def check_fault(fault: BaseException) -> None:
    """Raise Stale when the fault, or one that led to it, shows that the mutant does not fit the
    code any more."""
    for each in chain_of(fault):
        if isinstance(each, (*ERRORS, Stale)):
            raise Stale(
                f"the mutant ended in {each!r}, expected a failed check: adapt it to the code"
            ) from fault


def chain_of(fault: BaseException) -> Iterator[BaseException]:
    """Return the fault and its causes, those in groups included."""
    todo, seen = [fault], set[int]()
    while todo:
        each = todo.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            more = (
                each.__cause__,
                None if each.__suppress_context__ else each.__context__,
                *getattr(each, "exceptions", ()),
            )
            todo += [other for other in more if other is not None]


def watched(defect: Any, raised: list[BaseException]) -> Any:
    """Wrap the defect, noting each of `ERRORS` that leaves it: a task that dies of one may show as
    a cluster that only stands still."""
    if not isinstance(defect, FunctionType) or inspect.isgeneratorfunction(defect):
        return defect
    if inspect.iscoroutinefunction(defect):

        @functools.wraps(defect)
        async def asynchronous(*arguments: Any, **more: Any) -> Any:
            with _noting(raised):
                return await defect(*arguments, **more)

        return asynchronous

    @functools.wraps(defect)
    def synchronous(*arguments: Any, **more: Any) -> Any:
        with _noting(raised):
            return defect(*arguments, **more)

    return synchronous


@contextlib.contextmanager
def _noting(raised: list[BaseException]) -> Iterator[None]:
    try:
        yield
    except ERRORS as fault:
        raised.append(fault)
        raise


class _Faults:
    """A plugin of pytest that collects what tests raise."""

    def __init__(self) -> None:
        self.found: list[BaseException] = []

    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        assert call.excinfo is not None
        self.found.append(call.excinfo.value)


def failing_test(*tests: str, options: tuple[str, ...] = ()) -> str:
    """Run the tests in this process, up to the first that fails: its fault, in a line; empty when
    all pass. Raises Stale when they cannot run."""
    faults, output = _Faults(), io.StringIO()
    with contextlib.redirect_stdout(output):
        status = pytest.main(
            ["-qx", "-p", "no:cacheprovider", f"--rootdir={TESTS.parent}", *options, *tests],
            plugins=[faults],
        )
    for fault in faults.found:
        check_fault(fault)
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or bool(faults.found) != (
        status == pytest.ExitCode.TESTS_FAILED
    ):
        raise Stale(f"{tests} cannot be run: {output.getvalue()}")
    return (
        str(faults.found[0]).partition("\n")[0] or type(faults.found[0]).__name__
        if faults.found
        else ""
    )


class Verdict(msgspec.Struct):
    """The outcome of a mutant. `by`: the run that caught it; `stale`: the reason why it could not
    run."""

    by: str = ""
    stale: str = ""


class Trials:
    """A process that has imported everything and run nothing. It forks for each mutant, so earlier
    runs have no effect."""

    def __init__(self, module: str) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ
            | {
                "PYTHONHASHSEED": "0",
                "PYTHONPATH": os.pathsep.join((str(TESTS.parent / "src"), str(TESTS))),
            },
        )

    def __enter__(self) -> Trials:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._server:  # closes its input, at which it ends
            pass

    def caught(self, name: str) -> str:
        """Name the check that catches the mutant; empty when it survives. Raises Stale."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(name.encode() + b"\n")
        self._server.stdin.flush()
        line = self._server.stdout.readline()
        if not line:
            raise Stale(f"{name}: the process that tries mutants ended")
        verdict = msgspec.json.decode(line, type=Verdict)
        if verdict.stale:
            raise Stale(f"{name}: {verdict.stale}")
        return verdict.by


def serve(caught: Callable[[str], str]) -> None:
    """Try each mutant whose name comes as a line, in a child, and answer with a line."""
    gc.freeze()  # what all children share
    gc.set_threshold(50_000, 20, 100)  # as in a core
    for line in sys.stdin.buffer:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            _answer(write, caught, line.strip().decode())
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        sys.stdout.buffer.write(
            (answer or msgspec.json.encode(Verdict(stale="its process ended without a verdict")))
            + b"\n"
        )
        sys.stdout.buffer.flush()


def _answer(pipe: int, caught: Callable[[str], str], name: str) -> None:
    """Answer in the child process, which ends here."""
    try:
        try:
            verdict = Verdict(caught(name))
        except BaseException as fault:
            verdict = Verdict(stale=f"{type(fault).__name__}: {fault}")
        with os.fdopen(pipe, "wb") as out:
            out.write(msgspec.json.encode(verdict))
    finally:
        os._exit(0)
