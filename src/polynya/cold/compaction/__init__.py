"""Key compaction: only the newest record of each key stays (docs/compaction.md).

A pass maps the keys of a stream from `cleaned` on to their newest records. It rewrites the slices
before the end of that map, and publishes the new ones by `ReplaceSlices`. A group refuses each slice
whose entries have changed. Only when all are taken does `NoteCompaction` raise `cleaned`. So a crash
at any step leaves a stream with some records too many, and the next pass finds them.

Invariants:

* An offset never changes: what goes leaves a gap of its span (slice version 3).
* Before `cleaned` no two records have one key. A tombstone, and the marker of an abort, go in a later
  pass than what they hide, never behind a slice that a pass had to leave.
* What a fork has pinned is not rewritten, nor what a table has not read.
* A merge and a pass never have the same stream in hand: a merge that was read before a pass would
  bring back what the pass has dropped.
* The batches are decoded in a process of their own, at low priority (`child`), in bounded memory.

`planner` says which slices and when, purely. `work` has the two steps on slices, `compactor` does the
I/O and the proposals.
"""
