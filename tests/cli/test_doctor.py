"""The doctor: its findings for a healthy system and for each problem."""

from __future__ import annotations

import asyncio
import json
import socket
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from free_ports import refusing_url
from polling import wait_until
from product import polynya, running_node
from s3_server import S3Server, s3_server  # noqa: F401 (a fixture)
from scripted_server import scripted

from polynya.cli.app import cli
from polynya.cli.diagnostics import data_dir, machine, store
from polynya.cli.diagnostics import server as server_checks
from polynya.cli.diagnostics.findings import FAIL, OK, WARN, Finding
from polynya.cli.diagnostics.machine import LEAN, PYTHON_LATEST, check_python
from polynya.cli.remote import targets
from polynya.cli.terminal import exits
from polynya.config.loading import load
from polynya.config.model import Config
from polynya.objectstore import StoreSettings, claim_root, open_store

STEPS = (WARN, FAIL)


def ran(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments], env=dict(variables))


def findings(*arguments: str, **variables: str) -> dict[str, Finding]:
    """Return the findings by name; the last of each name."""
    rows = [json.loads(line) for line in ran("--json", *arguments, **variables).stdout.splitlines()]
    return {row["name"]: Finding(**row) for row in rows}


@pytest.mark.process
def test_a_machine_before_its_first_start_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a command's words are made when it is first loaded: with the real address, for the tests of
    # pages
    assert ran("--help").exit_code == 0
    with refusing_url() as url:
        # somebody may have a node at the real one
        monkeypatch.setattr(targets, "SERVER_DEFAULT", url)
        found = findings("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert not [finding for finding in found.values() if finding.status == FAIL]
    assert {
        "python",
        "packages",
        "java",
        "open files",
        "clock",
        "settings",
        "data folder",
        "fsync",
        "port",
        "object store",
        "server",
    } <= set(found)
    # no node has been started yet
    assert (found["server"].status, found["object store"].status) == (
        WARN,
        OK,
    )
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 10), FAIL), ((3, 11), OK), (PYTHON_LATEST, OK), ((3, PYTHON_LATEST[1] + 1), WARN)],
)
def test_a_python_that_was_never_tried_is_told(version: tuple[int, int], status: str) -> None:
    assert check_python(version).status == status


@pytest.mark.parametrize(("limit", "status"), [(64, FAIL), (1_024, WARN), (65_536, OK)])
def test_open_files_are_judged_by_the_clients_that_they_leave_room_for(
    limit: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "raise_limit", lambda: limit)
    assert machine.check_open_files(Config(cores=2)).status == status


def test_every_package_that_the_lean_server_needs_is_looked_for() -> None:
    needs = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text("utf-8"))[
        "project"
    ]["dependencies"]
    assert [need.partition(">=")[0] for need in needs] == list(LEAN)


@pytest.mark.process
def test_every_finding_that_is_not_well_has_a_step(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "letters.txt").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = ran(
            "--data",
            str(tmp_path / "data"),
            "--listen",
            f"127.0.0.1:{port}",
            "--server",
            "http://127.0.0.1:1",
            "--cold-backend",
            "none",
        )
    assert result.exit_code == exits.REFUSED
    for text in (
        "letters.txt",
        f"port {port} of 127.0.0.1 is in use",
        "all data stays in the journal",
        "Connection refused",
    ):
        assert text in result.stdout
    assert result.stdout.count("→") == sum(
        line.startswith(STEPS) for line in result.stdout.splitlines()
    )


@pytest.mark.process
def test_wrong_settings_are_one_failure_and_the_rest_is_still_looked_at(tmp_path: Path) -> None:
    found = findings("--config", str(tmp_path / "nowhere.toml"))
    assert found["settings"].status == FAIL and "config check" in found["settings"].step
    assert "server" in found and "fsync" not in found


@pytest.mark.process
def test_a_server_that_is_another_thing_is_no_node() -> None:
    with scripted((200, {}, b"<html>")) as server:
        assert findings("--server", server.url)["server"].status == FAIL


@pytest.mark.process
def test_an_old_server_and_a_wrong_clock_are_told() -> None:
    node = b'{"version":"0.0.1","cores":2,"ports":{"http":1,"admin":2}}'
    health = (
        b'{"status":"fail","failed":[{"core":1,"check":"journal","reason":"no '
        b'room"}],"unsafe":["anybody may"]}'
    )
    with scripted(
        (200, {"date": "Mon, 01 Jan 2024 00:00:00 GMT"}, node), (503, {}, health)
    ) as server:
        found = findings("--server", server.url)
    assert (found["versions"].status, found["health"].status, found["access"].status) == (
        WARN,
        FAIL,
        WARN,
    )
    assert "core 1 journal: no room" in found["health"].said


