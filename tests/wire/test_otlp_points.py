"""The decoder of pushed metrics against OpenTelemetry's own encoder."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1 import metrics_pb2 as otlp

from polynya.base.errors import CorruptData
from polynya.base.limits import (
    CLIENT_ATTRIBUTES_MAX,
    CLIENT_LABEL_CHARACTERS_MAX,
    CLIENT_PUSH_FIELDS_MAX,
)
from polynya.wire.kafka.otlp_points import Kind, Point, Points, points_of

DELTA, CUMULATIVE = 1, 2
FAMILIES = {
    Kind.GAUGE: lambda metric: metric.gauge,
    Kind.DELTA: lambda metric: metric.sum,
    Kind.TOTAL: lambda metric: metric.sum,
}


def encoded(*points: Point) -> bytes:
    """Return the points as a client pushes them, a metric for each."""
    data = otlp.MetricsData()
    resource = data.resource_metrics.add()
    resource.resource.attributes.add(key="group_id").value.string_value = "g"
    scope = resource.scope_metrics.add()
    scope.scope.name = "a scope"
    for point in points:
        metric = scope.metrics.add(name=point.name, description="d", unit="1")
        family = FAMILIES[point.kind](metric)
        if point.kind != Kind.GAUGE:
            family.is_monotonic = True
            family.aggregation_temporality = DELTA if point.kind == Kind.DELTA else CUMULATIVE
        number = family.data_points.add(start_time_unix_nano=1, time_unix_nano=2)
        if point.value.is_integer() and abs(point.value) < 2**53:
            number.as_int = int(point.value)
        else:
            number.as_double = point.value
        for key, value in point.attributes:
            number.attributes.add(key=key).value.string_value = value
    return data.SerializeToString()


TEXT = st.text(max_size=20)
POINTS = st.builds(
    Point,
    TEXT,
    st.lists(st.tuples(TEXT, TEXT), max_size=3).map(lambda pairs: tuple(sorted(pairs))),
    st.sampled_from(Kind),
    st.floats(allow_nan=False),
)


@given(st.lists(POINTS, max_size=5))
def test_what_opentelemetry_encodes_is_decoded(points: list[Point]) -> None:
    assert points_of(encoded(*points), 10) == Points(points, 0)


def test_no_more_points_than_wanted_are_decoded() -> None:
    points = [Point(f"m{number}", (), Kind.GAUGE, 1.0) for number in range(5)]
    assert points_of(encoded(*points), 3) == Points(points[:3], 2)


def test_histograms_are_counted_as_dropped_and_sums_that_shrink_are_gauges() -> None:
    data = otlp.MetricsData()
    scope = data.resource_metrics.add().scope_metrics.add()
    scope.metrics.add(name="h").histogram.data_points.add(count=1)
    scope.metrics.add(name="s").summary.data_points.add(count=1)
    scope.metrics.add(name="up and down").sum.data_points.add(as_int=-3)
    found = points_of(data.SerializeToString(), 10)
    assert found == Points([Point("up and down", (), Kind.GAUGE, -3.0)], 2)


def test_attributes_of_other_types_are_texts() -> None:
    data = otlp.MetricsData()
    metric = data.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    number = metric.gauge.data_points.add(as_double=0.5)
    number.attributes.add(key="a").value.int_value = -7
    number.attributes.add(key="b").value.bool_value = True
    number.attributes.add(key="c").value.double_value = 1.5
    number.attributes.add(key="d").value.array_value.values.add(string_value="x")
    (point,) = points_of(data.SerializeToString(), 10).taken
    assert point.attributes == (("a", "-7"), ("b", "true"), ("c", "1.5"), ("d", ""))


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    with suppress(CorruptData):
        assert len(points_of(data, 10).taken) <= 10


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:3] + b"\xff" * 11 + data[14:]]
)
def test_a_damaged_push_is_refused(damage: object) -> None:
    assert callable(damage)
    with pytest.raises(CorruptData):
        points_of(damage(encoded(Point("metric", (), Kind.GAUGE, 0.5))), 10)


def test_long_texts_are_cut_and_further_attributes_left_out() -> None:
    attributes = tuple((f"key{number}", "v" * 1000) for number in range(CLIENT_ATTRIBUTES_MAX + 1))
    (point,) = points_of(encoded(Point("m" * 1000, attributes, Kind.GAUGE, 1.0)), 1).taken
    most = CLIENT_LABEL_CHARACTERS_MAX
    assert point.name == "m" * most
    assert point.attributes == tuple((key, "v" * most) for key, _ in attributes[:-1])


def test_a_small_push_of_very_many_fields_is_refused() -> None:
    unknown = b"\x78\x01"  # field 15
    points_of(unknown * 1000, 1)
    with pytest.raises(CorruptData, match="fields"):
        points_of(unknown * (CLIENT_PUSH_FIELDS_MAX + 1), 1)
