"""The stream state machine: the deterministic meaning of the log. Pure: no I/O, no clock, no
randomness, no asyncio.

One `Machine` holds the state of one group. `machine.apply(command, position)` changes it and
returns a `Reply`. Time comes with the command: the leader stamps `now_ms`. A refusal is a `Reply`
with an error code, decided
  deterministically. Work for another group goes to
the machine's outbox, a list of idempotent commands. The engine sends each one until an
acknowledgement is applied through the log. Reads
are planned: `machine.plan_read(…)` names hot payloads, ranges of cold slices and fork parents, and
copies nothing.

Invariants:

* `next_record` and `next_byte` of a stream only grow; a uid is never reused.
* The hot batches of a stream are contiguous and end at its tail. Cold slices or the fork parent
  cover everything before them.
* Merging cold slices changes only the position of records; no slice crosses the bounds of a table's
  claim.
* Applying the same commands in the same order gives the same state, byte for byte
  (`snapshots.encode.snapshot_of`).
"""
