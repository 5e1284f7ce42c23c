"""JVMs of tests use the archive of Spark's classes where there is one that can be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import spark_classes


@pytest.mark.parametrize(("name", "content", "used"), [
    ("a.jsa", b"archive", True),
    ("a.jsa", b"", False),  # it could not be made
    ("with space.jsa", b"archive", False),  # Spark's launcher would split it
    ("a.jsa", None, False),
])  # fmt: skip
def test_an_archive_is_used_if_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None, used: bool
) -> None:
    monkeypatch.setattr(spark_classes, "ARCHIVE", tmp_path / name)
    monkeypatch.setenv(spark_classes.VARIABLE, "")  # given back at the end
    monkeypatch.delenv(spark_classes.VARIABLE)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    spark_classes.use()
    expected = spark_classes.options_with(tmp_path / name) if used else None
    assert os.environ.get(spark_classes.VARIABLE) == expected
