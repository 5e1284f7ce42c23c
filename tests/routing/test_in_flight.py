"""Proposals on their way to the leader of their group: the bytes that they hold."""

from __future__ import annotations

from polynya.routing.in_flight import Attempt
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.markers.commands import TxnMarkers
from polynya.stream.features.markers.control_batch import control_batch
from polynya.stream.parts import Batch, Encoding


def test_markers_wait_for_a_leader_like_appends() -> None:
    marker = control_batch(7, 1, commit=True, decided_ms=5)
    markers = TxnMarkers(7, 1, 1, True, marker, [(9, "kafka/t/0")], [], 5)
    produce = Produce("kafka/t/0", 5, Batch(Encoding.KAFKA, 1, b"x" * 500, 0))
    sizes = [Attempt(1, 1, command, b"", print, 0.0).size() for command in (markers, produce)]
    assert sizes == [1024, 1524]
