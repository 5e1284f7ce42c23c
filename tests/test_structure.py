"""The sizes of classes and folders, and circles of imports: what `structure_report` finds is listed
here with the reason, and what it does not find is not."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
import structure_report
from structure_report import ATTRIBUTES, FILES, METHODS, Structure

pytestmark = pytest.mark.usefixtures("without_collector")

RECORDS = {  # settings, and records of files, wires and states: their fields may be many
    "polynya.config.model:Config",
    "polynya.lakehouse.jobs.results:Result",
    "polynya.local.api:StreamInfo",
    "polynya.stream.features.tables.state:Table",
    "polynya.stream.snapshots.encode:Image",
    "polynya.stream.state.model:Stream",
}
LARGE = {  # classes that stay large: why
    "polynya.embedded.log:Log": "an interface of a library: a method for each verb",
    "polynya.embedded.reader:LogReader": "an interface of a library: a method for each verb",
    "polynya.engine.replicated:ReplicatedEngine": "the parts of a core's turn, each an attribute",
    "polynya.raft.raft:Raft": "the calls of a member; its reactions are functions of other files",
    "polynya.raft.state:RaftState": "the state of one protocol, which its reactions change",
    "polynya.transport.link:FrameLink": "the buffers and the callbacks of one connection",
}
CIRCLES = {  # the modules of a room that import each other, type hints included: why they may
    "polynya.raft": (
        "disk_loss election following leading membership quiescence reading snapshots",
        "one protocol: a reaction to a message begins others, and all change one state",
    ),
}
SOURCE = Path(__file__).parent.parent / "src" / "polynya"
FIRST_KIND = 1000  # of messages between cores; smaller numbers are kinds of frames in files
_KIND = re.compile(r"^_?(KIND_[A-Z_]+) = ([0-9][0-9_]*)", re.MULTILINE)


@functools.cache
def found() -> Structure:
    return structure_report.structure()


def test_no_class_is_large_but_those_listed() -> None:
    large = {size.name for size in found().classes}
    listed = RECORDS | LARGE.keys()
    assert not large - listed, f"more than {METHODS} methods or {ATTRIBUTES} attributes: divide it"
    assert not listed - large, "no longer large: take it off the list"


def test_no_folder_is_crowded() -> None:
    assert not found().folders, f"more than {FILES} files: divide it"


def test_no_imports_go_in_circles_but_those_listed() -> None:
    listed = [[f"{room}.{name}" for name in names.split()] for room, (names, _) in CIRCLES.items()]
    assert found().circles == listed


def test_no_two_messages_between_cores_have_one_kind() -> None:
    """A core with two handlers of a kind does not start, and no test of one part sees it."""
    kinds = [
        (int(found[2]), found[1])
        for path in SOURCE.rglob("*.py")
        for found in _KIND.finditer(path.read_text())
        if FIRST_KIND <= int(found[2]) < 10_000
    ]
    numbers = [number for number, _ in kinds]
    assert len(kinds) > 10
    assert len(set(numbers)) == len(numbers), sorted(kinds)
