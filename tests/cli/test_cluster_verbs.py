"""`polynya cluster`: its output, exit codes, certificates, and the refusals of `dev`."""

from __future__ import annotations

import fcntl
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from free_ports import ports_in_a_row
from scripted_server import DROP, scripted

from polynya.base.errors import ConfigError
from polynya.cli.app import cli
from polynya.cli.cluster.commands import _look_again
from polynya.cli.cluster.dev import (
    _config,
    _free_ports,
    _has_objects,
    _lay_out,
    next_dev_node,
)
from polynya.cli.cluster.dev_folder import Laid
from polynya.cli.cluster.dev_nodes import DevNode, is_running, running_pid
from polynya.cli.terminal import exits
from polynya.cluster.certificates import peer_tls_of
from polynya.config.cluster_settings import ClusterConfig, parse_nodes
from polynya.config.loading import load
from polynya.config.settings import SETTINGS
from polynya.system.free_ports import ephemeral_from


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cluster", *arguments])


def said(*problems: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
    nodes = [
        {
            "id": 1,
            "http": "http://h:1",
            "peer": "h:3",
            "up": True,
            "release": "9.9",
            "cores": 2,
            "leader_of": 5,
        },
        {
            "id": 2,
            "http": "http://h:11",
            "peer": "h:13",
            "up": not problems,
            "release": None,
            "cores": 0,
            "leader_of": 0,
        },
    ]
    groups = [
        {"group": 0, "leader": 1, "term": 3, "commit": 1700, "behind": {"1": 0, "2": 40}},
        {"group": 1, "leader": 0, "term": 4, "commit": 1, "behind": {}},
    ]
    body = {
        "cluster": "c",
        "node": 1,
        "nodes": nodes,
        "groups": groups,
        "problems": list(problems),
        **more,
    }
    return 200, {"content-type": "application/json"}, json.dumps(body).encode()


def test_status_shows_nodes_and_groups():
    with scripted(said("node 2 does not respond")) as server:
        shown = run("status", "--groups", "--server", server.url)
    assert shown.exit_code == 0, shown.output
    assert "   1  http://h:1   up     9.9          2          5" in shown.output
    assert "   2  http://h:11  down" in shown.output
    rows = [line.split() for line in shown.output.splitlines()]
    assert ["0", "1", "3", "1,700", "0", "40"] in rows and ["1", "none", "4", "1"] in rows
    assert "! node 2 does not respond" in shown.output


def test_status_goes_on_while_it_watches_though_the_node_is_away(monkeypatch):
    looks = []
    monkeypatch.setattr("polynya.cli.cluster.commands.WATCH_SECONDS", 0)
    with scripted(
        said("node 2 does not respond"), DROP, DROP, DROP, said(notes=["zone a has most replicas"])
    ) as server:

        def again(client: Any) -> Any:
            if sum(status is not None for status in looks) == 2:
                raise KeyboardInterrupt
            looks.append(look(client))
            return looks[-1]

        look = _look_again
        monkeypatch.setattr("polynya.cli.cluster.commands._look_again", again)
        shown = run("status", "--watch", "--server", server.url)
    assert None in looks
    assert "! node 2 does not respond" in shown.output and "does not respond: " in shown.output
    assert "note: zone a has most replicas" in shown.output


def test_health_ends_with_what_it_found():
    with scripted(said("node 2 does not respond")) as server:
        sick = run("health", "--server", server.url, "--json")
    assert sick.exit_code == exits.REFUSED
    assert json.loads(sick.stdout) == {
        "healthy": False,
        "problems": ["node 2 does not respond"],
        "notes": [],
    }
    with scripted(said(notes=["read replica 4 does not respond"])) as server:
        noted = run("health", "--server", server.url)
    assert (noted.exit_code, noted.stdout) == (
        0,
        "healthy\n",
    ) and noted.stderr == "note: read replica 4 does not respond\n"
    with scripted(said()) as server:
        well = run("health", "--server", server.url)
    assert (well.exit_code, well.stdout) == (0, "healthy\n")


@pytest.mark.parametrize(
    ("status", "healthy", "code", "out"),
    [
        (200, True, 0, "healthy\n"),
        (
            503,
            False,
            exits.REFUSED,
            "! the cluster is not healthy; the server shows the reasons only with an admin token",
        ),
    ],
)
def test_health_without_a_token_says_whether_the_cluster_is_well(status, healthy, code, out):
    with scripted((status, {}, json.dumps({"healthy": healthy}).encode())) as server:
        shown = run("health", "--server", server.url)
    assert shown.exit_code == code and shown.stdout.startswith(out)


def test_health_asks_an_older_release_what_that_knows():
    refused = (
        404,
        {},
        b'{"error": {"code": "NO_ROUTE", "message": "there is nothing at this path"}}',
    )
    with scripted(refused, said("node 2 does not respond")) as server:
        sick = run("health", "--server", server.url)
    assert (sick.exit_code, sick.stdout) == (exits.REFUSED, "! node 2 does not respond\n")
    assert [each.path for each in server.said] == ["/v1/cluster/health", "/v1/cluster"]
    with scripted(refused) as server:
        strange = run("transfer", "1", "--to", "2", "--server", server.url)
    assert "there is nothing at this path" in strange.stderr and "older release" in strange.stderr


def test_health_of_a_node_that_no_cluster_knows_says_so():
    with scripted(said("node 4 has no cluster map yet", nodes=[])) as server:
        refused = run("health", "--server", server.url)
    assert refused.exit_code == exits.REFUSED and "node 4 has no cluster map yet" in refused.output


def test_health_can_wait(monkeypatch):
    monkeypatch.setattr("polynya.cli.cluster.commands.WATCH_SECONDS", 0.0)
    with scripted(said("no leader: group 1"), said("no leader: group 1"), said()) as server:
        watched = run("health", "--watch", "--exit-when-healthy", "--server", server.url)
    assert (watched.exit_code, watched.stdout) == (0, "! no leader: group 1\nhealthy\n")


def test_a_node_by_itself_is_no_cluster():
    with scripted(said(nodes=[])) as server:
        refused = run("status", "--server", server.url)
    assert refused.exit_code == exits.REFUSED and "is a single node" in refused.output


def test_a_node_that_no_cluster_knows_says_so():
    with scripted(said("node 4 has no cluster map yet", nodes=[])) as server:
        refused = run("status", "--server", server.url)
    assert (
        refused.exit_code == exits.REFUSED
        and "node 4 has no cluster map yet" in refused.output
        and "cluster add" in refused.output
    )


def test_an_authority_is_made_once_and_certificates_again(tmp_path: Path):
    folder = tmp_path / "ca"
    first = run("ca", str(folder), "--node", "1", "--node", "2")
    assert first.exit_code == 0 and f'cert = "{folder}/node-2.crt"' in first.output
    authority = (folder / "ca.crt").read_bytes()
    assert (folder / "ca.key").stat().st_mode & 0o77 == 0
    again = run("ca", str(folder), "--node", "2", "--node", "3", "--host", "10.0.0.3")
    assert again.exit_code == 0 and (folder / "ca.crt").read_bytes() == authority
    nodes = parse_nodes("2=h:1=http://h:2")
    files = {
        "ca": f"{folder}/ca.crt",
        "cert": f"{folder}/node-2.crt",
        "key": f"{folder}/node-2.key",
    }
    assert peer_tls_of(ClusterConfig(id="0" * 32, node=2, nodes=nodes, **files)) is not None
    with pytest.raises(
        ConfigError,
        match=r"is for node-2\.polynya\.internal; the certificate of this node is for node-1",
    ):
        peer_tls_of(ClusterConfig(id="0" * 32, node=1, nodes=nodes, **files))
    with pytest.raises(ConfigError, match="cannot be used"):
        peer_tls_of(
            ClusterConfig(
                id="0" * 32, node=1, nodes=nodes, **{**files, "key": f"{folder}/node-3.key"}
            )
        )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--cluster-node", "2"), "--cluster-node is set per node by this command"),
        (("--listen", "127.0.0.1:x"), "--listen: expected HOST:PORT"),
        (("--listen", "127.0.0.1:65520"), "need ports up to 65543"),
        (
            ("--nodes", "3", "--replicas", "5"),
            "--replicas 5: each group needs 5 voting nodes; this cluster has 3",
        ),
        (
            ("--replicas", "5", "--readers", "2"),
            "--replicas 5: each group needs 5 voting nodes; this cluster has 3",
        ),
    ],
)
def test_dev_refuses_what_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], said: str
):
    monkeypatch.setattr(
        "polynya.cli.cluster.dev._lay_out", lambda *_: pytest.fail("it is not refused")
    )
    refused = run("dev", "--data", str(tmp_path / "c"), *flags)
    assert refused.exit_code == exits.USAGE and said in refused.output
    assert not (tmp_path / "c").exists()


