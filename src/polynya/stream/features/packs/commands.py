"""Commands that move records to packs, and count the references to these: tags 30-34."""

from __future__ import annotations

from polynya.base.levels import COMPRESSION_LEVEL, ENTRY_LEVEL
from polynya.base.limits import GROUPS_MAX
from polynya.stream.command import Command, command
from polynya.stream.command_validation import GROUP, NONE, TIME, WIDE, first_fault
from polynya.stream.parts import (
    ColdSlice,
)


def _entry_level(slices: list[tuple[int, ColdSlice]]) -> int:
    if any(cold.is_compressed for _, cold in slices):
        return COMPRESSION_LEVEL
    return ENTRY_LEVEL if any(cold.encoding >= 0 for _, cold in slices) else 1


@command(
    since=1,
    bounds={"owner_group": GROUP, "term": WIDE, "now_ms": TIME},
    rows=("slices", (WIDE, None)),
    check=lambda command: first_fault(cold for _, cold in command.slices),
    level=lambda command: _entry_level(command.slices),
)
class PublishSlices(Command, tag=30, frozen=True):
    """Move hot batches into the index: `slices` of (uid, slice) lie in `pack`. With no slices,
    release the pack unless it is held.

    `term` is the term of the flush plan. The reply's detail lists the positions in `slices` that
    the index now has."""

    pack: str
    owner_group: int
    term: int
    slices: list[tuple[int, ColdSlice]]
    now_ms: int = 0


def _written(command: PackWritten) -> str:
    strange = [group for group in command.groups if not GROUP[0] <= group <= GROUP[1]]
    return (
        f"the pack names group {strange[0]}; group numbers go up to {GROUPS_MAX}" if strange else ""
    )


@command(since=1, bounds={"now_ms": TIME}, check=_written)
class PackWritten(Command, tag=31, frozen=True):
    """Register a pack in its owner group, before any publish. Each of `groups` will hold or release
    it."""

    pack: str
    groups: list[int]
    now_ms: int


@command(since=1, bounds={"group": GROUP, "now_ms": TIME})
class ReleasePack(Command, tag=32, frozen=True):
    """Record in the owner group that `group` no longer needs the pack. Idempotent."""

    pack: str
    group: int
    now_ms: int


@command(since=1, bounds=NONE)
class PackDeleted(Command, tag=33, frozen=True):
    """Record in the owner group that the condemned object is deleted from the store."""

    pack: str


@command(
    since=1,
    bounds={"owner_group": GROUP, "term": WIDE, "now_ms": TIME},
    rows=("replacements", (WIDE, None)),
    check=lambda command: first_fault(cold for _, cold in command.replacements),
    level=lambda command: _entry_level(command.replacements),
)
class ReplaceSlices(Command, tag=34, frozen=True):
    """Merge index entries: each slice of `replacements` (uid, slice) lies in `pack` and holds the
    records of adjacent entries.

    `term` is the term of the merge plan. The reply's detail lists the positions in `replacements`
    that the index now has."""

    pack: str
    owner_group: int
    term: int
    replacements: list[tuple[int, ColdSlice]]
    now_ms: int = 0
