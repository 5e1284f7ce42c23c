"""Each Spark session has a JVM of its own, which ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from missing import needed_module
from polling import wait_until
from py4j import protocol
from py4j.protocol import Py4JError, Py4JNetworkError

from polynya.base.errors import ConfigError
from polynya.lakehouse.jobs.spark import SparkRunner
from polynya.lakehouse.machine.jvm import Jvm, JvmEnded

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
needed_module("pyspark")


def jvms() -> set[int]:
    """The processes below this one that are a JVM of Spark, or are about to."""
    found = set()
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            if any("spark-submit" in word or "SparkSubmit" in word for word in each.cmdline()):
                found.add(each.pid)
    return found


def properties(runner: SparkRunner, name: str) -> Any:
    return runner.session.sparkContext._jvm.java.lang.System.getProperty(name)


@pytest.fixture
def foreign() -> Iterator[int]:
    """The JVM of a session that was stopped as PySpark does, which leaves it for the next one."""
    jvm = Jvm({"spark.master": "local[1]"})
    yield jvm.pid
    jvm.close()


def test_a_session_takes_no_jvm_of_another(foreign: int) -> None:
    from pyspark import SparkContext

    left = SparkContext._gateway
    runner = SparkRunner("local[1]", settings={"spark.mine": "one"})
    try:
        assert runner.session.range(3).count() == 3
        assert properties(runner, "spark.mine") == "one"
        assert len(jvms() - {foreign}) == 1
        with pytest.raises(ConfigError, match="another Spark session"):
            SparkRunner("local[1]")
        assert len(jvms() - {foreign}) == 1
    finally:
        runner.close()
    assert jvms() == {foreign} and SparkContext._gateway is left


def test_a_session_that_does_not_start_leaves_no_jvm() -> None:
    before = jvms()
    with pytest.raises(ConfigError, match="Spark did not start"):
        SparkRunner("local[1]", settings={"spark.scheduler.mode": "NONSENSE"})
    assert jvms() == before
    with pytest.raises(ConfigError, match=r"Spark's JVM ended with 1"):
        SparkRunner("local[1]", settings={"spark.driver.memory": "nothing"})
    assert jvms() == before


class LostConnection:
    """A connection of py4j to a JVM that is killed while it answers."""

    def send_command(self, command: str) -> str:
        raise Py4JNetworkError("reset by peer", when=protocol.ERROR_ON_RECEIVE)

    def close(self, *how: bool) -> None:
        """Have nothing to close."""


def test_a_killed_jvm_is_followed_by_another(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = jvms()
    runner = SparkRunner("local[1]", settings={"spark.mine": "one"})
    (pid,) = jvms() - before
    assert runner.works()
    client = runner.session._jvm._gateway_client
    with monkeypatch.context() as changed:
        changed.setattr(client, "_get_connection", LostConnection)
        with pytest.raises(Py4JError):
            runner.session._jvm.java.lang.System.nanoTime()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(JvmEnded, match="Spark's JVM ended with -9"), runner._jvm.watched():
        runner.session.range(2).count()
    wait_until(lambda: not runner.works(), what="the session to notice")
    runner.close()
    assert not caplog.records, "py4j prints a traceback of what it raises"
    runner = SparkRunner("local[1]", settings={"spark.mine": "two"})
    try:
        assert runner.session.range(2).count() == 2
        assert properties(runner, "spark.mine") == "two"
    finally:
        runner.close()
    assert jvms() == before
