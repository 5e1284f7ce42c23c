"""Ports that are chosen before a server binds them, or kept over its restarts. This process
reserves them meanwhile (`chaos.ports`), so that only its servers can bind them. Also a port
that refuses connections."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos.ports import HOST, hold, hold_row, keep_row  # noqa: E402 (no part of the package)

DIRECT_STEP = 1000  # from a Kafka port to those of the cores


def free_ports(count: int) -> list[int]:
    """Return different free ports, reserved until this process ends."""
    return [keep_row(1) for _ in range(count)]


def two_free_ports() -> int:
    """Return the first of two adjacent ports: a node with a given port has its admin port on the
    next one."""
    return keep_row(2)


@contextlib.contextmanager
def ports_in_a_row(count: int) -> Iterator[int]:
    """Yield the first of that many ports and release them at the end. The ports of the nodes'
    cores behind them are held, too."""
    port, held = hold_row(count, DIRECT_STEP)
    with contextlib.ExitStack() as stack:
        for each in held:
            stack.enter_context(each)
        yield port


@contextlib.contextmanager
def refusing_url() -> Iterator[str]:
    """Yield a URL at which every connection is refused."""
    with hold() as bound:  # and does not listen
        yield f"http://{HOST}:{bound.getsockname()[1]}"
