"""Settings of `cluster dev` from flags or the environment: the addresses of each node, and a
start.sh that restarts a node unchanged."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_dev_store import plain_values

from polynya.cli.app import cli
from polynya.cli.cluster.dev import _config, _flags, _lay_out, lay_out_joining, next_dev_node
from polynya.cli.cluster.dev_folder import Laid
from polynya.cli.cluster.dev_nodes import DevNode, kept_environment
from polynya.cli.cluster.dev_ports import with_addresses
from polynya.cli.terminal import exits
from polynya.config.model import Config


def nodes_in(folder: Path, count: int = 3) -> list[DevNode]:
    return [
        DevNode(number, folder / f"node-{number}", "127.0.0.1", 5000 + 10 * number)
        for number in range(1, count + 1)
    ]


def listen_addresses(config: Config) -> tuple[str | None, int | None, str, str, str]:
    kafka = config.kafka
    return (
        *(kafka.listen, kafka.direct, kafka.advertised),
        *(config.text_listen, config.admin_listen),
    )


def test_each_node_gets_its_own_port_of_every_address(tmp_path: Path) -> None:
    environment = {"POLYNYA_KAFKA_LISTEN": "127.0.0.1:19092", "POLYNYA_TEXT_LISTEN": "[::1]:7000"}
    flags = {"kafka_direct": "20000", "kafka_advertised": "kafka.example:9092"}
    values = with_addresses(plain_values(**flags, admin_listen="127.0.0.1:8000"), environment)
    nodes = nodes_in(tmp_path)
    _lay_out(nodes, tmp_path, Laid(1, _flags(values), 3, objects=True), values)
    assert [listen_addresses(_config(node, values)) for node in nodes] == [
        ("127.0.0.1:19092", 20000, "kafka.example:9092", "[::1]:7000", "127.0.0.1:8000"),
        ("127.0.0.1:19102", 20010, "kafka.example:9102", "[::1]:7010", "127.0.0.1:8010"),
        ("127.0.0.1:19112", 20020, "kafka.example:9112", "[::1]:7020", "127.0.0.1:8020"),
    ]
    lay_out_joining(tmp_path, added := next_dev_node(tmp_path, None))
    for node in (*nodes, added):
        script = (node.folder / "start.sh").read_text()
        assert f"--kafka-listen=127.0.0.1:{19082 + 10 * node.number}" in script
        assert "[kafka]" not in (node.folder / "polynya.toml").read_text()


@pytest.mark.parametrize("listen", ["off", "127.0.0.1:0"])
def test_no_port_and_a_free_port_are_the_same_for_all(tmp_path: Path, listen: str) -> None:
    values = plain_values(kafka_listen=listen)
    nodes = nodes_in(tmp_path)
    _lay_out(nodes, tmp_path, Laid(1, _flags(values), 3, objects=True), values)
    assert {_config(node, values).kafka.listen for node in nodes} == {listen}
    assert all(
        f"--kafka-listen={listen}" in (each.folder / "start.sh").read_text() for each in nodes
    )


def test_ports_that_the_last_node_cannot_have_are_refused(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "c"), "--listen", "127.0.0.1:0")
    wrong = ("cluster", "dev", *data, "--kafka-listen", "127.0.0.1:65520")
    refused = CliRunner().invoke(cli, wrong)
    assert refused.exit_code == exits.USAGE, refused.output
    assert "kafka.listen 127.0.0.1:65520: each node gets a port 10 above" in refused.output
    assert not list((tmp_path / "c").glob("node-*"))


@pytest.mark.process
def test_start_sh_starts_a_node_with_the_variables_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printer = tmp_path / "python"
    printer.write_text("#!/bin/sh\nenv\n")
    printer.chmod(0o700)
    monkeypatch.setattr("polynya.cli.cluster.dev_nodes.sys.executable", str(printer))
    for name in [name for name in os.environ if name.startswith(("POLYNYA_", "AWS_"))]:
        monkeypatch.delenv(name)
    secret = "it's $HOME `id`\n two"
    had = {
        "POLYNYA_COLD_S3_SECRET_ACCESS_KEY": secret,
        "POLYNYA_COLD_S3_ACCESS_KEY_ID": "id",
        "AWS_REGION": "here",
    }
    others = {"POLYNYA_TOKEN": "client", "POLYNYA_DATA": "/elsewhere", "POLYNYA_CLUSTER_NODE": "9"}
    for name, text in {**had, **others}.items():
        monkeypatch.setenv(name, text)
    node = nodes_in(tmp_path, 1)[0]
    _lay_out([node], tmp_path, Laid(1, [], 1, False, None, kept_environment()), plain_values())
    script = node.folder / "start.sh"
    assert script.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "cluster.json").stat().st_mode & 0o777 == 0o600
    shell = {"PATH": os.environ["PATH"], "POLYNYA_CORES": "7", "AWS_REGION": "there", "KEPT": "1"}
    output = subprocess.run([script], env=shell, capture_output=True, text=True, check=True).stdout
    assert "POLYNYA_COLD_S3_SECRET_ACCESS_KEY=it's $HOME `id`\n two\n" in output
    found = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    names = {name for name in found if name.startswith(("POLYNYA_", "AWS_"))}
    assert (names, found["AWS_REGION"], found["KEPT"]) == (set(had), "here", "1")
