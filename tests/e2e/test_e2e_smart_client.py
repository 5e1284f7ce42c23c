"""A client that routes itself to the owner, which dies: no loss, no duplicates."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from polling import wait_until
from product import environment
from worlds.dev_cluster import dev_cluster
from worlds.real_cluster import names_by_leader

from polynya.client import START, Client

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
COUNT = 400


def test_the_owner_dies_under_a_producer_a_reader_and_the_command_line(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--cores", "1") as cluster:
        one = cluster.urls[0]
        name = names_by_leader(cluster)[2]
        with Client(one) as client:  # one node alone is named: the others are learned
            stream = client.stream(name)
            stream.create()
            stream.append(-1)
            ways = partial(client._wire.router.ways, f"/v1/stream/{name}", 0.0)
            wait_until(
                lambda: not stream.head().closed and ways()[0] == cluster.urls[1],
                what="the owner to be asked",
            )
            with stream.producer("p") as producer:
                receipts = [producer.append(number) for number in range(COUNT // 2)]
                receipts[0].result(30)
                cluster.kill(2)
                receipts += [producer.append(number) for number in range(COUNT // 2, COUNT)]
                for receipt in receipts:
                    receipt.result(60)
            assert [record.value for record in stream.read()] == [-1, *range(COUNT)]
            with stream.tail(START) as tail:
                assert [next(tail).value for _ in range(COUNT + 1)] == [-1, *range(COUNT)]
            assert cluster.urls[1] not in ways()[:1]
            cluster.start(2)
            cluster.wait_until_well(1)
            line = subprocess.Popen(
                [sys.executable, "-m", "polynya", "append", name, "--server", f"{cluster.urls[2]},{one}"],
                stdin=subprocess.PIPE, env=environment(), text=True,
            )  # fmt: skip
            assert line.stdin is not None
            line.stdin.write("".join(f"{number}\n" for number in range(COUNT, COUNT + 10)))
            line.stdin.flush()
            wait_until(
                lambda: stream.head().offset.startswith(f"{COUNT + 11:016d}"),
                what="the first lines to be stored",
            )
            cluster.kill(3)
            line.stdin.write("".join(f"{number}\n" for number in range(COUNT + 10, COUNT + 20)))
            line.stdin.close()
            assert line.wait(60) == 0
            assert [record.value for record in stream.read()] == [-1, *range(COUNT + 20)]
