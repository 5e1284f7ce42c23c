"""Stop a core at once after a fatal error, wherever it appears: a task, a callback or a thread."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import Any

from polynya.base.errors import ConfigError, CorruptData
from polynya.config.core_start import EXIT_CORRUPT, EXIT_ROOT, EXIT_STORAGE
from polynya.transport import report_lost
from polynya.wal import JournalFailed

EXIT_FAULT = 1  # a bug: a restart may help
log = logging.getLogger("polynya.core")


def lost_callback(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an exception in a loop callback. After MemoryError the state is unknown, so stop,
    except for a connection: that is closed."""
    fault = context.get("exception")
    if isinstance(fault, MemoryError) and "transport" not in context:
        fail_stop(fault)
    report_lost(loop, context)


def lost_thread(ended: threading.ExceptHookArgs) -> None:
    """Stop the core: a thread that it depends on ended unexpectedly."""
    if ended.exc_type is not SystemExit:
        fail_stop(ended.exc_value or RuntimeError("a thread ended"))


def lost_task(task: asyncio.Task[None]) -> None:
    """Stop the core if a background task failed, since going on would hide the fault."""
    if not task.cancelled() and task.exception() is not None:
        fail_stop(task.exception() or RuntimeError("a task ended"))


def fail_stop(error: BaseException) -> None:
    """Exit the process at once. The exit code tells the supervisor whether a restart can help."""
    log.critical(
        "this core stops after a fatal error",
        exc_info=error,
        extra={"error": str(error) or repr(error)},
    )
    ends = (
        (OSError | JournalFailed, EXIT_STORAGE),
        (CorruptData, EXIT_CORRUPT),
        (ConfigError, EXIT_ROOT),
    )
    os._exit(next((code for kinds, code in ends if isinstance(error, kinds)), EXIT_FAULT))
