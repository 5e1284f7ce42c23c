"""The narrow waist: route, admit, propose, wait, read hot and cold, tail. Every front calls only this room.

A call names a stream; the service finds its group, and the group's core, which may be another process. What is local and in memory is
answered at once (`…_nowait`, callbacks); only what may block is async.
"""
