"""The main job on the real input: all answers agree, a second run stores nothing twice, and a wrong
record is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from product import polynya, running_node

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(1800)]


def test_the_demo_agrees_with_itself_and_can_be_run_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ["demo", "--data", str(data), "--listen", "127.0.0.1:0"]
    first = polynya(*options, seconds=550)
    assert (
        first.code == 0
        and "336,776 events appended" in first.err
        and "a Kafka client writes those of B6" in first.err
        and "all 6 results agree" in first.err
    ), first
    assert "UA       United Air Lines Inc.         58,665" in first.out

    second = polynya(*options, seconds=550)
    assert (
        second.code == 0
        and "336,776 were already stored" in second.err
        and "nothing new" in second.err
    ), second
    assert second.out == first.out

    with running_node(data) as node:
        assert (
            polynya(
                "append", "flights/OO", '{"carrier": "OO", "arr_delay": 1}', server=node.url
            ).code
            == 0
        )
    third = polynya(*options, seconds=550)
    assert third.code == 1 and "flights/OO holds records that are not the demo's" in third.err, (
        third
    )
