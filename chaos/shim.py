"""Orders for the clocks and disks of one node's processes, through a library of our own that is
preloaded into them (`shim.c`)."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
NAMES = (
    "real_ms",
    "boot_ms",
    "sync_error",
    "sync_after",
    "sync_delay_us",
    "sync_lies",
    "write_error",
    "write_after",
    "die_at",
    "die_after",
)
_NUMBERS = struct.Struct(f"{len(NAMES)}q")


class Orders:
    """The fault settings of one node. Unnamed ones return to 0, except the clocks, which keep
    their offset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(mmap.PAGESIZE))
        descriptor = os.open(path, os.O_RDWR)
        self._map = mmap.mmap(descriptor, mmap.PAGESIZE)
        os.close(descriptor)
        self._values = dict.fromkeys(NAMES, 0)

    def give(self, **numbers: int) -> None:
        clocks = {name: self._values[name] for name in ("real_ms", "boot_ms")}
        self._values = dict.fromkeys(NAMES, 0) | clocks | numbers
        self._map[: _NUMBERS.size] = _NUMBERS.pack(*self._values.values())

    def clock(self, name: str) -> int:
        return self._values[name]

    @property
    def has_died(self) -> bool:
        """Report whether a process died by `die_at`."""
        return (
            bool(self._values["die_at"])
            and not _NUMBERS.unpack(self._map[: _NUMBERS.size])[NAMES.index("die_at")]
        )

    def heal(self) -> None:
        """Heal the disk; a changed clock stays."""
        self.give()

    def variables(self, library: Path) -> dict[str, str]:
        """Return the environment variables of the processes."""
        return {"LD_PRELOAD": str(library), "CHAOS_ORDERS": str(self.path)}


def build(folder: Path) -> tuple[Path | None, str]:
    """Build the library; return it or the error."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if not sys.platform.startswith("linux"):
        return None, "clocks and disks are disturbed by a preloaded library, on Linux alone"
    if compiler is None:
        return None, "no C compiler for the library that disturbs clocks and disks"
    library = folder / "shim.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (
            None,
            "the library that disturbs clocks and disks cannot be built: "
            f"{done.stderr.strip().splitlines()[-1]}",
        )
    return library, ""
