"""The part of the style that a machine can check: sizes, first lines, banned calls with what to
write instead, left-over marks."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from elapsed_time import bounds
from parsed import nodes_of

pytestmark = pytest.mark.usefixtures("without_collector")

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FILE_LINES_MAX = 640
TEST_FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 80
MARKS = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")

BANNED = {  # call -> what to write instead
    "asyncio.wait_for": "`async with asyncio.timeout(...)`: wait_for may swallow a cancellation or lose a result",
    "os.system": "subprocess.run with a list",
    "eval": "a parser",
    "exec": "a function",
    "datetime.utcnow": "datetime.now(UTC)",
}
BANNED_IN_SOURCE = {
    "asyncio.ensure_future": "a task of a TaskGroup, so that it has an owner",
}
BANNED_IN_TESTS = {
    "time.sleep": "wait for the event, or poll with a deadline through `polling.wait_until`",
    **dict.fromkeys(
        (
            "pytest.skip",
            "pytest.importorskip",
            "pytest.mark.skip",
            "pytest.mark.skipif",
            "pytest.mark.xfail",
            "pytest.xfail",
        ),
        "`missing.missing(why)`, which fails in CI",
    ),
}
BANNED_MODULES = {"pickle": "msgspec", "shelve": "msgspec", "marshal": "msgspec"}
ALLOWED = {  # (file, call): why
    (
        "src/polynya/node/supervisor.py",
        "asyncio.ensure_future",
    ): "two waits of one coroutine that are cancelled by it",
    ("tests/missing.py", "pytest.skip"): "the one place that skips",
    ("tests/disk_shim/sitecustomize.py", "time.sleep"): "the disk call that is held up",
    ("tests/node/test_supervisor.py", "time.sleep"): "polls a process, with a deadline",
    ("tests/polling.py", "time.sleep"): "the one place that polls",
    ("tests/s3_server.py", "time.sleep"): "waits for a foreign server, with a deadline",
}
OWN_LOOPS = {  # files with a background loop of their own: why
    "src/polynya/jobs/loop.py": "the one loop of background jobs",
    "src/polynya/client/aio/work.py": "the client imports the room `base` alone",
}


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text()


def name_of(node: ast.expr) -> str:
    """Return `a.b.c` of a dotted expression, else an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := name_of(node.value)):
        return f"{base}.{node.attr}"
    return ""


@functools.cache
def may_break(calls: frozenset[str]) -> re.Pattern[str]:
    """Match the text of each such call, and the names of modules."""
    spelled = (r"\s*\.\s*".join(name.split(".")) for name in sorted(calls))
    return re.compile(rf"\b(?:(?:{'|'.join(spelled)})\s*\(|(?:{'|'.join(BANNED_MODULES)})\b)")


def banned(path: Path, text: str) -> Iterator[str]:
    """List the forbidden calls and imports of a file, each with the replacement. A file without
    such a call or word is not parsed."""
    rules = BANNED | (BANNED_IN_TESTS if path.is_relative_to(ROOT / "tests") else BANNED_IN_SOURCE)
    if not may_break(frozenset(rules)).search(text):
        return
    where = path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = name_of(node.func)
            if name in rules and (where, name) not in ALLOWED:
                yield f"{where}:{node.lineno}: {name}: write {rules[name]}"
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        yield from (
            f"{where}:{node.lineno}: {name}: write {BANNED_MODULES[name]}"
            for name in names
            if name in BANNED_MODULES
        )


def raises_in_except_star(path: Path) -> Iterator[str]:
    for node in nodes_of(text_of(path)) if "except*" in text_of(path) else ():
        if isinstance(node, ast.TryStar):
            raised = (
                each
                for handler in node.handlers
                for each in ast.walk(handler)
                if isinstance(each, ast.Raise) and each.exc
            )
            yield from (f"{path.relative_to(ROOT)}:{each.lineno}" for each in raised)


def ends(loop: ast.While) -> bool:
    """Report whether a `return`, or a `break` of this loop, ends it."""
    todo = [(each, True) for each in loop.body]
    while todo:
        node, here = todo.pop()
        if isinstance(node, ast.Return) or (here and isinstance(node, ast.Break)):
            return True
        here &= not isinstance(node, ast.While | ast.For | ast.AsyncFor)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += [(each, here) for each in ast.iter_child_nodes(node)]
    return False


def background_loops(text: str) -> Iterator[int]:
    """Yield the lines of loops that only a cancellation ends, and that sleep between two rounds."""
    for loop in nodes_of(text) if "while True" in text and "sleep" in text else ():
        if (
            isinstance(loop, ast.While)
            and ast.unparse(loop.test) == "True"
            and not ends(loop)
            and re.search(r"await .*sleep\(", ast.unparse(loop))
        ):
            yield loop.lineno


