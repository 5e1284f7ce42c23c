"""The main job on the real input: all answers agree, a second run stores nothing twice, and a wrong
record is noticed. CI takes the first flights, `make long` all."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from product import environment, polynya, running_node

from polynya.cli.demo import flights

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(1800)]


FEW = 20_000
WITH_FEW = f"""
from itertools import islice
from polynya import cli
from polynya.cli.demo import command, flights
rows = flights.rows
flights.rows = lambda: islice(rows(), {FEW})
command.FLIGHTS = {FEW}
cli.main()
"""


def options(data: Path, *flags: str) -> list[str]:
    return ["demo", "--data", str(data), "--listen", "127.0.0.1:0", *flags]


def first_run(data: Path, *flags: str) -> str:
    """Return the printed output of a successful first run."""
    first = polynya(*options(data, *flags), seconds=550)
    assert (
        first.code == 0
        and "336,776 events appended" in first.err
        and "a Kafka client writes those of B6" in first.err
        and "all 6 results agree" in first.err
    ), first
    assert "UA       United Air Lines Inc.         58,665" in first.out
    return first.out


def test_the_demo_agrees_with_itself(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITH_FEW, *options(tmp_path / "data")],
        env=environment(), capture_output=True, text=True, timeout=550, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert f"{FEW:,} events appended" in done.stderr
    assert "a Kafka client writes those of B6" in done.stderr
    assert "all 6 results agree" in done.stderr
    by_airline = Counter(row["carrier"] for row in islice(flights.rows(), FEW))
    assert re.search(rf"UA       United Air Lines Inc\. +{by_airline['UA']:,} ", done.stdout), done


@pytest.mark.long
def test_a_wrong_record_is_noticed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first_run(data)
    with running_node(data) as node:
        assert (
            polynya(
                "append", "flights/OO", '{"carrier": "OO", "arr_delay": 1}', server=node.url
            ).code
            == 0
        )
    again = polynya(*options(data), seconds=550)
    assert again.code == 1 and "flights/OO holds records that are not the demo's" in again.err, (
        again
    )


@pytest.mark.long
def test_the_demo_agrees_on_diskless_streams_in_an_s3_server_and_says_what_they_cost(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    out = first_run(data, "--diskless")
    packs = re.search(r"^.* diskless +(\d+) ", out, re.MULTILINE)
    assert packs and int(packs[1]) > 10, out
    assert "measured  if replicated  if diskless" in out
    again = polynya(*options(data, "--diskless"), seconds=550)
    assert again.code == 0 and "336,776 were already stored" in again.err, again


@pytest.mark.long
def test_the_demo_can_be_run_again_and_stores_nothing_twice(tmp_path: Path) -> None:
    data = tmp_path / "data"
    out = first_run(data)
    second = polynya(*options(data), seconds=550)
    assert (
        second.code == 0
        and "336,776 were already stored" in second.err
        and "nothing new" in second.err
    ), second
    assert second.out == out
