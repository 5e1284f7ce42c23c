"""A core process that serves nothing: it does what the environment variable FAKE_CORE says
(`core:word`, comma-separated)."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from polynya.config.core_start import read_start, report_ready, watch_parent


async def main() -> None:
    start = read_start()
    orders = dict(pair.split(":") for pair in os.environ.get("FAKE_CORE", "").split(",") if pair)
    order = orders.get(str(start.core), "serve")
    lives = Path(start.config.data, f"lives-{start.core}")
    with lives.open("a") as file:
        file.write(f"{os.getpid()}\n")
    if order.startswith("exit"):
        sys.exit(int(order.removeprefix("exit")))
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    if order != "stubborn":
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    else:
        loop.add_signal_handler(signal.SIGTERM, lambda: None)
    watch_parent(loop)
    report_ready(start)
    await stop.wait()
    if order == "bad":
        sys.exit(70)


asyncio.run(main())