def test_dev_leaves_nothing_behind_of_settings_that_a_node_refuses(tmp_path: Path):
    refused = run(
        "dev",
        "--nodes",
        "5",
        "--data",
        str(tmp_path / "c"),
        "--listen",
        "127.0.0.1:0",
        "--cold-backend",
        "foo",
    )
    assert refused.exit_code == exits.USAGE and "'foo': expected one of local, s3" in refused.output
    assert not list(tmp_path.glob("c/node-*"))  # the next start may want another number of nodes


def test_dev_says_that_a_folder_cannot_be_used(tmp_path: Path):
    (tmp_path / "file").touch()
    refused = run("dev", "--data", str(tmp_path / "file"), "--listen", "127.0.0.1:0")
    assert refused.exit_code == exits.REFUSED and "cannot be used: File exists" in refused.output


def test_a_node_more_of_a_development_cluster_is_found_where_it_starts(tmp_path: Path):
    refused = run("add", "--dev", str(tmp_path), "--peer", "h:1")
    assert refused.exit_code == exits.USAGE and "leave out --peer and --http" in refused.output


def test_dev_leaves_a_cluster_that_runs_alone(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("polynya.cli.cluster.dev.LEAVE_SECONDS", 0)
    node = tmp_path / "node-1"
    node.mkdir()
    (node / "polynya.toml").write_text("as it was")
    (node / "node.pid").write_text("4711")
    with (node / "node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = run("dev", "--data", str(tmp_path), "--listen", "127.0.0.1:0")
    assert (
        refused.exit_code == exits.REFUSED
        and "is already running: node 1 (pid 4711)" in refused.output
    )
    assert (node / "polynya.toml").read_text() == "as it was"


def test_dev_lays_out_a_folder_with_any_name(tmp_path: Path):
    folder = tmp_path / 'odd "n\\ame; #'
    node = DevNode(1, folder / "node-1", "127.0.0.1", 5000)
    folder.mkdir()
    values = dict.fromkeys(setting.key.replace(".", "_") for setting in SETTINGS)
    _lay_out([node], folder, Laid(2, [], 3, objects=True), values)
    config = load({}, environ={}, path=str(node.folder / "polynya.toml")).config
    assert (config.data, config.cold.root) == (str(node.folder), str(folder / "objects"))


def view(**more: Any) -> tuple[int, dict[str, str], bytes]:
    """Three nodes and two groups; `more` replaces."""
    nodes = [
        {
            "id": node,
            "http": f"http://h:{node}",
            "state": "active",
            "zone": "",
            "up": True,
            "release": "9",
            "cores": 1,
            "leader_of": 1,
            "replicas": 2,
            "votes": 2,
        }
        for node in (1, 2, 3)
    ]
    groups = [
        {
            "group": group,
            "leader": 1,
            "term": 1,
            "commit": 9,
            "behind": {},
            "voters": [1, 2, 3],
            "goal": [1, 2, 3],
            "first": 1,
        }
        for group in (0, 1)
    ]
    return _json(
        {"epoch": 9, "rebalancing": False, "nodes": nodes, "groups": groups, "problems": [], **more}
    )


def _json(value: Any, status: int = 200) -> tuple[int, dict[str, str], bytes]:
    return status, {"content-type": "application/json"}, json.dumps(value).encode()


def nodes_of(answer: tuple[int, dict[str, str], bytes]) -> list[dict[str, Any]]:
    return json.loads(answer[2])["nodes"]


@pytest.mark.parametrize(
    ("arguments", "path", "body"),
    [
        (("cordon", "3"), "nodes/3/cordon", {}),
        (("uncordon", "3"), "nodes/3/uncordon", {}),
        (("drain", "3"), "nodes/3/drain", {"replicas": False}),
        (("drain", "3", "--replicas"), "nodes/3/drain", {"replicas": True}),
        (("remove", "3"), "nodes/3/remove", {}),
        (("promote", "4"), "nodes/4/promote", {"rebalance": True}),
        (("promote", "4", "--no-rebalance"), "nodes/4/promote", {"rebalance": False}),
        (("move", "7", "--from", "1", "--to", "4"), "groups/7/move", {"from": 1, "to": 4}),
        (("transfer", "7", "--to", "2"), "groups/7/transfer", {"to": 2}),
        (("rebalance", "--replicas", "5"), "rebalance", {"replicas": 5}),
    ],
)
def test_each_act_is_one_request(arguments, path, body):
    with scripted(_json({"epoch": 9})) as server:
        done = run(*arguments, "--server", server.url, "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"epoch": 9, "done": False})
    (said,) = server.said
    assert (said.method, said.path, json.loads(said.body)) == ("POST", f"/v1/cluster/{path}", body)
    assert said.headers["content-type"] == "application/json"


def test_an_act_that_the_admin_port_alone_takes_goes_there():
    elsewhere = _json(
        {"error": {"code": "ADMIN_PORT_ONLY", "message": "elsewhere", "request_id": "r"}}, 403
    )
    with scripted(_json({"epoch": 9})) as admin, scripted(elsewhere) as base:
        port = int(admin.url.rpartition(":")[2])
        base.answers = [
            elsewhere,
            _json(
                {"start": "it", "ports": {"admin": port}, "admin_tls": False, "admin_near": True}
            ),
        ]
        done = run("cordon", "3", "--server", base.url, "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"epoch": 9, "done": False}), (
        done.output
    )
    assert [(each.method, each.path) for each in base.said] == [
        ("POST", "/v1/cluster/nodes/3/cordon"),
        ("GET", "/v1/node"),
    ]
    assert [(each.method, each.path, each.body) for each in admin.said] == [
        ("POST", "/v1/cluster/nodes/3/cordon", b"{}")
    ]


def test_a_refusal_ends_with_one_and_its_reason():
    refusal = {
        "error": {
            "code": "CLUSTER_REFUSED",
            "message": "3 replicas of each group need 3 nodes",
            "request_id": "r",
        }
    }
    with scripted(_json(refusal, 409)) as server:
        refused = run("remove", "3", "--server", server.url)
    assert (
        refused.exit_code == exits.REFUSED
        and "3 replicas of each group need 3 nodes [CLUSTER_REFUSED]" in refused.output
    )


ADDED = {
    "epoch": 9,
    "cluster": "c" * 32,
    "groups": 6,
    "node": {"id": 4, "peer": "127.0.0.1:1", "http": "http://h4", "zone": "z"},
    "peers": [{"id": 1, "peer": "h1:1", "http": "http://h1", "zone": ""}],
}


def test_a_node_that_is_added_gets_settings_that_can_be_read(tmp_path: Path):
    with scripted(_json(ADDED)) as server:
        added = run(
            "add", "--peer", "h4:1", "--http", "http://h4", "--zone", "z", "--server", server.url
        )
    assert (
        added.exit_code == 0
        and "node 4 is a member of the cluster; start it with the settings below" in added.stderr
    )
    sent = {"id": 0, "peer": "h4:1", "http": "http://h4", "zone": "z", "rebalance": True}
    assert json.loads(server.said[0].body) == sent
    file = tmp_path / "polynya.toml"
    file.write_text(added.stdout + '\n[cold]\nbackend = "none"\n')
    config = load({"--cluster-unsafe-no-tls": "true"}, environ={}, path=str(file)).config
    cluster = config.cluster
    assert (
        config.groups == 6
        and cluster.join
        and cluster.own.zone == "z"
        and [node.id for node in cluster.others] == [1]
    )


def test_a_read_replica_is_added_with_its_role_and_waited_for(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("polynya.cli.cluster.wait.LOOK_SECONDS", 0.0)
    reader = {**nodes_of(view())[0], "id": 4, "role": "reader", "replicas": 1, "behind_entries": 0}
    body = {
        **ADDED,
        "node": {**ADDED["node"], "role": "reader"},
        "peers": [{**ADDED["peers"][0], "role": "voter"}],
    }
    views = [
        view(nodes=[reader | more])
        for more in ({"up": False}, {}, {"replicas": 2, "behind_entries": 7}, {"replicas": 2})
    ]
    with scripted(_json(body), *views) as server:
        added = run(
            "add",
            "--reader",
            "--peer",
            "h4:1",
            "--http",
            "http://h4",
            "--wait",
            "--server",
            server.url,
        )
    assert added.exit_code == 0, added.output
    assert json.loads(server.said[0].body) == {
        "id": 0,
        "peer": "h4:1",
        "http": "http://h4",
        "zone": "",
        "rebalance": False,
        "reader": True,
    }
    assert added.stderr.splitlines() == [
        "node 4 is a member of the cluster as a read replica; start it with the settings below",
        "  node 4 is not up yet: start it",
        "  node 4 has 1 of 2 groups",
        "  node 4: 7 entries behind",
        "done",
    ]
    file = tmp_path / "polynya.toml"
    file.write_text(added.stdout + '\n[cold]\nbackend = "none"\n')
    cluster = load({"--cluster-unsafe-no-tls": "true"}, environ={}, path=str(file)).config.cluster
    assert (
        cluster.own.reader
        and cluster.own.zone == "z"
        and [node.id for node in cluster.voting] == [1]
    )


@pytest.mark.parametrize(
    ("releases", "said"),
    [
        (("9", "9", "9"), "feature level 1; it rises to 2 once every node has reported support"),
        (("9", "8", "9"), "an upgrade is under way: releases 8, 9; feature level 1 of 2"),
    ],
)
def test_a_new_cluster_whose_logs_begin_is_not_said_to_be_upgraded(
    releases: tuple[str, ...], said: str
):
    nodes = [
        {**node, "release": release, "level": 2}
        for node, release in zip(nodes_of(view()), releases, strict=True)
    ]
    with scripted(view(level=1, nodes=nodes)) as server:
        shown = run("status", "--server", server.url)
    assert said in shown.output and ("upgrade" in shown.output) == (len(set(releases)) > 1)


def test_status_shows_who_is_a_read_replica():
    nodes = nodes_of(view())
    nodes[1]["role"] = "voter"
    nodes[2]["role"] = "reader"
    with scripted(view(nodes=nodes, notes=["read replica 3 does not respond"])) as server:
        shown = run("status", "--server", server.url)
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert lines[0].startswith("node http role state") and lines[2].startswith("2 http://h:2 up")
    assert (
        lines[3].startswith("3 http://h:3 read replica up")
        and shown.stderr == "note: read replica 3 does not respond\n"
    )


def test_a_replaced_disk_names_who_it_was():
    with scripted(_json(ADDED)) as server:
        replaced = run("replace-disk", "2", "--server", server.url)
    assert (
        replaced.exit_code == 0
        and "node 4 replaces node 2" in replaced.stderr
        and "join = true" in replaced.stdout
    )
    assert json.loads(server.said[0].body) == {
        "id": 0,
        "peer": "",
        "http": "",
        "replaces": 2,
        "rebalance": False,
    }


def test_waiting_shows_what_is_left_and_ends_when_nothing_is(monkeypatch):
    monkeypatch.setattr("polynya.cli.cluster.wait.LOOK_SECONDS", 0.0)
    left = [dict(node, leader_of=2 if node["id"] == 2 else 1) for node in nodes_of(view())]
    none = [dict(node, leader_of=0) for node in nodes_of(view())]
    with scripted(
        _json({"epoch": 9}), view(epoch=8, nodes=none), view(nodes=left), view(nodes=none)
    ) as server:
        done = run("drain", "2", "--wait", "--server", server.url)
    assert done.exit_code == 0, done.output
    assert done.stderr.splitlines() == [
        "node 2 transfers its leaders to other nodes",
        "  node 2: 2 groups led",
        "done",
    ]
    silent = [dict(node, leader_of=0, up=node["id"] != 2) for node in nodes_of(view())]
    leaderless = [dict(group, leader=0) for group in json.loads(view()[2])["groups"]]
    with scripted(
        _json({"epoch": 9}), view(nodes=silent, groups=leaderless), view(nodes=silent)
    ) as server:
        done = run("drain", "2", "--wait", "--server", server.url)
    assert done.stderr.splitlines()[1:] == [
        "  node 2 does not respond and may lead 2 groups",
        "done",
    ]
    gone = [node for node in nodes_of(view()) if node["id"] != 2]
    with scripted(_json({"epoch": 9}), view(), view(nodes=gone)) as server:
        done = run("remove", "2", "--wait", "--server", server.url)
    assert (done.exit_code, "node 2: 2 replicas held" in done.stderr) == (0, True)
    moving = json.loads(view()[2])["groups"]
    moving[1] |= {"goal": [2, 3, 4], "behind": {"4": 1200}}
    with scripted(
        _json({"epoch": 9}),
        view(groups=moving, rebalancing=True),
        view(groups=moving[:1], rebalancing=True),
        view(),
    ) as server:
        done = run("rebalance", "--wait", "--server", server.url)
    assert done.stderr.splitlines()[1:] == [
        "  1 group moving to other nodes",
        "  rebalancing replicas and leaders",
        "done",
    ]
    with scripted(_json({"epoch": 9}), view(groups=moving)) as server:
        late = run(
            "move",
            "1",
            "--from",
            "1",
            "--to",
            "4",
            "--wait",
            "--timeout",
            "0",
            "--server",
            server.url,
        )
    assert (
        late.exit_code == exits.UNREACHABLE
        and "group 1: from node 1 to node 4, 1,200 entries to catch up" in late.stderr
    )


def test_waiting_goes_on_at_another_node_when_the_one_that_was_asked_stops(monkeypatch):
    monkeypatch.setattr("polynya.cli.cluster.wait.LOOK_SECONDS", 0.0)
    gone = [node for node in nodes_of(view()) if node["id"] != 1]
    with scripted(view(nodes=gone)) as other:
        there = [
            dict(node, http=other.url) if node["id"] == 2 else node for node in nodes_of(view())
        ]
        with scripted(_json({"epoch": 9}), view(nodes=there), DROP) as server:
            done = run("remove", "1", "--wait", "--server", server.url)
    assert done.exit_code == 0 and done.stderr.splitlines()[-1] == "done"


def test_ctrl_c_while_waiting_says_that_it_goes_on(monkeypatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("polynya.cli.cluster.wait.time.sleep", interrupt)
    with scripted(_json({"epoch": 9}), view()) as server:
        left = run("remove", "1", "--wait", "--server", server.url)
    assert (
        left.exit_code != 0
        and "stopped waiting: node 1: 2 replicas held. The operation continues" in left.stderr
    )


def test_status_shows_states_zones_and_moves():
    nodes = nodes_of(view())
    nodes[1] |= {"state": "draining", "zone": "b", "up": False}
    groups = json.loads(view()[2])["groups"]
    groups[1]["goal"] = [2, 3, 4]
    with scripted(view(nodes=nodes, groups=groups, rebalancing=True)) as server:
        shown = run("status", "--groups", "--server", server.url).output
    assert "draining, down" in shown, "a server of a release before this one"
    nodes[1] |= {"condition": "drained"}
    with scripted(view(nodes=nodes)) as server:
        assert "drained, down" in run("status", "--server", server.url).output
    assert "moving: group 1 from node 1 to node 4" in shown and "rebalancing replicas" in shown
    assert shown.splitlines()[0].split()[:4] == ["node", "http", "zone", "state"]


def test_a_cluster_is_not_started_on_ports_where_another_one_would_answer_for_it(tmp_path: Path):
    with (
        ports_in_a_row(24) as port,
        socket.create_server(("127.0.0.1", port + 12)),
    ):
        refused = run("dev", "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "c"))
    assert refused.exit_code == exits.REFUSED
    assert (
        f"port {port + 12} of 127.0.0.1, needed by node 2, is used by another process"
        in refused.output
        and "--listen" in refused.output
    )
    assert not (tmp_path / "c").exists()


def test_the_ports_of_a_cluster_are_none_that_a_connection_may_get():
    port = _free_ports("127.0.0.1", 3)
    assert port >= 10_000 and port + 22 < ephemeral_from()


@pytest.fixture
def row() -> Iterator[int]:
    """The first port of five nodes, which no other test gets."""
    with ports_in_a_row(50) as port:
        yield port


def test_a_node_more_listens_where_its_number_has_it_also_when_the_one_before_was_removed(
    tmp_path: Path, row: int
):
    nodes = [
        DevNode(number, tmp_path / f"node-{number}", "127.0.0.1", row + 10 * (number - 1))
        for number in (1, 2, 3, 4)
    ]
    _lay_out(
        nodes,
        tmp_path,
        Laid(1, [], 3, objects=True),
        dict.fromkeys(setting.key.replace(".", "_") for setting in SETTINGS),
    )
    (tmp_path / "node-4" / "removed").touch()
    dev_node = next_dev_node(tmp_path, None)
    assert (dev_node.number, dev_node.port) == (5, row + 40)
    with socket.create_server(("127.0.0.1", row + 41)):
        assert next_dev_node(tmp_path, None).port != row + 40


def test_a_folder_without_a_cluster_gets_no_node(tmp_path: Path):
    refused = run("add", "--dev", str(tmp_path))
    assert (
        refused.exit_code == exits.USAGE
        and "holds no cluster that 'polynya cluster dev' created" in refused.output
    )


def test_a_pid_file_that_a_killed_node_left_says_nothing(tmp_path: Path):
    (tmp_path / "node.pid").write_text("1\n")
    assert not is_running(tmp_path) and running_pid(tmp_path) is None
    (tmp_path / "node.lock").touch()
    assert not is_running(tmp_path) and running_pid(tmp_path) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ca", "{folder}", "--node", "1", "--host", "bad host!"), "nor a host name"),
        (("drain", "1", "--wait", "--timeout", "nan"), "duration"),
    ],
)
def test_values_that_are_none_are_refused(tmp_path: Path, arguments: tuple[str, ...], message: str):
    shown = run(*(each.format(folder=tmp_path) for each in arguments))
    assert shown.exit_code == 2 and message in shown.output


@pytest.mark.parametrize(
    ("flags", "environment", "root"),
    [
        ({}, {}, "FOLDER/objects"),
        ({"cold_backend": "local"}, {}, "FOLDER/objects"),
        ({}, {"COLD_BACKEND": "s3", "COLD_S3_BUCKET": "b"}, ""),
        ({}, {"COLD_BACKEND": "s3", "COLD_S3_BUCKET": "b", "COLD_ROOT": "events"}, "events"),
        ({"cold_backend": "s3", "cold_s3_bucket": "b"}, {}, ""),
        ({"cold_backend": "local"}, {"COLD_BACKEND": "s3"}, "FOLDER/objects"),
        ({}, {"COLD_ROOT": "/elsewhere"}, "/elsewhere"),
    ],
)
def test_where_the_nodes_of_dev_have_their_objects(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: dict[str, str],
    environment: dict[str, str],
    root: str,
) -> None:
    """Keep local folders apart from bucket prefixes, independent of where the bucket is named."""
    for name, text in environment.items():
        monkeypatch.setenv(f"POLYNYA_{name}", text)
    values = dict.fromkeys(setting.key.replace(".", "_") for setting in SETTINGS) | flags
    nodes = [
        DevNode(number, tmp_path / f"node-{number}", "127.0.0.1", 5000 + 10 * number)
        for number in (1, 2)
    ]
    _lay_out(nodes, tmp_path, Laid(1, [], 1, _has_objects(values)), values)
    assert {_config(node, values).store.root for node in nodes} == {
        root.replace("FOLDER", str(tmp_path))
    }


@pytest.mark.parametrize("where", ["flag", "environment"])
def test_a_folder_of_objects_that_each_node_of_dev_would_have_for_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "environment":
        monkeypatch.setenv("POLYNYA_COLD_ROOT", "store")
    refused = run(
        "dev", "--data", str(tmp_path / "c"), *(("--cold-root", "store") if where == "flag" else ())
    )
    assert (
        refused.exit_code == exits.USAGE and "all nodes share one object folder" in refused.output
    ), refused.output
    assert not (tmp_path / "c").exists()


@pytest.mark.process
def test_certificates_are_all_made_though_nobody_reads_what_is_said_of_them(tmp_path: Path) -> None:
    """Close stdout early, as `| head -1` does."""
    nodes = [word for number in range(1, 6) for word in ("--node", str(number))]
    command = subprocess.Popen(
        [sys.executable, "-m", "polynya", "cluster", "ca", str(tmp_path / "ca"), *nodes],
        stdout=subprocess.PIPE,
    )
    assert command.stdout is not None
    command.stdout.close()
    assert command.wait(60) == exits.BROKEN_PIPE
    made = {f"node-{number}.{kind}" for number in range(1, 6) for kind in ("crt", "key")}
    assert {path.name for path in (tmp_path / "ca").iterdir()} == made | {"ca.crt", "ca.key"}
