"""The rooms: which room may import which, what a pure room may import, and where heavy libraries
belong.

All lists here are allow-lists: an import that no line allows fails, and so does a line that no
import needs.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from parsed import nodes_of

import polynya

pytestmark = pytest.mark.usefixtures("without_collector")

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "polynya"

ROOMS = {  # room: the rooms that it may import
    "cli": (
        "access admin backup base client cluster config cost files front lakehouse node "
        "objectstore observability recovery reducers stream system wire"
    ),
    "client": "base",
    "spark": "base client lakehouse objectstore wire",
    "node": "admin backup base cluster config cost engine files front jobs observability recovery replica routing service stream subscriptions system tiering transport wal",
    "recovery": "backup base cluster config engine files objectstore replica stream system wal wire",
    "admin": "access backup base cold config console cost engine files front jobs lakehouse local objectstore observability routing service stream system tiering transport wire",
    "cluster": "base config cost engine files front jobs objectstore observability raft replica routing service stream system tiering transport wal wire",
    "front": "access base cost jobs local reducers registry routing service stream subscriptions wire",
    "subscriptions": "base jobs local routing stream wal",
    "tiering": (
        "backup base cold config diskless engine jobs objectstore observability service stream transport"
    ),
    "service": "base cold engine jobs local reducers routing stream transport wal wire",
    "routing": "base cold engine local replica stream transport wal",
    "local": "base cold stream",
    "engine": "backup base config files observability raft replica stream system transport wal wire",
    "backup": "base jobs objectstore stream wire",
    "cold": "base jobs objectstore stream wire",
    "console": "wire",
    "diskless": "base cold objectstore stream wire",
    "lakehouse": "base files objectstore stream wire",
    "config": "base files objectstore",
    "reducers": "base wire",
    "cost": "base files",
    "replica": "base raft stream",
    "system": "base files wal",
    "wire": "base stream",
    "access": "base files",
    "objectstore": "base files",
    "raft": "base",
    "registry": "base",
    "stream": "base",
    "transport": "base",
    "wal": "base files",
    "embedded": "base files wal",
    "base": "",
    "files": "",
    "jobs": "",
    "observability": "base",
}
PLAIN = (
    "__future__ abc bisect collections enum functools heapq itertools msgspec operator re struct "
    "sys typing"
)
# room or file: the modules that are not ours and that it may import; none does I/O, reads a clock
# or draws a random number
PURE = {
    "base": f"{PLAIN} contextlib contextvars zlib",
    "raft": PLAIN,
    "stream": f"{PLAIN} array google_crc32c",
    "replica": f"{PLAIN} array",
    "registry": f"{PLAIN} base64 binascii fractions json urllib",
    "wire": f"{PLAIN} array base64 contextvars cramjam datetime decimal google_crc32c hashlib ipaddress time urllib zlib",
    **dict.fromkeys(
        (
            f"client/{name}.py"
            for name in (
                "calls",
                "errors",
                "live/events",
                "messages",
                "producing/batches",
                "producing/claims",
                "producing/core",
                "producing/receipts",
                "reading",
                "values",
                "verbs",
                "workers",
            )
        ),
        f"{PLAIN} base64 binascii codecs datetime json urllib zlib",
    ),
}
# a front knows the machine's commands and replies, never its state
FRONT_STREAM = {"command", "features", "parts", "replies"}
HEAVY = {"pyspark", "py4j", "pyarrow", "pyiceberg", "deltalake", "duckdb", "pandas", "numpy"}


@functools.cache
def imported(text: str) -> tuple[str, ...]:
    """Return the dotted names of the modules that a source imports, at any depth of its code."""
    return tuple(_imported(text))


def _imported(text: str) -> Iterator[str]:
    for node in nodes_of(text):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from (
                (f"polynya.{alias.name}" for alias in node.names)
                if node.module == "polynya"
                else (node.module,)
            )


def rooms_of(text: str) -> set[str]:
    """Return the rooms of ours that a source imports."""
    return {name.split(".")[1] for name in imported(text) if name.startswith("polynya.")} - {
        "__version__"
    }


def others_of(text: str) -> set[str]:
    """Return the top-level modules that a source imports and that are not ours."""
    return {name.split(".")[0] for name in imported(text)} - {"polynya"}


def texts(location: str) -> list[str]:
    """Return the sources of a room, or of one file."""
    path = SOURCE / location
    return [each.read_text() for each in (path.rglob("*.py") if path.is_dir() else (path,))]


def forbidden_rooms(room: str, sources: Iterable[str]) -> set[str]:
    return set().union(*map(rooms_of, sources)) - {room} - set(ROOMS[room].split())


def forbidden_modules(location: str, sources: Iterable[str]) -> set[str]:
    return set().union(*map(others_of, sources)) - set(PURE[location].split())


def importers(*libraries: str) -> set[str]:
    """Return the files outside the lakehouse and the Spark source that import one of the
    libraries."""
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if others_of(path.read_text()) & set(libraries)
    }
    return {name for name in found if not name.startswith(("lakehouse/", "spark/"))}


@pytest.mark.process
def test_imports_point_downwards_only() -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as main; main()",
        "--no-cache",
    ]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={"PYTHONPATH": "src", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_room_has_its_line() -> None:
    assert set(ROOMS) == {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert not {room for room in ROOMS if f"`{room}`" not in (polynya.__doc__ or "")}, (
        "rooms that the docstring of polynya does not name"
    )


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_what_its_line_allows(room: str) -> None:
    assert forbidden_rooms(room, texts(room)) == set()
    needed = set().union(*map(rooms_of, texts(room)))
    assert not set(ROOMS[room].split()) - needed, (
        f"{room} is allowed to import what it does not need"
    )


@pytest.mark.parametrize("location", PURE)
def test_a_pure_room_imports_nothing_that_acts(location: str) -> None:
    assert forbidden_modules(location, texts(location)) == set()


def test_fronts_know_the_commands_and_never_the_machine() -> None:
    names = {
        name
        for text in texts("front")
        for name in imported(text)
        if name.startswith("polynya.stream.")
    }
    assert {name.split(".")[2] for name in names} <= FRONT_STREAM


def test_rooms_above_the_service_see_protocols_of_it() -> None:
    whole = "polynya.service.node_service"
    rooms = [room for room in ROOMS if room not in ("node", "service")]
    assert not [room for room in rooms if any(whole in imported(text) for text in texts(room))]


def test_fronts_reach_a_stream_through_its_handle() -> None:
    by_name = re.compile(r"\bservice\.(info|propose|read|read_nowait|attach)\b")
    assert not [found for text in texts("front") for found in by_name.findall(text)]


def test_what_fronts_share_knows_no_protocol() -> None:
    names = {
        name
        for text in texts("front/common")
        for name in imported(text)
        if name.startswith("polynya.front.")
    }
    assert all(name.startswith("polynya.front.common") for name in names), names


def test_the_table_libraries_are_imported_in_the_lakehouse_and_by_the_demo() -> None:
    assert importers(*HEAVY) == {"cli/demo/answers.py"}


def test_no_room_is_empty() -> None:
    for room in SOURCE.iterdir():
        if (room / "__init__.py").exists():
            assert len(list(room.rglob("*.py"))) > 1, f"{room.name} has nothing but its essay"


PLANTED = """
def f():
    from pyspark.sql import SparkSession
    import socket
    from polynya import node
    from polynya.engine.storage import Storage
"""


@pytest.mark.parametrize(
    "room", [room for room in ROOMS if "engine" not in ROOMS[room] and room != "engine"]
)
def test_a_planted_import_of_a_room_is_found(room: str) -> None:
    assert {"engine"} <= forbidden_rooms(room, [PLANTED])


@pytest.mark.parametrize("location", PURE)
def test_a_planted_import_of_a_library_is_found(location: str) -> None:
    assert forbidden_modules(location, [PLANTED]) == {"pyspark", "socket"}
