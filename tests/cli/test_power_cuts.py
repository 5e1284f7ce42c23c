"""A power cut right after a small file was written leaves it whole; what earlier releases left
empty is written again, or explained."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from worlds.power_cut import PowerCut

from polynya.access.token_file import TokenFile, Wanted
from polynya.base.errors import ConfigError
from polynya.cli.app import cli
from polynya.cli.cluster.dev import (
    _config,
    _laid_out,
    _lay_out,
    lay_out_joining,
    next_dev_node,
)
from polynya.cli.cluster.dev_folder import Laid
from polynya.cli.cluster.dev_nodes import DevNode
from polynya.cli.remote.targets import Context, Contexts, load_contexts, save_contexts
from polynya.cli.terminal import exits
from polynya.cluster.certificates import peer_tls_of
from polynya.config.cluster_settings import ClusterConfig, parse_nodes
from polynya.config.loading import load
from polynya.config.model import Config
from polynya.config.node_identity import identity_of
from polynya.config.sections import TlsConfig
from polynya.config.settings import SETTINGS
from polynya.config.tls import prepare

VALUES: dict[str, str | None] = dict.fromkeys(setting.key.replace(".", "_") for setting in SETTINGS)
LAID = Laid(1, [], 3, objects=True)


def nodes_of(folder: Path, count: int = 3, *, reader: int = 0) -> list[DevNode]:
    return [
        DevNode(
            number,
            folder / f"node-{number}",
            "127.0.0.1",
            5000 + 10 * number,
            reader=number == reader,
        )
        for number in range(1, count + 1)
    ]


def born(folder: Path, nodes: list[DevNode]) -> str:
    """Lay out a cluster and give each node its identity; the cluster's id."""
    _lay_out(nodes, folder, LAID, VALUES)
    for node in nodes:
        identity_of(_config(node, VALUES))
    return (folder / "cluster.id").read_text()


def test_a_cluster_that_was_just_laid_out_is_there_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = PowerCut(tmp_path, monkeypatch)
    folder = tmp_path / "new" / "c"
    nodes = nodes_of(folder)
    known = born(folder, nodes)
    cut.happen()
    assert (folder / "cluster.id").read_text() == known
    for node in nodes:
        assert _config(node, VALUES).cluster.id == known.strip()
        assert "polynya serve" in (node.folder / "start.sh").read_text()
        assert identity_of(_config(node, VALUES)).cluster_id == known.strip()
    lay_out_joining(folder, next_dev_node(folder, 4))
    cut.happen()
    assert load({}, environ={}, path=str(folder / "node-4" / "polynya.toml")).config.cluster.join


@pytest.mark.parametrize("content", ["", "\0" * 33, "51b1b00aa88bc"])
def test_a_torn_id_is_written_again_from_the_nodes_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    nodes = nodes_of(tmp_path)
    known = born(tmp_path, nodes)
    (tmp_path / "cluster.id").write_text(content)
    _lay_out(nodes, tmp_path, LAID, VALUES)
    assert (tmp_path / "cluster.id").read_text() == known
    assert (
        "is empty or damaged, as after a power cut: rewritten with the id in the nodes' data"
        in capsys.readouterr().err
    )
    (tmp_path / "cluster.id").write_text(content)
    for node in nodes:
        (node.folder / "node.json").write_text("")
    with pytest.raises(exits.Refused, match=r"node\.json is unreadable") as refused:
        _lay_out(nodes, tmp_path, LAID, VALUES)
    assert "from a copy. A new id would not match the data" in refused.value.hint
    assert (tmp_path / "cluster.id").read_text() == content


