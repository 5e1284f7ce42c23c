"""Bytes sent to other nodes, over connections that come and go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from polynya.transport.traffic import LinkTraffic


def test_closed_connections_stay_counted_and_are_let_go() -> None:
    traffic = LinkTraffic()
    links: list[Any] = [SimpleNamespace(handed=0, up=True) for _ in range(3)]
    for node, link in zip((2, 2, 3), links, strict=True):
        traffic.open(node, link)
    for link, handed in zip(links, (10, 20, 40), strict=True):
        link.handed = handed
    assert traffic.sent() == {2: 30, 3: 40}
    links[0].handed, links[0].up = 15, False
    assert traffic.sent() == traffic.sent() == {2: 35, 3: 40}
    again: Any = SimpleNamespace(handed=1, up=True)
    traffic.open(2, again)
    assert traffic.sent() == {2: 36, 3: 40}
