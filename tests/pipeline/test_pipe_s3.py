"""The whole of it over S3: a node with its objects in a bucket, Spark's workers, and readers that
come over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from long_tests import long
from product import polynya
from s3_server import S3Server
from worlds.pipeline import PipeWorld

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(900)]


def check_refusals(world: PipeWorld) -> None:
    """Check that missing driver requirements are named before Spark starts: credentials, a working
    permission, a master."""
    keys = {
        name: ""
        for name in world.variables
        if name.endswith(("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
    }
    for own, options, message in (
        (keys, (), "no S3 credentials were found: set POLYNYA_COLD_S3_ACCESS_KEY_ID"),
        (dict.fromkeys(keys, "wrong"), (), "refused the access key 'wrong'"),
        ({}, ("--master", "spark://127.0.0.1:1"), "no Spark master answers at 127.0.0.1:1"),
    ):
        variables = {"HOME": "/nonexistent", **world.variables, **own}
        done = polynya("table", "sync", *options, server=world.node.url, **variables)
        assert done.code in (2, 3) and message in done.err and "Traceback" not in done.err, done


@pytest.mark.parametrize("killed", [False, *long([True])])
def test_streams_become_tables_in_a_bucket(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:  # noqa: F811
    variables = {
        f"POLYNYA_COLD_{name.upper()}": value for name, value in s3_server.settings().items()
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)  # for what runs in this process
    world = PipeWorld(tmp_path / "data", **variables)
    try:
        world.start("--cores", "2")
        assert world.run("table", "create", "air", "--prefix", "air/").code == 0
        for number in range(20):
            world.append(
                f"air/{number % 5}", *({"n": number, "part": part} for part in range(200)), ["odd"]
            )
        check_refusals(world)
        if killed:
            driver = world.spawn("table", "sync", "-v", "air")
            driver.wait_said("result-object")
            driver.kill()
            world.wait_no_strays()
        world.append("air/1", {"n": "text"})
        done = world.run("compact", "air")
        assert done.code == 0, done
        world.append("air/1", {"n": 5, "more": {"deep": [1, 2]}})
        world.compact_here("air")
        world.check_exactly_once("air")
        asked = world.run("sql", "--json", "select count(*) as rows, count(more) as more from air")
        assert json.loads(asked.out) == [{"rows": sum(world.rows.values()), "more": 1}], asked
        assert json.loads(world.run("table", "ls", "--json").out)[0]["delta"].startswith(
            "s3://tests/"
        )
        secret = variables["POLYNYA_COLD_S3_SECRET_ACCESS_KEY"]
        assert secret not in "".join(world.node.log) + done.err + str(world.tables())
    finally:
        world.close()
