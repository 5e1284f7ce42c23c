"""`polynya cluster`: what it shows, what it ends with, the certificates that it makes, and what `dev` refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from scripted_server import scripted

from polynya.base.errors import ConfigError
from polynya.cli import exits
from polynya.cli.app import cli
from polynya.cli.cluster_dev import is_running, running_pid
from polynya.node.authority import peer_tls_of
from polynya.node.cluster_settings import ClusterConfig, parse_nodes


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cluster", *arguments])


def said(*problems: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
    nodes = [
        {"id": 1, "http": "http://h:1", "peer": "h:3", "there": True, "release": "9.9", "cores": 2, "leads": 5},
        {"id": 2, "http": "http://h:11", "peer": "h:13", "there": not problems, "release": None, "cores": 0, "leads": 0},
    ]
    groups = [
        {"group": 0, "leader": 1, "term": 3, "commit": 1700, "behind": {"1": 0, "2": 40}},
        {"group": 1, "leader": 0, "term": 4, "commit": 1, "behind": {}},
    ]
    told = {"cluster": "c", "node": 1, "nodes": nodes, "groups": groups, "problems": list(problems), **more}
    return 200, {"content-type": "application/json"}, json.dumps(told).encode()


def test_status_shows_nodes_and_groups():
    with scripted(said("node 2 does not answer")) as server:
        shown = run("status", "--groups", "--server", server.url)
    assert shown.exit_code == 0, shown.output
    assert "   1  http://h:1   there  9.9      2          5" in shown.output
    assert "   2  http://h:11  away" in shown.output
    rows = [line.split() for line in shown.output.splitlines()]
    assert ["0", "1", "3", "1,700", "0", "40"] in rows and ["1", "none", "4", "1"] in rows
    assert "! node 2 does not answer" in shown.output


def test_health_ends_with_what_it_found():
    with scripted(said("node 2 does not answer")) as server:
        sick = run("health", "--server", server.url, "--json")
    assert sick.exit_code == exits.REFUSED
    assert json.loads(sick.stdout) == {"healthy": False, "problems": ["node 2 does not answer"]}
    with scripted(said()) as server:
        well = run("health", "--server", server.url)
    assert (well.exit_code, well.stdout) == (0, "healthy\n")


def test_health_can_wait(monkeypatch):
    monkeypatch.setattr("polynya.cli.cluster.WATCH_SECONDS", 0.0)
    with scripted(said("no leader: group 1"), said("no leader: group 1"), said()) as server:
        watched = run("health", "--watch", "--exit-when-healthy", "--server", server.url)
    assert (watched.exit_code, watched.stdout) == (0, "! no leader: group 1\nhealthy\n")


def test_a_node_by_itself_is_no_cluster():
    with scripted(said(nodes=[])) as server:
        refused = run("status", "--server", server.url)
    assert refused.exit_code == exits.REFUSED and "a node by itself" in refused.output


def test_an_authority_is_made_once_and_certificates_again(tmp_path: Path):
    folder = tmp_path / "ca"
    first = run("ca", str(folder), "--node", "1", "--node", "2")
    assert first.exit_code == 0 and f'cert = "{folder}/node-2.crt"' in first.output
    authority = (folder / "ca.crt").read_bytes()
    assert (folder / "ca.key").stat().st_mode & 0o77 == 0
    again = run("ca", str(folder), "--node", "2", "--node", "3", "--host", "10.0.0.3")
    assert again.exit_code == 0 and (folder / "ca.crt").read_bytes() == authority
    nodes = parse_nodes("2=h:1=http://h:2")
    files = {"ca": f"{folder}/ca.crt", "cert": f"{folder}/node-2.crt", "key": f"{folder}/node-2.key"}
    assert peer_tls_of(ClusterConfig(id="0" * 32, node=2, nodes=nodes, **files)) is not None
    with pytest.raises(ConfigError, match=r"is for node-2\.polynya\.internal; the certificate of this node is for node-1"):
        peer_tls_of(ClusterConfig(id="0" * 32, node=1, nodes=nodes, **files))
    with pytest.raises(ConfigError, match="cannot be used"):
        peer_tls_of(ClusterConfig(id="0" * 32, node=1, nodes=nodes, **{**files, "key": f"{folder}/node-3.key"}))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--cluster-node", "2"), "--cluster-node is chosen here for each node"),
        (("--listen", "127.0.0.1:x"), "--listen: expected HOST:PORT"),
        (("--listen", "127.0.0.1:65520"), "need ports up to 65542"),
    ],
)
def test_dev_refuses_what_cannot_be(tmp_path: Path, flags: tuple[str, ...], said: str):
    refused = run("dev", "--data", str(tmp_path / "c"), *flags)
    assert refused.exit_code == exits.USAGE and said in refused.output


def test_a_pid_file_that_a_killed_node_left_says_nothing(tmp_path: Path):
    (tmp_path / "node.pid").write_text("1\n")
    assert not is_running(tmp_path) and running_pid(tmp_path) is None
    (tmp_path / "node.lock").touch()
    assert not is_running(tmp_path) and running_pid(tmp_path) is None
