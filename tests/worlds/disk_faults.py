"""Disk calls of a real server that fail or wait when a test says so, without any tool of the
operating system."""

from __future__ import annotations

import os
from pathlib import Path

from polling import wait_until
from product import SOURCE

SHIM = Path(__file__).parents[1] / "disk_shim"


class DiskOrders:
    """`variables` are for the server's environment. An order is obeyed from the next call on, until
    `clear`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "disk.orders"

    @property
    def variables(self) -> dict[str, str]:
        return {
            "DISK_ORDERS": str(self._path),
            "PYTHONPATH": os.pathsep.join(map(str, (SHIM, SOURCE))),
        }

    def fail(self, call: str, error: str, *, at: int = 1) -> None:
        """Let the process's call number `at` of os.fdatasync, os.fsync or os.pwrite from now on,
        and all later ones, raise `error`."""
        self._give(f"{call} {error} {at}")

    def hold(self, call: str) -> None:
        """Let such calls never return."""
        self._path.with_suffix(".held").unlink(missing_ok=True)
        self._give(f"{call} hold")

    def wait_held(self) -> None:
        """Wait until a call is held up."""
        wait_until(
            self._path.with_suffix(".held").exists, what="a disk call to be held up", pause=0.005
        )

    def clear(self) -> None:
        self._path.unlink()

    def _give(self, order: str) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(order)
        new.rename(self._path)