def test_torn_settings_of_nodes_are_written_again_with_their_roles(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, 4, reader=4)
    born(tmp_path, nodes)
    lay_out_joining(tmp_path, next_dev_node(tmp_path, 5))
    five = DevNode(5, tmp_path / "node-5", "127.0.0.1", 5050, joins=True)
    identity_of(_config(five, VALUES))
    for number in (4, 5):
        (tmp_path / f"node-{number}" / "polynya.toml").write_text("")
        (tmp_path / f"node-{number}" / "start.sh").write_text("")
    laid = _laid_out(tmp_path, (None, None), VALUES)
    assert [(node.number, node.joins, node.reader) for node in laid] == [
        *[(number, False, False) for number in (1, 2, 3)],
        (4, False, True),
        (5, True, False),
    ]
    for node in nodes:
        (node.folder / "polynya.toml").write_text("")
    assert [node.reader for node in _laid_out(tmp_path, (None, None), VALUES)] == [
        False,
        False,
        False,
        True,
        False,
    ]


def test_a_layout_that_was_interrupted_is_completed(tmp_path: Path) -> None:
    """No node has data: nothing is refused, and no node is made to be another one's."""
    _lay_out(nodes_of(tmp_path, 4, reader=4), tmp_path, LAID, VALUES)
    for number in (2, 4):
        (tmp_path / f"node-{number}" / "polynya.toml").write_text("")
    laid = _laid_out(tmp_path, (None, None), VALUES)
    assert [(node.number, node.reader) for node in laid] == [
        (1, False),
        (2, False),
        (3, False),
        (4, True),
    ]
    for number in (1, 3):
        (tmp_path / f"node-{number}" / "polynya.toml").write_text("")
    assert [node.number for node in _laid_out(tmp_path, (5, 0), VALUES)] == [1, 2, 3, 4, 5]


def test_a_node_more_of_a_cluster_whose_note_is_empty_says_what_writes_it_again(
    tmp_path: Path,
) -> None:
    born(tmp_path, nodes_of(tmp_path))
    (tmp_path / "cluster.json").write_text("")
    with pytest.raises(exits.Refused, match=r"cluster\.json is empty or damaged") as refused:
        lay_out_joining(tmp_path, next_dev_node(tmp_path, 4))
    assert f"start it again with 'polynya cluster dev --data {tmp_path}'" in refused.value.hint


def test_an_empty_file_of_settings_starts_no_other_node(tmp_path: Path) -> None:
    (tmp_path / "polynya.toml").write_text("\n")
    shown = CliRunner().invoke(
        cli, ["serve", "--config", str(tmp_path / "polynya.toml"), "--show-config"]
    )
    assert shown.exit_code == exits.USAGE and "it is empty, as after a power cut" in shown.output


def test_an_id_that_is_none_is_not_replaced_by_a_random_one() -> None:
    with pytest.raises(
        ConfigError, match=r"of a cluster with data, the cluster_id in node.json of any data folder"
    ):
        load({"--cluster-id": ""}, environ={})


def test_certificates_tokens_and_contexts_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = PowerCut(tmp_path, monkeypatch)
    config = Config(data=str(tmp_path / "data"), tls=TlsConfig(self=True))
    made = prepare(config)
    tokens = TokenFile(tmp_path / "data")
    tokens.add(Wanted(name="ops", scopes=["admin"]), 1)
    contexts = Contexts("prod", {"prod": Context("http://h:1")})
    save_contexts(tmp_path / "home" / "config" / "contexts.toml", contexts)
    ca = tmp_path / "ca"
    assert CliRunner().invoke(cli, ["cluster", "ca", str(ca), "--node", "1"]).exit_code == 0
    cut.happen()
    assert [record.name for record in tokens.read()] == ["ops"]
    assert prepare(config) == made, "the same certificate"
    assert load_contexts(tmp_path / "home" / "config" / "contexts.toml") == contexts
    files = {"ca": f"{ca}/ca.crt", "cert": f"{ca}/node-1.crt", "key": f"{ca}/node-1.key"}
    assert (
        peer_tls_of(
            ClusterConfig(id="0" * 32, node=1, nodes=parse_nodes("1=h:1=http://h:2"), **files)
        )
        is not None
    )
