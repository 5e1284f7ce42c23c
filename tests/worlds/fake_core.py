"""A core process that serves nothing: it does what the environment variable FAKE_CORE says
(`core:word`, comma-separated)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from polynya.config.core_start import read_start, report_ready, watch_parent


def main() -> int:
    """Return the exit code of the core of the start record."""
    return asyncio.run(_run())


async def _run() -> int:
    start = read_start()
    orders = dict(pair.split(":") for pair in os.environ.get("FAKE_CORE", "").split(",") if pair)
    order = orders.get(str(start.core), "serve")
    with Path(start.config.data, f"lives-{start.core}").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if order.startswith("exit"):
        return int(order.removeprefix("exit"))
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set if order != "stubborn" else lambda: None)
    watch_parent(loop)
    report_ready(start)
    await stop.wait()
    return 70 if order == "bad" else 0


if __name__ == "__main__":
    sys.exit(main())
