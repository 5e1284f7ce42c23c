"""How the process of a command ends: with the command's exit code, also when threads are not done: of the object store's library, or one that reads stdin."""

from __future__ import annotations

import atexit
import os
import sys
import threading

from polynya.cli.terminal import exits

LIBRARY = "obstore"


class ProcessExit:
    """Made before a command runs; `code` is what it ended with.

    The library's threads let go of Python objects a moment after a call has returned. An interpreter that is being taken apart meanwhile is
    aborted (SIGABRT) by them, though the command was done and had said so. So where the library was loaded, the process ends before that:
    after all other handlers of its end, as the first to be registered is the last to be called. So it does where a thread still waits for stdin,
    as when the server is gone before the records are: the interpreter would want that thread's buffer, and abort.
    """

    def __init__(self) -> None:
        self.code = exits.REFUSED  # of a traceback
        atexit.register(self._end)

    def ended(self, end: SystemExit) -> None:
        """What the interpreter would make of it."""
        self.code = end.code if isinstance(end.code, int) else exits.OK if end.code is None else exits.REFUSED

    def _end(self) -> None:
        if LIBRARY in sys.modules or any(thread.daemon for thread in threading.enumerate()):
            for stream in (sys.stdout, sys.stderr):
                if stream is not None and not stream.closed:
                    stream.flush()
            os._exit(self.code)
