"""A node whose cores serve nothing: `main` is a supervisor with settings, replaced constants and
faults of a test."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import warm_nodes
from worlds import fake_core

from polynya.config.loading import load
from polynya.node import kafka_ports, supervisor
from polynya.system import data_dir

CORE = "worlds.fake_core"


def main(arguments: list[str]) -> None:
    """Serve with settings and values of constants, each as a JSON object."""
    settings, constants = map(json.loads, arguments)
    warm_nodes.fork_cores(CORE, fake_core.main)
    for name, value in constants.items():
        owners = [each for each in (data_dir, kafka_ports) if hasattr(each, name)]
        setattr((owners or [supervisor])[0], name, value)
    if code := os.environ.get("FAKE_LAKE"):
        _replace_worker(code)
    if path := os.environ.get("SYNC_FAILS"):
        _fail_to_sync(path)
    if "NO_KILL" in os.environ:
        supervisor._Node._kill = lambda node: None  # type: ignore[method-assign]
    if "STOP_AT_LAKE" in os.environ:
        _stop_at_worker()
    config = load(settings, environ=os.environ, folder="/nonexistent").config
    sys.exit(supervisor.serve(config, entry=CORE))


def _replace_worker(code: str) -> None:
    wrapper = supervisor.lake_command

    def command(*given: Any) -> list[str]:
        return [*wrapper(*given)[:5], "-c", code]

    supervisor.lake_command = command


def _fail_to_sync(path: str) -> None:
    """Fail with the error that is in this file, while there is one."""
    sync = os.fsync

    def failing(descriptor: int) -> None:
        try:
            error = int(Path(path).read_text() or 0)  # before .met is there: the file may go then
        except FileNotFoundError:
            error = 0
        if not error:
            return sync(descriptor)
        Path(f"{path}.met").touch()
        raise OSError(error, "told so")

    os.fsync = failing  # type: ignore[assignment]


def _stop_at_worker() -> None:
    """Stop the node at the moment when its worker has been started."""
    start = asyncio.create_subprocess_exec

    async def started(*command: str, **more: Any) -> Any:
        process = await start(*command, **more)
        if "-c" in command:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.2)  # all that the signal sets off has happened
        return process

    asyncio.create_subprocess_exec = started  # type: ignore[assignment]
