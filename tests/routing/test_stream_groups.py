"""The groups of streams by name."""

from __future__ import annotations

import pytest

from polynya.base.names import group_of
from polynya.routing import proposals
from polynya.routing.proposals import StreamGroups


def test_the_cache_is_bounded_and_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "_NAMES_MAX", 3)
    groups = StreamGroups(8)
    for name in (f"bucket/{number % 7}" for number in range(20)):
        assert groups.of(name) == group_of(name, 8) == groups.known[name]
        assert len(groups.known) <= 3
