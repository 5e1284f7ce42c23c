"""Diskless streams: their appends go into the object store first, and then into the log of their
group (docs/decisions/0027).

`writer` has the one writer of a core. It collects appends (`buffer`), and puts a pack of them while
the owner group logs its intent. `commit` then has each group judge the appends of the pack, in the
order of the packs. Nothing is answered before that.
"""

from polynya.diskless.writer import DisklessSettings, Writer

__all__ = ["DisklessSettings", "Writer"]
