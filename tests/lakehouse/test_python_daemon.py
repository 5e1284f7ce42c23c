"""The process that Spark's workers are forks of imports PySpark from where it is installed."""

from __future__ import annotations

import sys

import pytest

from polynya.lakehouse.machine import python_daemon

ZIPS = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-src.zip"]


def test_the_zip_file_is_taken_off_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*ZIPS, "/site-packages"])
    monkeypatch.setattr(python_daemon, "find_spec", lambda name: name)
    python_daemon.prefer_installed()
    assert sys.path == [ZIPS[1], "/site-packages"]


def test_it_stays_where_nothing_else_has_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*ZIPS, "/site-packages"])
    monkeypatch.setattr(python_daemon, "find_spec", lambda name: None)
    python_daemon.prefer_installed()
    assert sys.path == [*ZIPS, "/site-packages"]
