"""Files of a node that are taken away under it: it says so and ends, and acknowledges nothing that
a start would not find."""

from __future__ import annotations

import json
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from polling import wait_until
from product import CommandProcess, RunningNode, running_node

from polynya.config.core_start import EXIT_CORRUPT

pytestmark = pytest.mark.process


class Writer:
    """A writer that appends one record after the other; `acknowledged` lists the acknowledged
    ones."""

    def __init__(self, node: RunningNode) -> None:
        self._stream = f"{node.url}/v1/stream/kept"
        self._number = 0
        self.acknowledged: list[int] = []
        self._ask("PUT", b"")

    def append(self) -> bool:
        """Append once. False: no response."""
        self._number += 1
        try:
            self._ask("POST", b"%d" % self._number)
        except (OSError, HTTPException):
            return False
        self.acknowledged.append(self._number)
        return True

    def _ask(self, method: str, body: bytes) -> None:
        request = Request(
            self._stream, method=method, data=body, headers={"Content-Type": "application/json"}
        )
        with urlopen(request, timeout=30):
            pass


def written(node: RunningNode) -> Writer:
    writer = Writer(node)
    for _ in range(20):
        assert writer.append()
    return writer


def test_a_node_whose_folder_is_moved_away_ends_and_has_all_when_it_is_put_back(
    tmp_path: Path,
) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with running_node(data, "--cores", "1") as node:
        writer = written(node)
        data.rename(elsewhere)
        wait_until(lambda: not writer.append(), what="the node to notice", pause=0.01)
        assert node.wait() == EXIT_CORRUPT
        assert "its directory was moved, unmounted" in "".join(node.log)
    elsewhere.rename(data)
    with (
        running_node(data, "--cores", "1") as node,
        urlopen(f"{node.url}/v1/stream/kept?offset=-1", timeout=30) as answer,
    ):
        found = json.load(answer)
        assert found[: len(writer.acknowledged)] == writer.acknowledged


def test_a_node_whose_journal_is_deleted_ends_and_does_not_begin_anew(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_node(data, "--cores", "1") as node:
        writer = written(node)
        (segment,) = data.glob("core-0/journal/*.journal")
        segment.unlink()
        wait_until(lambda: not writer.append(), what="the node to notice", pause=0.01)
        assert node.wait() == EXIT_CORRUPT
        assert f"{segment} is missing" in "".join(node.log)
    again = CommandProcess("serve", "--listen", "127.0.0.1:0", "--data", str(data), "--cores", "1")
    assert again.process.wait(60) == EXIT_CORRUPT
    again.end_reading()
    assert "all segments of the journal" in "".join(again.log)
