"""Commands that move records to packs, and count the references to these: tags 30-34."""

from __future__ import annotations

from polynya.stream.command import Command
from polynya.stream.parts import (
    ColdSlice,
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


class PackWritten(Command, tag=31, frozen=True):
    """Register a pack in its home group, before any publish. Each of `groups` will hold or release
    it."""

    pack: str
    groups: list[int]
    now_ms: int


class ReleasePack(Command, tag=32, frozen=True):
    """Record in the home group that `group` no longer needs the pack. Idempotent."""

    pack: str
    group: int
    now_ms: int


class PackDeleted(Command, tag=33, frozen=True):
    """Record in the home group that the condemned object is deleted from the store."""

    pack: str


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
