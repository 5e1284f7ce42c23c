"""Process exit with the command's exit code while threads of the object-store library or a stdin
reader still run."""

from __future__ import annotations

import atexit
import os
import sys
import threading

from polynya.cli.terminal import exits

LIBRARY = "obstore"


class ProcessExit:
    """Create it before a command runs; `code` is the exit code.

    The library's threads release Python objects shortly after a call has returned. If the
    interpreter is finalizing then, they abort it with SIGABRT although the command succeeded. So if
    the library is loaded, the process exits before finalization. This handler is registered first
    and therefore runs last. A thread that still reads stdin gets the same exit: finalization would
    abort on its buffer lock.
    """

    def __init__(self) -> None:
        self.code = exits.REFUSED  # after a traceback
        atexit.register(self._end)

    def ended(self, end: SystemExit) -> None:
        """Set the exit code as the interpreter would."""
        self.code = (
            end.code
            if isinstance(end.code, int)
            else exits.OK
            if end.code is None
            else exits.REFUSED
        )

    def _end(self) -> None:
        if LIBRARY in sys.modules or any(thread.daemon for thread in threading.enumerate()):
            for stream in (sys.stdout, sys.stderr):
                if stream is not None and not stream.closed:
                    stream.flush()
            os._exit(self.code)
