"""Output of `polynya reduce verify` when there is nothing to verify."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from scripted_server import scripted

from polynya.cli.app import cli

REDUCER = {"name": "carts", "pattern": "carts/*", "builtin": "count", "revision": 1, "faults": []}
NO_STREAMS = (200, {}, json.dumps({"streams": [], "next": ""}).encode())
FACTS = {
    "Stream-Next-Offset": "0000000000000003_0000000000000006",
    "Stream-Retained-Offset": "0000000000000000_0000000000000000",
    "Stream-Incarnation": "7",
    "Content-Type": "application/json",
}
NO_MARKS = [(200, FACTS, b""), (200, {}, b'{"snapshots": []}')]


@pytest.mark.parametrize(
    ("streams", "answers", "said"),
    [
        ([], [NO_STREAMS], ""),
        (["carts/a"], NO_MARKS, "carts/a: no snapshot that can be computed again\n"),
    ],
)
def test_nothing_to_verify_says_what_to_do(
    streams: list[str], answers: list[tuple[int, dict[str, str], bytes]], said: str
) -> None:
    listed = (200, {}, json.dumps({"reducers": [REDUCER]}).encode())
    with scripted(listed, *answers) as server:
        found = CliRunner().invoke(
            cli, ["reduce", "verify", "carts", *streams], env={"POLYNYA_SERVER": server.url}
        )
    assert found.exit_code == 0
    assert found.stderr == said + (
        "nothing to compare: no stream has a snapshot of carts that can be computed again; "
        "'polynya reduce run carts --once' publishes one for each stream with new records\n"
    )
