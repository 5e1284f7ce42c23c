"""A node whose log time runs faster than wall time. `python -m bench._fast_node FLAGS…` is its
supervisor; `BENCH_SPEED` is the factor.

Log time is what everything that lives, expires and is collected goes by. Timers stay as they
are, but the collector's, which would look once in half a day of such time, and that of the
copies of states which it waits for."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Any

from polynya.cold import CollectorSettings
from polynya.config.loading import load
from polynya.engine.log_clock import LogClock
from polynya.node import assembly, core_process
from polynya.node.supervisor import serve
from polynya.tiering import state_copies, tier

ENTRY = "bench._fast_node"
SPEED = "BENCH_SPEED"
COLLECT_MS = 1000


class FastClock(LogClock):
    """Begins, as the product's, at the wall's time or behind what the log holds, whichever is
    later."""

    __slots__ = ("_began", "_floor_ms", "_speed")

    def __init__(self, floor_ms: int = 0, **more: Any) -> None:
        super().__init__(floor_ms, **more)
        self._floor_ms = super().now_ms()
        self._began = time.monotonic()
        self._speed = float(os.environ[SPEED])

    def now_ms(self) -> int:
        return self._floor_ms + int((time.monotonic() - self._began) * 1000 * self._speed)


def main() -> int:
    """Run the node if there are flags, else one core of it, as its supervisor starts them."""
    if len(sys.argv) > 1:
        flags = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
        return serve(load(flags, environ=os.environ).config, entry=ENTRY)
    assembly.LogClock = FastClock  # type: ignore[attr-defined, assignment]
    tier.CollectorSettings = partial(CollectorSettings, interval_ms=COLLECT_MS)  # type: ignore[attr-defined, assignment]
    state_copies.SOON_SECONDS = COLLECT_MS / 1000
    return core_process.main()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
