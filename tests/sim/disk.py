"""The disk of a simulated node, on which the node can die: right before a call, in the middle of
it, or right after it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from worlds.fake_disk import FakeDisk

from polynya.transport import JournalReport

CALLS = (
    "create",
    "open",
    "read",
    "write",
    "allocate",
    "truncate",
    "sync",
    "sync_folder",
    "rename",
    "unlink",
)
CHANGES = tuple(call for call in CALLS if call not in ("open", "read"))
PUT = "put"  # of the object store


class Crash(msgspec.Struct):
    """A planned crash. `after`: the number of calls before it; `at`: "before", "middle" or
    "after"; `power`: see `Node.kill`."""

    calls: tuple[str, ...]
    after: int
    at: str
    power: float | None

    def due(self, call: str) -> bool:
        if call not in self.calls:
            return False
        self.after -= 1
        return self.after < 0


class Died(OSError):
    """Raised in code that still runs in a dead process."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, os.strerror(errno.EIO))


class SimDisk(FakeDisk):
    """`crash` is where the node dies, `on_crash` makes it die. From then on, until it is killed,
    nothing changes any more."""

    def __init__(self, random: Random, on_crash: Callable[[Crash], object]) -> None:
        super().__init__(random)
        self.crash: Crash | None = None
        self.off = False
        self.others: list[
            JournalReport
        ] = []  # what the node keeps of what others say of their journals
        self._on_crash = on_crash

    def kill(self) -> None:
        super().kill()
        self.off = False

    def at(self, call: str, moment: str) -> bool:
        """Report whether the node crashes at this moment of this call, beside the disk."""
        if self.crash is not None and self.crash.at == moment and self.crash.due(call):
            self._die()
            return True
        return False

    def _die(self) -> None:
        crash, self.crash = self.crash, None
        assert crash is not None
        self.off = True
        self._on_crash(crash)

    def _call(self, name: str, sound: Callable[..., Any], *args: Any) -> Any:
        if self.off:
            raise Died
        if self.crash is None or not self.crash.due(name):
            return sound(self, *args)
        moment = self.crash.at
        if moment == "middle" and name == "write":
            fd, buffers, offset = args
            data = b"".join(buffers)
            sound(self, fd, [data[: self.random.randint(0, len(data))]], offset)
        elif moment == "middle" and name == "sync":
            self.open_files[args[0]].persist(self.random.random(), self.random)
        elif moment == "after":
            sound(self, *args)
        self._die()
        raise Died


def _guarded(name: str) -> Callable[..., Any]:
    sound = getattr(FakeDisk, name)
    return lambda disk, *args: disk._call(name, sound, *args)


for _name in CALLS:
    setattr(SimDisk, _name, _guarded(_name))
