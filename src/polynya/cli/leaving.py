"""How the process of a command ends: with the command's exit code, also when threads of the object store's library are not done."""

from __future__ import annotations

import atexit
import os
import sys

from polynya.cli import exits

LIBRARY = "obstore"


class Leaving:
    """Made before a command runs; `code` is what it ended with.

    The library's threads let go of Python objects a moment after a call has returned. An interpreter that is being taken apart meanwhile is
    aborted (SIGABRT) by them, though the command was done and had said so. So where the library was loaded, the process ends before that:
    after all other handlers of its end, as the first to be registered is the last to be called.
    """

    def __init__(self) -> None:
        self.code = exits.REFUSED  # of a traceback
        atexit.register(self._end)

    def ended(self, end: SystemExit) -> None:
        """What the interpreter would make of it."""
        self.code = end.code if isinstance(end.code, int) else exits.OK if end.code is None else exits.REFUSED

    def _end(self) -> None:
        if LIBRARY in sys.modules:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None and not stream.closed:
                    stream.flush()
            os._exit(self.code)