def long_functions(path: Path) -> Iterator[str]:
    for node in nodes_of(text_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {lines} lines"


def test_all_errors_of_a_decode_are_caught() -> None:
    """`UNREADABLE` has what msgspec raises beside its DecodeError."""
    narrow = re.compile(r"except[^:]*\bmsgspec\.DecodeError")
    assert narrow.search("except (OSError, msgspec.DecodeError) as error:")
    assert not [str(path.relative_to(ROOT)) for path in SOURCES if narrow.search(text_of(path))]


def test_no_file_is_long() -> None:
    lines = {
        str(path.relative_to(ROOT)): (len(text_of(path).splitlines()), most)
        for paths, most in ((SOURCES, FILE_LINES_MAX), (TESTS, TEST_FILE_LINES_MAX))
        for path in paths
    }
    assert not {name: (count, most) for name, (count, most) in lines.items() if count > most}


def test_no_function_is_long() -> None:
    assert not [line for path in SOURCES for line in long_functions(path)]


def test_every_module_says_its_duty_in_its_first_line() -> None:
    for path in SOURCES + TESTS:
        assert text_of(path).startswith('"""'), (
            f"{path.relative_to(ROOT)} does not begin with a docstring"
        )


def test_nothing_banned_is_called() -> None:
    assert not [line for path in SOURCES + TESTS for line in banned(path, text_of(path))]


def test_nothing_is_raised_in_except_star() -> None:
    """Forbid a raise in `except*`: before 3.11.4 Python wraps it in a group. Debian 12 has Python
    3.11.2."""
    assert not [line for path in SOURCES for line in raises_in_except_star(path)]


def test_background_jobs_have_one_loop() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in SOURCES
        if (lines := list(background_loops(text_of(path))))
    }
    others = {path: lines for path, lines in found.items() if path not in OWN_LOOPS}
    assert not others, "write `await repeat(work, seconds)` of the room jobs"
    assert found.keys() == OWN_LOOPS.keys()


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("await asyncio.sleep(1)", [2]),
        ("for _ in x:\n            break\n        await sleep(1)", [2]),
        ("if x():\n            break\n        await asyncio.sleep(1)", []),
        ("with x:\n            return\n        await asyncio.sleep(1)", []),
        ("await queue.get()", []),
    ],
)
def test_a_background_loop_is_found(body: str, lines: list[int]) -> None:
    text = f"async def run():\n    while True:\n        {body}\n"
    assert list(background_loops(text)) == lines


def test_no_marks_are_left_over() -> None:
    left = [path for path in SOURCES + TESTS if MARKS.search(text_of(path))]
    assert not left


def test_rooms_hold_no_logic_in_their_essays() -> None:
    for path in SOURCES:
        if path.name == "__init__.py" and path.parent.name != "polynya":
            for node in ast.parse(text_of(path)).body:
                assert isinstance(node, ast.Expr | ast.Import | ast.ImportFrom | ast.Assign), (
                    f"{path.relative_to(ROOT)}:{node.lineno}"
                )


@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.sleep(1)",
        "import asyncio\nasyncio.wait_for(x, 1)",
        "import pickle",
        "eval('1')",
        "pytest.skip(why)",
    ],
)
def test_the_bans_can_fail(code: str) -> None:
    assert list(banned(ROOT / "tests" / "x.py", code))


def test_no_test_in_this_process_bounds_elapsed_time() -> None:
    """Count operations instead, or measure in `bench/`."""
    for path in TESTS:
        if path.name.startswith("test_") and "assert" in text_of(path):
            lines = list(bounds(text_of(path)))
            assert not lines, f"{path.relative_to(ROOT)}:{lines}: an upper bound on elapsed time"


@pytest.mark.parametrize(
    "code",
    [
        "began = time.monotonic()\n    work()\n    assert time.monotonic() - began < 1",
        "began = perf_counter()\n    passed = perf_counter() - began\n    assert 1 >= passed",
        "times = []\n    times.append(process_time() - 1)\n    assert max(times) < 2, times",
        "assert took() <= 3\n\n\ndef took():\n    return time.monotonic_ns() - BEGAN",
        "async def story():\n        assert loop.time() - BEGAN < 2\n    asyncio.run(story())",
    ],
)
def test_a_bound_on_elapsed_time_is_found(code: str) -> None:
    test = f"def test_it():\n    {code}\n"
    assert list(bounds(test))
    assert not list(bounds(f"pytestmark = pytest.mark.spark\n{test}"))


def test_other_asserts_about_time_are_none() -> None:
    lower = (
        "def test_it():\n    began = time.monotonic()\n    assert time.monotonic() - began > 1\n"
    )
    assert not list(bounds(lower))
    virtual = "def test_it():\n    assert loop.time() < 2\n    run_simulated(story())\n"
    assert not list(bounds(f"{virtual}\n\ndef test_other():\n    asyncio.run(story())\n"))
    assert not list(bounds(f"@pytest.mark.process\n{lower.replace('>', '<')}"))
    assert list(bounds(f"@pytest.mark.long\n{lower.replace('>', '<')}"))
