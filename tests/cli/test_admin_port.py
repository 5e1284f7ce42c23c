"""Discovery of the admin port of a node whose HTTP port is public."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from scripted_server import Scripted, scripted

from polynya.cli.remote.client import Client
from polynya.cli.terminal import exits


@pytest.fixture
def node() -> Iterator[Scripted]:
    """Run a node with its base port, its admin port, and `127.1`, a local address that no loopback
    list contains."""
    with scripted() as server:
        port = int(server.url.rpartition(":")[2])
        server.answers = [node_answer("it", port)]
        server.url = f"http://127.1:{port}"
        yield server


def node_answer(start: str, port: int) -> tuple[int, dict[str, str], bytes]:
    return (
        200,
        {},
        json.dumps(
            {"start": start, "ports": {"admin": port}, "admin_tls": False, "admin_near": True}
        ).encode(),
    )


def test_an_admin_port_that_is_open_on_its_machine_alone_is_found_there(node: Scripted) -> None:
    with Client(node.url, token="secret") as client, client.admin() as admin:
        assert admin.server == f"http://127.0.0.1:{node.url.rpartition(':')[2]}"
    assert ["authorization" in each.headers for each in node.said] == [True, False], (
        "who answers there is not known yet"
    )


def test_no_token_goes_to_an_admin_port_that_is_open_on_another_machine_alone(
    node: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    port = int(node.url.rpartition(":")[2])
    node.answers = [node_answer("it", port), node_answer("another", port)]
    with Client(node.url, token="secret") as client:
        capsys.readouterr()
        with pytest.raises(exits.Refused, match="only on its own machine"):
            client.admin()
    assert "unencrypted" not in capsys.readouterr().err
    assert ["authorization" in each.headers for each in node.said] == [True, False]
