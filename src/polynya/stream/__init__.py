"""The stream machine: what the log means. Pure: no I/O, no clock, no randomness, no asyncio.

One `Machine` is the state of one group. `machine.apply(command, place)` changes it and returns a `Reply`; time comes inside the
command (`now_ms`, stamped by the leader). A refusal is a `Reply` with another code, decided deterministically. What must happen in
another group is put in the machine's outbox, a list of idempotent commands that the shell sends until each is acknowledged through
the log (F17). Reading is planning: `machine.plan_read(…)` names hot payloads, cold places and fork parents; it copies nothing.

Invariants:

* `next_record` and `next_byte` of a stream only grow; a uid is never reused.
* The hot batches of a stream are contiguous and end at its tail; what lies before them is covered by its cold slices or its parent.
* Merging cold slices changes where records lie, and nothing else; no slice ever crosses the bounds of a table's claim.
* Applying the same commands in the same order gives the same state, byte for byte (`machine.snapshot()`).
"""
