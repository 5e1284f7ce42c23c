"""Reducers: functions that fold the records of a stream into a state, which is published as its
snapshot.

A reducer holds nothing between two runs: a run begins with the newest snapshot of the reducer,
applies the records behind it, and publishes the state. So a restart, a second worker or a move
changes nothing, and equal records give equal bytes: a `Reducer` reads no clock, draws no random
number, and orders what it writes. A state of other bytes for the same records is a defect of the
reducer, which stops it.

`reducer.py` is the interface, `latest.py`, `merge_patch.py` and `count.py` are those that need no
module, `builtins.py` makes one by its name, and `bindings.py` has which streams a reducer is for.
"""
