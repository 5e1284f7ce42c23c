"""Discovery of the cluster by a node without data."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import msgspec
import pytest
from free_ports import free_ports
from worlds.cluster_peer import cluster_peer
from worlds.cluster_settings import ID, loaded

from polynya.base.errors import ConfigError
from polynya.cluster import discovery
from polynya.cluster.discovery import ask_others, begun_anew, differs, is_other, learn
from polynya.config.model import Config
from polynya.config.node_identity import (
    FILE,
    DiscoveredCluster,
    NodeIdentity,
    identity_of,
    journal_id_of,
)
from polynya.objectstore import StoreSettings, claim_root, open_store
from polynya.raft import EntryKind
from polynya.wal import Journal


def config_of(tmp_path: Path, port: int, **flags: str) -> Config:
    (tmp_path / "data").mkdir(exist_ok=True)
    nodes = (
        f"1=127.0.0.1:{free_ports(1)[0]}=http://127.0.0.1:8,2=127.0.0.1:{port}=http://127.0.0.1:9"
    )
    return loaded(tmp_path, cluster_nodes=nodes, **flags).config


def test_history_and_groups_are_those_of_the_cluster_and_nobody_is_alarmed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_ports(1)[0]
    config = config_of(tmp_path, port)
    assert asyncio.run(learn(config)) == DiscoveredCluster()  # no peer is up
    with (
        cluster_peer(tmp_path / "peer", port, cluster=ID, history=7, groups=6),
        caplog.at_level(logging.INFO),
    ):
        learned = asyncio.run(learn(config))
    assert learned == DiscoveredCluster(7, 6)
    assert not [record for record in caplog.records if record.getMessage() == "a node was refused"]
    identity = identity_of(config, learned)
    assert (identity.history, identity.groups, identity.provisional) == (7, 6, True)
    assert identity_of(config, DiscoveredCluster(9, 9)) == identity  # what is there is what it is


def test_what_the_settings_say_is_not_learned(tmp_path: Path) -> None:
    config = config_of(tmp_path, 1, groups="8", cluster_history="9")
    assert (made := identity_of(config, DiscoveredCluster(7, 6))).history == 9 and made.groups == 8


def test_a_number_that_was_removed_begins_no_folder(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    config = config_of(tmp_path, port)
    with cluster_peer(tmp_path / "peer", port, cluster=ID, history=7, removed=12):
        learned = asyncio.run(learn(config))
    assert learned.removed_by == 2
    with pytest.raises(
        ConfigError,
        match=r"number 1 was removed from the cluster, as node 2 reports, .*under a new number",
    ):
        identity_of(config, learned)
    assert not list((tmp_path / "data").iterdir())


def test_nothing_is_learned_of_strangers(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    config = config_of(tmp_path, port)
    with cluster_peer(tmp_path / "peer", port, cluster="f" * 32, history=7):
        assert asyncio.run(ask_others(config, config.cluster.others)) == {}
    with cluster_peer(tmp_path / "peer", port, cluster=ID, history=7, node=3):
        assert asyncio.run(learn(config)) == DiscoveredCluster()


def test_the_object_store_knows_the_history_too(tmp_path: Path) -> None:
    config = config_of(tmp_path, 1, cold_backend="local", cold_root=str(tmp_path / "objects"))

    async def claimed(cluster: str) -> None:
        store = open_store(StoreSettings(backend="local", root=str(tmp_path / "objects")))
        assert store is not None
        await claim_root(store, cluster, 12, "")
        await store.close()

    asyncio.run(claimed(ID))
    assert asyncio.run(learn(config)) == DiscoveredCluster(12, 0)
    assert (
        asyncio.run(
            learn(
                msgspec.structs.replace(
                    config, cluster=msgspec.structs.replace(config.cluster, id="f" * 32)
                )
            )
        )
        == DiscoveredCluster()
    )


def test_who_was_heard_is_not_asked_again_and_who_is_elsewhere_is_told_apart(
    tmp_path: Path,
) -> None:
    port = free_ports(1)[0]
    config = config_of(tmp_path, port)
    identity = identity_of(config)
    unheard = {2}
    assert not asyncio.run(differs(config, identity, unheard)) and unheard == {2}
    with cluster_peer(tmp_path / "peer", port, cluster=ID, history=1, groups=identity.groups):
        assert not asyncio.run(differs(config, identity, unheard)) and unheard == set()
    with cluster_peer(tmp_path / "peer", port, cluster=ID, history=2, groups=identity.groups):
        assert not asyncio.run(differs(config, identity, unheard))  # no peer is left to ask
        assert asyncio.run(differs(config, identity, {2}))


def test_another_number_of_groups_is_another_cluster_only_where_the_settings_leave_it_open(
    tmp_path: Path,
) -> None:
    identity = NodeIdentity(cluster_id=ID, groups=16, cores=1, created_ms=1, history=3)
    left_open, said = config_of(tmp_path, 1), config_of(tmp_path, 1, groups="16")
    assert is_other(left_open, identity, DiscoveredCluster(3, 8)) and not is_other(
        said, identity, DiscoveredCluster(3, 8)
    )
    assert (
        is_other(said, identity, DiscoveredCluster(4, 8))
        and not is_other(left_open, identity, DiscoveredCluster(2, 8))
        and not is_other(left_open, identity, DiscoveredCluster())
    )


def test_a_folder_with_an_entry_of_a_log_is_never_begun_anew(tmp_path: Path) -> None:
    identity = NodeIdentity(cluster_id=ID, groups=4, cores=2, created_ms=1, provisional=True)
    for entries in (False, True):
        journal = Journal.open(tmp_path / "core-1" / "journal", journal_id=journal_id_of(ID, 1))
        journal.stage(3, 1, 0, EntryKind.HARD_STATE, b"f")
        if entries:
            journal.stage(3, 1, 1, EntryKind.NOOP, b"")
        batch = journal.take()
        assert batch is not None
        journal.write(batch)
        journal.close()
        assert begun_anew(tmp_path, identity) is not entries
        assert (tmp_path / "core-1").exists() is entries


def test_the_file_says_what_is_provisional(tmp_path: Path) -> None:
    identity_of(config_of(tmp_path, 1))
    assert json.loads((tmp_path / "data" / FILE).read_bytes())["provisional"] is True
    assert discovery.settled(identity_of(config_of(tmp_path, 1))).provisional is False
