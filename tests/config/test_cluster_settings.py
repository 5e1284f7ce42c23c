"""Settings of a cluster: read from tables, checked together, and remembered by the data folder."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest
from worlds.cluster_settings import ID, TWO, loaded

from polynya.base.errors import ConfigError
from polynya.cluster.map_cache import cluster_born, initial_map
from polynya.config.cluster_settings import ClusterNode, parse_nodes
from polynya.config.loading import load
from polynya.config.node_identity import identity_of
from polynya.recovery.restore import RestoreOrigin, RestoreTarget, open_shared
from polynya.stream.machine import Machine


def refusal(tmp_path: Path, **flags: str) -> str:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, **flags)
    return str(refused.value)


def test_nodes_are_tables_in_the_file_and_a_list_elsewhere(tmp_path):
    file = tmp_path / "polynya.toml"
    file.write_text(
        f"""
[cluster]
id = "{ID.upper()}"
node = 2

[[cluster.nodes]]  # the first
id = 1
peer = "127.0.0.1:5002"
http = "http://127.0.0.1:5000/"

[[cluster.nodes]]
id = 2
peer = "[::1]:5012"
http = "https://[::1]:5010"
role = "voter"

[cold]
backend = "none"
"""
    )
    made = load({}, environ={}, path=str(file))
    cluster = made.config.cluster
    assert cluster.id == ID and cluster.is_on
    assert cluster.own == ClusterNode(2, "[::1]:5012", "https://[::1]:5010") and cluster.others == [
        ClusterNode(1, "127.0.0.1:5002", "http://127.0.0.1:5000")
    ]
    assert cluster.listen_address == ("::1", 5012)
    assert made.origins["cluster.nodes"] == f"{file}:6: cluster.nodes"
    assert parse_nodes(",".join(map(str, cluster.nodes))) == cluster.nodes


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("per = 'x:1'", "cluster.nodes: node 1: per: unknown; did you mean peer?"),
        ("", "node 1: peer is missing"),
        (
            "peer = 'h:1'\nid = 4\nlisten = 'h:2'",
            "node 4: listen: unknown; a node has id, peer, http, zone, role, and settings",
        ),
        ("peer = 'nowhere'", "'nowhere': expected the HOST:PORT of its peer port"),
        ("peer = 'h:1'\nid = 251", "'251': a node's id is a number from 1 to 250"),
        ("peer = 'a=b:1'", "no value has ',' or '=' in it"),
    ],
)
def test_a_table_that_is_wrong_is_named(tmp_path, line, said):
    file = tmp_path / "polynya.toml"
    number = "" if "id" in line else "id = 1\n"
    file.write_text(f"[[cluster.nodes]]\n{number}http = 'http://h:1'\n{line}\n")
    with pytest.raises(ConfigError) as refused:
        load({}, environ={}, path=str(file))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"cluster_id": "orders"}, "expected 32 hexadecimal digits, the same on every node"),
        ({"cluster_id": "-"}, "go together; not set: cluster.id"),
        (
            {
                "cluster_id": "-",
                "cluster_node": "-",
                "cluster_nodes": "-",
                "cluster_listen": "127.0.0.1:1",
            },
            "there is no cluster",
        ),
        ({"cluster_node": "3"}, "cluster.node (--cluster-node): 3 is not in cluster.nodes"),
        ({"cluster_nodes": TWO.replace("2=127", "1=127")}, "two nodes have the id 1"),
        ({"cluster_nodes": TWO.replace("5012", "5002")}, "two nodes have the peer 127.0.0.1:5002"),
        (
            {"cluster_nodes": TWO.replace("5012", "5000")},
            "the peer port of node 2, 127.0.0.1:5000, is also the http address of node 1",
        ),
        (
            {"cluster_nodes": TWO.replace("http://127.0.0.1:5010", "ftp://x")},
            "expected the URL that clients reach it at",
        ),
        (
            {"cluster_nodes": TWO.replace("http://127.0.0.1:5010", "http://h:99999")},
            "expected the URL that clients reach it at",
        ),
        (
            {"cluster_nodes": TWO.replace("http://127.0.0.1:5010", 'http://h"x:1')},
            "expected the URL that clients reach it at",
        ),
        ({"cluster_nodes": "1=127.0.0.1:5002"}, "expected ID=HOST:PORT=URL"),
        ({"cluster_ca": "ca.crt"}, "cluster.ca, cluster.cert and cluster.key go together"),
        (
            {"cluster_listen": "0.0.0.0:5002"},
            "the peer port on 0.0.0.0 is reachable from other machines",
        ),
        ({"cold_backend": "local"}, "share one object store"),
        ({"cold_backend": "memory"}, "share one object store"),
        ({"cluster_replicas": "4"}, "4: expected 1, 3 or 5"),
        (
            {"cluster_nodes": "1=127.0.0.1:5002=http://127.0.0.1:5000", "cluster_join": "true"},
            "name nodes of the cluster to be joined",
        ),
        ({"cluster_nodes": TWO + "=a b"}, "a zone's name has letters, digits"),
        (
            {"cluster_nodes": TWO + "=a=leader"},
            "'leader': a node's role is reader (a read replica) or voter",
        ),
        (
            {"cluster_nodes": TWO.replace(",", "==reader,") + "==reader"},
            "all of them are read replicas",
        ),
    ],
)
def test_what_does_not_go_together_is_said(tmp_path, flags, said):
    assert said in refusal(tmp_path, **flags)


def test_beyond_loopback_certificates_or_a_word_are_needed(tmp_path):
    assert loaded(tmp_path).config.unsafe == []
    named = loaded(tmp_path, cluster_listen="0.0.0.0:5002", cluster_unsafe_no_tls="true").config
    assert any(
        "anybody who reaches the peer port 0.0.0.0:5002 may read and write all" in line
        for line in named.unsafe
    )
    proven = loaded(
        tmp_path, cluster_listen="0.0.0.0:5002", cluster_ca="a", cluster_cert="b", cluster_key="c"
    ).config
    assert proven.unsafe == []


def test_a_data_folder_stays_with_its_cluster_and_its_node(tmp_path):
    (tmp_path / "data").mkdir()
    made = identity_of(loaded(tmp_path).config)
    assert (made.cluster_id, made.node) == (ID, 1)
    assert identity_of(loaded(tmp_path).config) == made
    for flags, said in (
        ({"cluster_node": "2"}, "that of node 1; this is node 2"),
        ({"cluster_id": "f" * 32}, f"belongs to the cluster {ID}"),
        (
            {"cluster_id": "-", "cluster_node": "-", "cluster_nodes": "-"},
            f"node 1 of the cluster {ID}, and cannot be used standalone",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            identity_of(loaded(tmp_path, **flags).config)


def test_who_belongs_is_fixed_by_the_birth_and_not_by_the_list_of_a_later_start(tmp_path):
    (tmp_path / "data").mkdir()
    made = identity_of(loaded(tmp_path, cluster_nodes=TWO.replace(",", "=east,") + "=west").config)
    assert (made.nodes, made.zones, made.replicas) == ((1, 2), ("east", "west"), 3)
    assert (
        identity_of(
            loaded(tmp_path, cluster_nodes=f"{TWO},3=127.0.0.1:5022=http://127.0.0.1:5020").config
        )
        == made
    )


def test_a_node_that_joins_was_not_there_at_the_birth(tmp_path):
    (tmp_path / "data").mkdir()
    config = loaded(tmp_path, cluster_join="true").config
    made = identity_of(config)
    assert made.nodes == () and initial_map(made, config.cluster).members == ()


def test_a_read_replica_is_not_born_with_the_cluster_and_the_others_know_that_it_comes(tmp_path):
    text = f"{TWO}=east=reader"
    nodes = parse_nodes(text)
    assert [node.reader for node in nodes] == [False, True] and ",".join(map(str, nodes)) == text
    assert parse_nodes(f"{TWO}==voter") == parse_nodes(TWO)
    for number, born in (("1", ((1,), (2,))), ("2", ((), ()))):
        (tmp_path / number).mkdir()
        config = loaded(
            tmp_path, cluster_nodes=text, cluster_node=number, data=str(tmp_path / number)
        ).config
        made = identity_of(config)
        assert (made.nodes, made.readers) == born
        assert initial_map(made, config.cluster).members == born[0]


def test_a_restore_gives_a_read_replica_its_identity_and_no_data(tmp_path):
    config = loaded(tmp_path, cluster_nodes=f"{TWO}==reader", cluster_node="2", cores="1").config
    (tmp_path / "data").mkdir()
    with contextlib.ExitStack() as held:
        target = RestoreTarget(config, RestoreOrigin(cluster_id=ID, history=2, groups=4), held)
        target.begin()
        target.write(1, Machine(1, 4))
        target.finish()
    made = identity_of(config)
    assert (made.history, made.nodes, made.groups) == (2, (), 4)
    assert not [path for path in (tmp_path / "data").glob("core-0/snapshots/*") if path.is_file()]


def test_a_restore_that_is_refused_leaves_the_folder_as_it_was(tmp_path):
    (tmp_path / "data").mkdir()
    origin = RestoreOrigin(cluster_id=ID, history=2, groups=4)
    with (
        contextlib.ExitStack() as held,
        pytest.raises(ConfigError, match=r"remove join.*identically in each file"),
    ):
        RestoreTarget(loaded(tmp_path, cluster_join="true").config, origin, held)
    with contextlib.ExitStack() as held:
        # whose object store belongs to somebody, which is seen later
        RestoreTarget(loaded(tmp_path).config, origin, held)
    identity_of(loaded(tmp_path).config)  # a node may start on it


def test_nodes_that_are_restored_together_know_the_same_nodes(tmp_path):
    one = loaded(tmp_path).config
    two = loaded(
        tmp_path, cluster_nodes=f"{TWO},3=127.0.0.1:5022=http://127.0.0.1:5020", cluster_node="2"
    ).config
    with pytest.raises(ConfigError, match=r"1, 2 \(node 1\) and 1, 2, 3 \(node 2\)"):
        open_shared([one, two])


def test_the_first_map_is_the_same_whoever_makes_it(tmp_path):
    (tmp_path / "data").mkdir()
    config = loaded(tmp_path).config
    made = identity_of(config)
    other = msgspec.structs.replace(made, node=2)
    assert cluster_born(made, config.cluster) == cluster_born(other, config.cluster)
    # as a release before placements wrote it
    older = msgspec.structs.replace(made, zones=(), replicas=0)
    assert {
        placement.voters for placement in initial_map(older, config.cluster).groups.values()
    } == {(1, 2)}


def test_the_data_of_a_node_by_itself_does_not_join_a_cluster(tmp_path):
    (tmp_path / "data").mkdir()
    identity_of(loaded(tmp_path, cluster_id="-", cluster_node="-", cluster_nodes="-").config)
    with pytest.raises(ConfigError, match="written by a standalone node"):
        identity_of(loaded(tmp_path).config)
