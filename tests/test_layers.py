"""The rooms: imports point downwards only, pure rooms stay pure, and heavy libraries stay where they belong."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import polynya

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "polynya"


def imported(path: Path) -> set[str]:
    """The first parts of all module names that a file imports, at any depth of its code."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


def importers(*libraries: str) -> set[str]:
    """The files outside the lakehouse in which one of the libraries is imported."""
    found = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if imported(path) & set(libraries)}
    return {name for name in found if not name.startswith("lakehouse/")}


def test_imports_point_downwards_only() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": "src", "PATH": ""}, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_room_is_in_the_picture() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    unknown = {room for room in rooms if f"`{room}`" not in (polynya.__doc__ or "")}
    assert not unknown, "rooms that the docstring of polynya does not name, and the layers contract does not hold"


def test_spark_is_imported_in_the_lakehouse_only() -> None:
    assert importers("pyspark", "py4j") == set()


def test_the_table_libraries_are_imported_in_the_lakehouse_and_where_the_demo_asks() -> None:
    assert importers("pyarrow", "pyiceberg", "deltalake", "duckdb", "pandas", "numpy") == {"cli/answers.py"}


def test_fronts_know_the_machines_words_and_never_the_machine() -> None:
    forbidden = re.compile(r"from polynya\.(stream\.machine|replica|wal|objectstore|transport|cold|node)\b")
    for path in (SOURCE / "front").rglob("*.py"):
        assert not forbidden.search(path.read_text()), path.relative_to(ROOT)


def test_no_room_is_empty() -> None:
    for room in SOURCE.iterdir():
        if (room / "__init__.py").exists():
            assert len(list(room.rglob("*.py"))) > 1, f"{room.name} has nothing but its essay"


def test_this_check_can_fail(tmp_path: Path) -> None:
    module = tmp_path / "bad.py"
    module.write_text("def f():\n    from pyspark.sql import SparkSession\n    return SparkSession\n")
    assert imported(module) == {"pyspark"}
