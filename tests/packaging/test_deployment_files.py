"""The container file, the systemd unit and the compose file: read as their tools read them, and run
as far as a machine without those tools can."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest
import yaml
from free_ports import free_ports, two_free_ports
from missing import CannotStart, missing, needed_program
from product import running_node
from s3_server import PORTS, stop, wait_ready, weed

from polynya.config.loading import load

ROOT = Path(__file__).parent.parent.parent
PACKAGING = ROOT / "packaging"
UNIT = PACKAGING / "systemd" / "polynya.service"
EXPOSURE_MAX = 2.0  # of 10, as `systemd-analyze security` counts


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the container file, continued lines joined."""
    text = re.sub(
        r"\\\n\s*",
        "",
        "".join(line for line in (PACKAGING / "Containerfile").open() if not line.startswith("#")),
    )
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]  # type: ignore[misc]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for instruction in instructions():
        if instruction[0] == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def test_the_container_runs_as_nobody_in_particular_and_says_how_it_is() -> None:
    last = dict(stages()[-1])
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"]), (
        "a number: a cluster can see that it is not root"
    )
    assert f"--chown={last['USER']}" in next(
        arguments for name, arguments in stages()[-1] if name == "COPY" and "/data" in arguments
    )
    assert last["VOLUME"] == "/data" and last["STOPSIGNAL"] == "SIGTERM"
    environment = dict(pair.split("=", 1) for pair in shlex.split(last["ENV"]))
    assert environment["POLYNYA_DATA"] == "/data"
    port = environment["POLYNYA_LISTEN"].split(":")[1]
    assert last["EXPOSE"] == port
    assert json.loads(last["ENTRYPOINT"]) == ["polynya"] and json.loads(last["CMD"]) == ["serve"]
    assert not [
        arguments
        for name, arguments in instructions()
        if name == "ADD" or "unsafe" in arguments.lower()
    ]


@pytest.mark.process
def test_the_container_is_built_of_what_it_copies(tmp_path: Path) -> None:
    sources = [
        word for name, arguments in stages()[0] if name == "COPY" for word in arguments.split()[:-1]
    ]
    let_in = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert set(sources) == let_in
    for source in sources:
        if (ROOT / source).is_dir():  # without what Python writes there meanwhile
            shutil.copytree(
                ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / source, tmp_path / source)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "BUILD_COMMIT": "cafe"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(next((tmp_path / "dist").glob("*.whl"))) as wheel:
        assert wheel.read("polynya/commit.txt") == b"cafe\n"


@pytest.mark.process
@pytest.mark.parametrize("flags", [(), ("--tls-self",)], ids=["plain", "tls"])
def test_the_health_check_of_the_container_tells(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Run the very command, against a node and against none."""
    check = json.loads(dict(stages()[-1])["HEALTHCHECK"].split("CMD", 1)[1])
    port = two_free_ports()
    asked = [sys.executable, *check[1:]]
    variables = {**os.environ, "POLYNYA_LISTEN": f"0.0.0.0:{port}"}
    with running_node(tmp_path / "data", "--listen", f"127.0.0.1:{port}", *flags):
        assert subprocess.run(asked, env=variables, timeout=30, check=False).returncode == 0
    assert (
        subprocess.run(
            asked, env=variables, capture_output=True, timeout=30, check=False
        ).returncode
        != 0
    )


@pytest.mark.process
def test_the_unit_is_right_and_hardened(tmp_path: Path) -> None:
    text = UNIT.read_text()
    exits = re.findall(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)[0].split()
    table = (ROOT / "docs" / "operations.md").read_text()
    assert all(f"| {code} |" in table for code in exits)
    command = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)[0].split()
    assert command[1] == "serve"
    assert (
        load({command[2]: command[3]}, environ={}, folder=str(tmp_path)).config.data
        == "/var/lib/polynya"
    )
    analyze = needed_program("systemd-analyze")
    unit = tmp_path / "polynya.service"
    unit.write_text(text.replace(command[0], shutil.which("true") or "/bin/true"))
    verified = subprocess.run(
        [analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    looked = subprocess.run(
        [analyze, "security", "--offline=yes", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", looked.stdout)
    assert exposure, looked.stdout + looked.stderr
    assert float(exposure[1]) <= EXPOSURE_MAX, looked.stdout


@pytest.mark.process
def test_the_two_services_of_the_compose_file_work_together(tmp_path: Path) -> None:
    """Run both commands with their environments, on this machine instead of in containers."""
    services = yaml.safe_load((PACKAGING / "compose" / "compose.yaml").read_text())["services"]
    assert services["polynya"]["ports"] == ["127.0.0.1:4437:4437"], (
        "published beyond this machine without access control"
    )
    assert (
        (
            PACKAGING
            / "compose"
            / services["polynya"]["build"]["context"]
            / services["polynya"]["build"]["dockerfile"]
        )
        .resolve()
        .exists()
    )
    settings = services["polynya"]["environment"]
    bucket = load({}, environ=settings, folder=str(tmp_path)).config.cold.s3_bucket
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    endpoint = f"http://127.0.0.1:{ports['s3.port']}"
    assert settings["POLYNYA_COLD_S3_ENDPOINT"] == "http://objects:8333"
    objects = services["objects"]
    words = (
        objects["command"]
        .replace("/data", str(tmp_path / "objects"))
        .replace("-ip=objects", "-ip=127.0.0.1")
        .replace("0.0.0.0", "127.0.0.1")
        .split()
    )  # noqa: S104
    assert "-s3.port=8333" in words
    words.remove("-s3.port=8333")
    (tmp_path / "objects").mkdir()
    log = tmp_path / "log"
    try:
        command = [
            weed(),
            *words,
            "-metricsPort=0",
            *(f"-{name}={port}" for name, port in ports.items()),
        ]
    except CannotStart as reason:
        missing(f"no S3 server: {reason}")
    variables = {**os.environ, **objects["environment"]}
    with log.open("wb") as out:
        store = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=tmp_path,
            start_new_session=True,
        )
    try:
        wait_ready(store, endpoint, log, str(bucket))
        assert httpx.get(f"{endpoint}/{bucket}", timeout=60).status_code == 403, (
            "a stranger may read the store"
        )
        with (
            running_node(
                tmp_path / "node", **(settings | {"POLYNYA_COLD_S3_ENDPOINT": endpoint})
            ) as node,
            httpx.Client(base_url=node.url, timeout=60) as web,
        ):
            kind = {"Content-Type": "application/json"}
            assert web.put("/v1/stream/orders", headers=kind).status_code == 201
            assert web.post("/v1/stream/orders", headers=kind, content=b"[1,2]").status_code == 204
            assert httpx.post(f"{node.admin}/v1/admin/flush", timeout=60).status_code == 200
            assert web.get("/v1/stream/orders").json() == [1, 2]
            assert web.get("/v1/node").json()["objects"] == "s3"
        check = objects["healthcheck"]["test"][1].replace("http://objects:8333", endpoint)
        assert (
            needed_program("wget")
            and subprocess.run(["sh", "-c", check], timeout=30, check=False).returncode == 0
        )
    finally:
        stop(store)
