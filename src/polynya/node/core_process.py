"""The process of one core: assemble it, serve until a stop signal, and shut down in order. The
composition root of the product."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop

from polynya.base.errors import ConfigError, CorruptData
from polynya.base.limits import JOURNAL_SEGMENT_BYTES, MIB
from polynya.cluster.join import membership_of
from polynya.cluster.stale_copy import refuse_stale_copy
from polynya.config.core_start import (
    EXIT_CLEAN,
    EXIT_CONFIG,
    EXIT_CORRUPT,
    EXIT_STORAGE,
    CoreStart,
    read_start,
    report_ready,
    watch_parent,
)
from polynya.engine.membership import Membership
from polynya.engine.storage import Storage, open_storage
from polynya.files import is_full, keep_private
from polynya.node.assembly import Assembly
from polynya.node.fail_stop import fail_stop, lost_callback, lost_thread
from polynya.node.shutdown_watchdog import ShutdownWatchdog
from polynya.observability import logs
from polynya.system.malloc import keep_heap_small
from polynya.system.scheduling import ask_for_whole_turns
from polynya.wal import JournalFailed

log = logging.getLogger("polynya.core")


def main() -> int:
    """Run `python -m polynya.node.core_process`, started by the supervisor. The exit code tells it
    whether a restart can help."""
    keep_private()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    keep_heap_small()
    start = read_start()
    if start.config.scheduling == "batch":
        ask_for_whole_turns()
    logs.setup(start.config.log.level, start.config.log.format, core=start.core)
    try:
        storage = _opened(start)
        if storage is None:
            return EXIT_STORAGE
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(start, storage))
    except ConfigError as error:
        logs.say_end(str(error))
        return EXIT_CONFIG
    except CorruptData as error:
        logs.say_end(str(error))
        return EXIT_CORRUPT


def _opened(start: CoreStart) -> Storage | None:
    """Open the storage; log a disk error and return None. Raises ConfigError when the disk is full,
    and CorruptData."""
    try:
        return _open(start)
    except OSError as error:
        logs.say_end(f"core {start.core} cannot read or write its journal: {error}")
        return None


def _open(start: CoreStart) -> Storage:
    folder = Path(start.config.data) / f"core-{start.core}"
    refuse_stale_copy(folder)
    shape = {"core": start.core, "cores": start.cores, "groups": start.groups}
    return open_quickly(
        folder, **shape, cluster_id=start.identity.cluster_id, membership=membership_of(start)
    )


def open_quickly(
    folder: Path,
    *,
    core: int,
    cores: int,
    groups: int,
    cluster_id: str = "",
    membership: Membership | None = None,
) -> Storage:
    """Call `open_storage` with the garbage collector off, and exclude its objects from later
    collections."""
    gc.disable()  # recovery makes many objects and no cycles
    try:
        return open_storage(
            folder,
            core=core,
            cores=cores,
            groups=groups,
            cluster_id=cluster_id,
            membership=membership,
        )
    except OSError as error:
        if not is_full(error):
            raise
        needed = JOURNAL_SEGMENT_BYTES // MIB
        raise ConfigError(
            f"data: {folder} has no room for the journal, which grows by {needed} MiB at a time; "
            "free space"
        ) from None
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()  # recovered objects live long: no collection needs to scan them
        gc.set_threshold(50_000, 20, 100)


async def _serve(start: CoreStart, storage: Storage) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lost_callback)
    threading.excepthook = lost_thread
    stopping = asyncio.Event()
    ending = ShutdownWatchdog(loop)

    def stop() -> None:
        ending.begin()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    watch_parent(loop)
    assembly = Assembly(start, storage)
    stop_requested = loop.create_task(stopping.wait())
    try:
        if await _unless(stop_requested, assembly.start()):
            loop.add_signal_handler(signal.SIGHUP, assembly.reload)
            await _unless(stop_requested, assembly.meet())
            report_ready(start)
            await stop_requested
    finally:
        try:
            await assembly.stop()
        except asyncio.CancelledError:
            pass
        except (OSError, JournalFailed) as fault:  # the disk failed as the last files were closed
            fail_stop(fault)
    log.info("a core stopped", extra={"core": start.core})
    return EXIT_CLEAN


async def _unless(stop_requested: asyncio.Task[bool], work: Coroutine[Any, Any, None]) -> bool:
    """Run the work, and cancel it on a stop signal. Return True if it finished. Raises what the
    work raises."""
    task = asyncio.get_running_loop().create_task(work)
    await asyncio.wait((task, stop_requested), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return False


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # library threads must not delay the exit
