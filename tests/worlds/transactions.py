"""A planted step of the machine that ends a transaction: no command of a client does so yet."""

from __future__ import annotations

import pytest

from polynya.stream import machine as rules
from polynya.stream.features.appends.transactions import end_transaction
from polynya.stream.features.lifetimes.commands import Touch
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Reply


def plant_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `Touch` end transactions: of each uid, that of the producer in place of the time."""

    def apply(machine: Machine, command: Touch, place: int) -> Reply:
        for uid, producer in command.touches:
            end_transaction(machine, machine.directory.by_uid[uid], producer)
        return Reply(Code.OK)

    monkeypatch.setitem(rules._RULES, Touch, apply)
