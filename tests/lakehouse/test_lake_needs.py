"""Missing dependencies of tables are reported once, before anything starts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner

from polynya.admin.workers.lake_worker import check_lake
from polynya.base.errors import ConfigError
from polynya.cli.app import cli
from polynya.cli.diagnostics.findings import FAIL, OK
from polynya.cli.diagnostics.machine import check_worker
from polynya.cli.terminal import exits
from polynya.config.loading import load
from polynya.config.model import Config
from polynya.lakehouse.machine import java, needs


def lacking(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: None if name in names else real(name, package),
    )


def settings(**flags: str) -> Config:
    return load(
        {"--" + name.replace("_", "-"): value for name, value in flags.items()},
        environ={},
        folder="/nonexistent",
    ).config


def serving(**flags: str) -> None:
    check_lake(settings(**flags))


def test_a_node_that_is_to_build_tables_and_cannot_names_all_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking(monkeypatch, "pyspark", "deltalake")
    serving()
    with pytest.raises(
        ConfigError,
        match=(
            r"lake\.interval: .* pyspark, deltalake are not installed: pip install "
            r"'\.\[lake\]'"
        ),
    ):
        serving(lake_interval="1min")


def test_the_doctor_says_what_such_a_start_would_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "find_java_home", lambda: "/java")
    lacking(monkeypatch)
    assert list(check_worker(settings())) == []
    assert [found.status for found in check_worker(settings(lake_interval="1min"))] == [OK]
    lacking(monkeypatch, "pyiceberg")
    (found,) = check_worker(settings(lake_interval="1min"))
    assert (found.status, "pyiceberg is not installed" in found.said) == (FAIL, True)


@pytest.mark.process
def test_a_node_that_is_to_build_tables_needs_a_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "missing_packages", lambda names: [])
    monkeypatch.setattr(java, "_candidates", list)
    monkeypatch.setattr(java, "_packaged", lambda: "")
    with pytest.raises(ConfigError, match=r"lake\.interval: .* needs Java 17"):
        serving(lake_interval="1min")
    monkeypatch.setattr(java, "_packaged", lambda: str(tmp_path))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        ConfigError, match=r"cannot be written \(Not a directory\): set XDG_CACHE_HOME"
    ):
        serving(lake_interval="1min")


def test_tables_cannot_be_where_others_do_not_see_them() -> None:
    with pytest.raises(
        ConfigError, match=r"lake\.interval \(--lake-interval\): .* cold\.backend is memory"
    ):
        serving(lake_interval="1min", cold_backend="memory")


def test_a_master_that_is_none_is_named_before_the_node_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(needs, "find_java_home", lambda: "/java")
    lacking(monkeypatch)
    serving(lake_interval="1min", lake_master="spark://127.0.0.1:1")  # it may start later
    with pytest.raises(ConfigError, match=r"lake\.interval: .* 'nonsense' is no Spark master"):
        serving(lake_interval="1min", lake_master="nonsense")


@pytest.mark.parametrize("words", [("compact",), ("lake", "run")])
def test_the_verbs_ask_nobody_before_they_have_what_they_need(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking(monkeypatch, "pyarrow")
    done = CliRunner().invoke(cli, list(words), env={"POLYNYA_SERVER": "http://127.0.0.1:9"})
    assert done.exit_code == exits.REFUSED
    assert "pyarrow" in done.stderr and "pip install '.[lake]'" in done.stderr
