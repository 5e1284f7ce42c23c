"""Every Python process that has this folder on PYTHONPATH obeys the orders in the file that
DISK_ORDERS names; see `disk_orders`."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Obeying:
    """One intercepted function of `os`. Each process counts its own calls; a new order resets the
    count."""

    def __init__(self, name: str, orders: Path) -> None:
        self._name = name
        self._orders = orders
        self._real: Callable[..., Any] = getattr(os, name)
        self._order: list[str] = []
        self._calls = 0

    def __call__(self, *arguments: Any) -> Any:
        while (order := self._read())[:2] == [self._name, "hold"]:
            self._orders.with_suffix(".held").touch()
            time.sleep(0.002)
        if order != self._order:
            self._order, self._calls = order, 0
        if order[:1] == [self._name]:
            self._calls += 1
            if self._calls >= int(order[2]):
                number = int(getattr(errno, order[1]))
                raise OSError(number, os.strerror(number))
        return self._real(*arguments)

    def _read(self) -> list[str]:
        try:
            return self._orders.read_text().split()
        except FileNotFoundError:
            return []


if "DISK_ORDERS" in os.environ:
    for call in ("fdatasync", "fsync", "pwrite"):
        setattr(os, call, Obeying(call, Path(os.environ["DISK_ORDERS"])))
