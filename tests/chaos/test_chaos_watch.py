"""The reader of rows of the chaos run reads a real node's records with their numbers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import pytest
from product import running_node

sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos.transaction_watch import TransactionWatch  # noqa: E402  (not a part of the package)

pytestmark = pytest.mark.process


def test_a_page_has_the_number_and_the_value_of_each_record(tmp_path: Path) -> None:
    with running_node(tmp_path / "data") as node:
        for method, body in (("PUT", b""), ("POST", b'[{"n": 1}, {"n": 2}]')):
            urlopen(
                Request(
                    f"{node.url}/v1/stream/rows",
                    data=body,
                    method=method,
                    headers={"Content-Type": "application/json"},
                )
            ).close()
        address = node.url.removeprefix("http://").split(":")
        network = SimpleNamespace(http=lambda number: (address[0], int(address[1])))
        cluster: Any = SimpleNamespace(network=network, numbers=[1])
        watch = TransactionWatch(cluster, seed=0)
        end = asyncio.run(watch._page(1, "rows", 0))
    assert end == 2 and not watch.wrong
    (poll,) = watch.polls
    assert (poll.begin, poll.end, poll.records) == (0, 2, [(0, {"n": 1}), (1, {"n": 2})])