@pytest.mark.process
def test_of_a_cluster_s_node_the_doctor_says_what_the_nodes_say_of_each_other() -> None:
    node = b'{"version":"0.0.1","cores":2,"nodes":{"1":"http://a","2":"http://b"},"ports":{"http":1,"admin":2}}'
    health = b'{"status":"pass","failed":[],"unsafe":[]}'
    ill = b'{"healthy":false,"nodes":2,"problems":["node 2 does not answer"],"notes":[]}'
    with scripted((200, {}, node), (200, {}, health), (503, {}, ill)) as server:
        found = findings("--server", server.url)["cluster"]
    assert (found.status, found.said) == (
        WARN,
        "node 2 does not answer",
    ) and "cluster status" in found.step
    well = b'{"healthy":true,"nodes":2,"problems":[],"notes":[]}'
    with scripted((200, {}, node), (200, {}, health), (200, {}, well)) as server:
        found = findings("--server", server.url)["cluster"]
    assert (found.status, found.said) == (OK, "2 nodes, healthy")


@pytest.mark.parametrize(
    ("version", "conditions", "good"),
    [
        ("8.1.3", ">=8.1", True), ("8.0", ">=8.1", False), ("2.10", ">=2.2,<3", True), ("3.0", ">=2.2,<3", False),
        ("1.6.6", "==1.6.*", True), ("1.7", "==1.6.*", False), ("1.5.5", "==1.5.5", True), ("9", "", True), ("1.0rc1", ">=1.0", True),
    ],
)  # fmt: skip
def test_versions(version: str, conditions: str, good: bool) -> None:
    assert machine.satisfies(version, conditions) is good


def test_the_file_system_of_a_folder_is_that_of_its_nearest_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        f"/dev/a / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\ntmp {tmp_path}/in\\040side "
        "tmpfs rw 0 0\n"
    )
    (tmp_path / "in side").mkdir()
    (tmp_path / "inside").mkdir()
    assert data_dir.file_system_of(tmp_path / "in side", str(mounts)) == "tmpfs"
    assert data_dir.file_system_of(tmp_path / "inside", str(mounts)) == "nfs4"
    assert data_dir.file_system_of(Path("/"), str(mounts)) == "ext4"
    assert data_dir.file_system_of(Path("/"), str(tmp_path / "none")) == ""


@pytest.mark.parametrize(("seconds", "status"), [(0.001, OK), (0.05, WARN), (0.000_001, WARN)])
def test_a_slow_disk_and_one_that_lies_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float, status: str
) -> None:
    monkeypatch.setattr(data_dir, "sync_seconds", lambda folder: [seconds] * 3)
    found = {
        finding.name: finding
        for finding in data_dir.check_data(load({"--data": str(tmp_path)}, environ={}).config)
    }
    assert found["fsync"].status == status


def test_a_folder_that_may_not_be_written_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_dir.os, "access", lambda path, mode: False)
    (finding,) = data_dir.check_data(load({"--data": str(tmp_path / "x")}, environ={}).config)
    assert finding.status == FAIL and "chown" in finding.step


@pytest.mark.process
def test_what_cannot_be_looked_at_is_a_failure_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def denied(path: Path) -> Finding:
        raise PermissionError(13, "Permission denied", str(data_dir))

    monkeypatch.setattr(data_dir, "_space", denied)
    found = findings("--data", str(tmp_path), "--listen", "127.0.0.1:0")
    assert (found["data folder"].status, found["port"].status) == (FAIL, OK)
    assert "Permission denied" in found["data folder"].said


@pytest.mark.process
def test_a_bucket_is_tried_and_its_owner_told(s3_server: S3Server, tmp_path: Path) -> None:  # noqa: F811
    settings = s3_server.settings()
    flags = {
        f"--cold-{name.replace('_', '-')}": value
        for name, value in settings.items()
        if name != "s3_secret_access_key"
    }
    secret = {"POLYNYA_COLD_S3_SECRET_ACCESS_KEY": settings["s3_secret_access_key"]}
    found = {
        row.name: row
        for row in store.check_store(
            load({**flags, "--data": str(tmp_path)}, environ=secret).config
        )
    }
    assert (found["object store"].status, found["object root"].said) == (OK, "not owned yet")
    wrong = load(flags, environ=dict.fromkeys(secret, "another secret")).config
    (failed,) = store.check_store(wrong)
    assert failed.status == FAIL and "cold.s3_bucket" in failed.step

    async def claim() -> None:
        opened = open_store(StoreSettings(**settings))
        assert opened is not None
        await claim_root(opened, "someone-else", 1, "start")
        await opened.close()

    asyncio.run(claim())
    (_, root) = store.check_store(load({**flags, "--data": str(tmp_path)}, environ=secret).config)
    assert root.status == FAIL and "someone-else" in root.said


@pytest.mark.process
def test_beside_a_running_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # of a machine that has much else to do
    monkeypatch.setattr(server_checks, "SLOW_SECONDS", 60.0)
    with running_node(tmp_path / "data") as node:
        listen = node.url.removeprefix("http://")
        own = ["--data", str(tmp_path / "data"), "--listen", listen]
        wait_until(lambda: polynya("ls", server=node.url).code == 0, what="the node to answer")
        result = ran("--json", *own, "--server", node.url)
        found = {row["name"]: row for row in map(json.loads, result.stdout.splitlines())}
        assert result.exit_code == 0, result.output
        assert f"pid {node.process.pid}" in found["data folder"]["said"]
        assert (found["server"]["status"], found["health"]["status"], found["port"]["status"]) == (
            OK,
            OK,
            OK,
        )
        # nothing of the node was disturbed
        assert polynya("append", "a", "1", "--create", server=node.url).code == 0
