"""The metrics that Kafka's clients push: subscriptions, what is refused, and what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from front.test_kafka_access import Gate, guarded
from front.test_kafka_tools import CLIENT_METRICS, altered, ask, described
from wire.test_otlp_points import encoded
from worlds.kafka import KafkaWire, KafkaWorld, play

from polynya.admin.metric_sources import of_kafka_clients
from polynya.base import limits
from polynya.base.limits import CLIENT_TELEMETRY_BYTES_MAX
from polynya.front.kafka.errors import Error
from polynya.front.kafka.telemetry.instances import ClientInstances
from polynya.front.kafka.telemetry.subscriptions import (
    Client,
    InvalidClientMetrics,
    Subscription,
    Wanted,
    checked,
)
from polynya.wire.kafka import codecs
from polynya.wire.kafka.otlp_points import Kind, Point, Points

NOBODY, SOMEBODY = bytes(16), bytes(range(16))
DELETE, APPEND, SUBTRACT = 1, 2, 3
RATE = Point("org.apache.kafka.producer.record.send.rate", (("topic", "t"),), Kind.GAUGE, 0.5)
SENT = Point("org.apache.kafka.producer.record.send.total", (), Kind.DELTA, 7.0)


async def subscription_of(wire: KafkaWire, instance: bytes = NOBODY) -> Any:
    return await ask(wire, "GetTelemetrySubscriptions", 0, client_instance_id=instance)


async def pushed(wire: KafkaWire, subscription: Any, data: bytes, **fields: Any) -> int:
    """Push as the client that was told a subscription; return the error."""
    values = {
        "client_instance_id": subscription.client_instance_id.bytes,
        "subscription_id": subscription.subscription_id,
        "terminating": False,
        "compression_type": 0,
        "metrics": data,
    }
    message = await ask(wire, "PushTelemetry", 0, **{**values, **fields})
    return int(message.error_code.value)


def shown(world: KafkaWorld) -> dict[str, float]:
    """Return the samples of what was pushed."""
    samples = of_kafka_clients(world.front.context.telemetry.clients, lambda: 0.0)()
    return {key: value for key, value in samples.items() if "{" in key}


async def stepped(wire: KafkaWire, name: str, *steps: tuple[str, int, str | None]) -> int:
    configs = [
        {"name": each, "config_operation": operation, "value": value}
        for each, operation, value in steps
    ]
    resource = {"resource_type": CLIENT_METRICS, "resource_name": name, "configs": configs}
    message = await ask(
        wire, "IncrementalAlterConfigs", 1, resources=[resource], validate_only=False
    )
    return int(message.responses[0].error_code.value)


async def listed(wire: KafkaWire) -> list[str]:
    message = await ask(wire, "ListConfigResources", 0)
    return [each.resource_name for each in message.config_resources]


def test_what_a_client_pushes_is_shown_and_its_deltas_are_summed() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        assert await altered(wire, CLIENT_METRICS, "all", metrics="*") == (0, "")
        subscription = await subscription_of(wire)
        assert subscription.client_instance_id is not None
        assert (subscription.requested_metrics, subscription.delta_temporality) == (("*",), True)
        assert (subscription.accepted_compression_types, subscription.telemetry_max_bytes) == (
            (4, 3, 1, 2),
            CLIENT_TELEMETRY_BYTES_MAX,
        )
        assert await pushed(wire, subscription, encoded(RATE, SENT)) == 0
        (instance,) = world.front.context.telemetry.clients.present(0.0)
        own = f'client_id="test",client_instance_id="{instance.client.client_instance_id}"'
        assert shown(world) == {
            f'polynya_kafka_client_gauge{{{own},metric="{RATE.name}",topic="t"}}': 0.5,
            f'polynya_kafka_client_counter_total{{{own},metric="{SENT.name}"}}': 7.0,
        }
        assert await pushed(wire, subscription, encoded(SENT), terminating=True) == 0
        assert sorted(shown(world).values()) == [0.5, 14.0]
        again = await pushed(wire, subscription, encoded(SENT), terminating=True)
        assert again == Error.INVALID_REQUEST, "it has said that it ends"

    play(story)


@pytest.mark.parametrize("codec", range(5))
def test_a_push_may_be_compressed(codec: int) -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        assert await altered(wire, CLIENT_METRICS, "all", metrics="*") == (0, "")
        subscription = await subscription_of(wire)
        data = codecs.compressed(codec, encoded(SENT))
        assert await pushed(wire, subscription, data, compression_type=codec) == 0
        assert list(shown(world).values()) == [7.0]

    play(story)


def test_a_client_without_a_subscription_pushes_nothing() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        subscription = await subscription_of(wire, SOMEBODY)
        assert subscription.client_instance_id.bytes == SOMEBODY
        assert (subscription.requested_metrics, subscription.push_interval.total_seconds()) == (
            (),
            300,
        )
        assert await pushed(wire, subscription, encoded(SENT)) == 0
        assert shown(world) == {}
        again = await subscription_of(wire, SOMEBODY)
        assert again.error_code.value == Error.THROTTLING_QUOTA_EXCEEDED

    play(story)


BOMB = b"\0" * (CLIENT_TELEMETRY_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"client_instance_id": NOBODY}, Error.INVALID_REQUEST),
        ({"subscription_id": 5}, Error.UNKNOWN_SUBSCRIPTION_ID),
        ({"compression_type": 9}, Error.UNSUPPORTED_COMPRESSION_TYPE),
        ({"metrics": BOMB}, Error.TELEMETRY_TOO_LARGE),
        *(
            (
                {"compression_type": codec, "metrics": codecs.compressed(codec, BOMB)},
                Error.TELEMETRY_TOO_LARGE,
            )
            for codec in (codecs.GZIP, codecs.SNAPPY, codecs.LZ4, codecs.ZSTD)
        ),
        ({"compression_type": codecs.ZSTD, "metrics": b"damaged"}, Error.INVALID_RECORD),
        ({"metrics": b"damaged"}, Error.INVALID_RECORD),
    ],
)
def test_a_wrong_push_is_refused_and_the_connection_lives(
    fields: dict[str, Any], error: Error
) -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        assert await altered(wire, CLIENT_METRICS, "all", metrics="*") == (0, "")
        subscription = await subscription_of(wire)
        assert await pushed(wire, subscription, b"", **fields) == error
        assert world.front.context.telemetry.clients.refused == 1
        assert shown(world) == {}

    play(story)


def test_a_push_that_comes_too_early_is_throttled() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        assert await altered(wire, CLIENT_METRICS, "all", metrics="*") == (0, "")
        subscription = await subscription_of(wire)
        assert await pushed(wire, subscription, encoded(SENT)) == 0
        assert await pushed(wire, subscription, encoded(SENT)) == Error.THROTTLING_QUOTA_EXCEEDED
        assert await pushed(wire, subscription, encoded(SENT), terminating=True) == 0

    play(story)


def test_a_changed_subscription_is_told_to_a_client_that_pushes_for_the_old_one() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        assert await altered(wire, CLIENT_METRICS, "all", metrics="org.apache.kafka.a") == (0, "")
        subscription = await subscription_of(wire)
        assert await altered(wire, CLIENT_METRICS, "all", interval_ms="1000") == (0, "")
        assert await altered(wire, CLIENT_METRICS, "more", metrics="org.apache") == (0, "")
        assert await pushed(wire, subscription, encoded(SENT)) == Error.UNKNOWN_SUBSCRIPTION_ID
        subscription = await subscription_of(wire, subscription.client_instance_id.bytes)
        assert subscription.error_code.value == 0, (
            "a client that has to ask again may do so at once"
        )
        assert subscription.requested_metrics == ("org.apache", "org.apache.kafka.a")
        assert subscription.push_interval.total_seconds() == 1
        other = Point("com.example.other", (), Kind.GAUGE, 1.0)
        assert await pushed(wire, subscription, encoded(SENT, other)) == 0
        assert list(shown(world).values()) == [7.0], "nothing but what was asked for"
        assert world.front.context.telemetry.clients.dropped_points == 1

    play(story)


def test_a_subscription_matches_the_software_that_a_connection_has_told() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        match = "client_software_name=my-.*,client_software_version=1[.].*"
        assert await altered(wire, CLIENT_METRICS, "s", metrics="a", match=match) == (0, "")
        assert (await subscription_of(wire)).requested_metrics == ()
        for version, metrics in (("2.0", ()), ("1.0", ("a",))):
            other = await world.wire()
            await other.ask(
                "ApiVersions", 3, client_software_name="my-own", client_software_version=version
            )
            assert (await subscription_of(other)).requested_metrics == metrics

    play(story)


def test_the_configs_of_a_subscription_are_kept_listed_and_deleted() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        assert await stepped(wire, "s", ("metrics", 0, "a,b"), ("interval.ms", 0, "500")) == 0
        assert await stepped(wire, "s", ("metrics", APPEND, "c"), ("metrics", SUBTRACT, "a")) == 0
        result = await described(wire, CLIENT_METRICS, "s", documented=True)
        found = {each.name: (each.value, each.config_source) for each in result.configs}
        assert found == {"metrics": ("b,c", 7), "interval.ms": ("500", 7), "match": ("", 5)}
        assert all(each.documentation.endswith(".") for each in result.configs)
        assert await listed(wire) == ["s"]
        assert await stepped(wire, "s", ("metrics", DELETE, None), ("interval.ms", DELETE, "")) == 0
        assert await listed(wire) == []

    play(story)


@pytest.mark.parametrize(
    ("name", "values", "error", "why"),
    [
        ("s", {"interval_ms": "99"}, Error.INVALID_CONFIG, "expected 100 to 3600000"),
        ("s", {"interval_ms": "often"}, Error.INVALID_CONFIG, "expected 100 to 3600000"),
        ("s", {"match": "client_id"}, Error.INVALID_CONFIG, "SELECTOR=REGEX"),
        ("s", {"match": "user=a"}, Error.INVALID_CONFIG, "SELECTOR=REGEX"),
        ("s", {"match": "client_id=(a"}, Error.INVALID_CONFIG, "'(' without ')'"),
        ("s", {"retention_ms": "1"}, Error.INVALID_CONFIG, "known are interval.ms, match, metrics"),
        ("s", {"metrics": "m" * 5000}, Error.INVALID_CONFIG, "at most 4096"),
        ("s", {"metrics": "m," * 40}, Error.INVALID_CONFIG, "at most 32"),
        ("", {"metrics": "*"}, Error.INVALID_REQUEST, "cannot be changed"),
        ("n" * 250, {"metrics": "*"}, Error.INVALID_REQUEST, "cannot be changed"),
    ],
)
def test_an_invalid_subscription_is_refused_with_the_reason(
    name: str, values: dict[str, str], error: Error, why: str
) -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        code, message = await altered(wire, CLIENT_METRICS, name, **values)
        assert code == error
        assert why in message
        assert await listed(wire) == []

    play(story)


def test_no_more_subscriptions_than_the_limit_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from polynya.front.kafka.telemetry import subscriptions

    monkeypatch.setattr(subscriptions, "CLIENT_METRICS_MAX", 1)

    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        assert await altered(wire, CLIENT_METRICS, "a", metrics="*") == (0, "")
        code, message = await altered(wire, CLIENT_METRICS, "b", metrics="*")
        assert (code, "the limit" in message) == (Error.INVALID_CONFIG, True)
        assert await altered(wire, CLIENT_METRICS, "a", metrics="b") == (0, "")

    play(story)


def test_subscriptions_belong_to_administrators_and_pushes_to_each_client(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        gate.token("reader", "read:kafka/")
        gate.token("admin", "admin")
        reader, admin = await gate.wire(world, "reader"), await gate.wire(world, "admin")
        denied = Error.CLUSTER_AUTHORIZATION_FAILED
        assert (await altered(reader, CLIENT_METRICS, "s", metrics="*"))[0] == denied
        assert (await described(reader, CLIENT_METRICS, "s")).error_code.value == denied
        assert await altered(admin, CLIENT_METRICS, "s", metrics="*") == (0, "")
        subscription = await subscription_of(reader)
        assert await pushed(reader, subscription, encoded(SENT)) == 0

    guarded(tmp_path, story)


# --- without a front --------------------------------------------------------------------------


def client(name: str = "c", **others: str) -> Client:
    fields = dict.fromkeys(Client.__struct_fields__, "") | {"client_id": name} | others
    return Client(**fields)


@pytest.mark.parametrize(
    ("match", "matching", "others"),
    [
        ("", ["", "anything at all"], []),
        ("client_id=app.*", ["app", "app 1", "app:é"], ["an app"]),
        ("client_id=[^x]+", ["a b"], ["axb", ""]),
        (r"client_id=\S+\s\S+", ["a b"], ["ab"]),
        ("client_id=a, client_id=.*", ["a"], ["b"]),
    ],
)
def test_a_client_is_matched_as_a_whole(match: str, matching: list[str], others: list[str]) -> None:
    subscription = Subscription({"match": match})
    assert all(subscription.matches(client(each)) for each in matching)
    assert not any(subscription.matches(client(each)) for each in others)


def test_an_expression_that_backtracks_elsewhere_is_matched_at_once() -> None:
    subscription = Subscription(checked({"match": "client_id=(a*)*b"}))
    assert not subscription.matches(client("a" * 256))
    with pytest.raises(InvalidClientMetrics, match="states"):
        checked({"match": "client_id=(a{1000}){1000}"})


def test_an_id_of_a_subscription_hangs_on_the_client_and_on_what_is_wanted() -> None:
    wanted = Wanted(("a",), 1000)
    ids = {
        each.id_for(instance)
        for each in (wanted, Wanted(("b",), 1000), Wanted(("a",), 2000))
        for instance in (b"x" * 16, b"y" * 16)
    }
    assert len(ids) == 6
    assert wanted.id_for(b"x" * 16) in ids
    assert all(-(2**31) <= each < 2**31 for each in ids)


def test_clients_that_are_gone_and_the_oldest_beyond_the_limit_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from polynya.front.kafka.telemetry import instances

    monkeypatch.setattr(instances, "CLIENT_INSTANCES_MAX", 2)
    clients = ClientInstances()
    for number in range(3):
        found = clients.heard(bytes([number]), client(f"c{number}"), float(number))
        found.wanted = Wanted(("*",), 1000)
        clients.take(found, Points([SENT], 0))
    assert [each.client.client_id for each in clients.present(2.0)] == ["c1", "c2"]
    assert clients.series == 2
    assert [each.client.client_id for each in clients.present(61.5)] == ["c2"]
    assert clients.present(63.0) == []
    assert (clients.series, clients.pushes) == (0, 3)


def test_series_are_bounded_and_what_is_left_out_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from polynya.front.kafka.telemetry import instances

    monkeypatch.setattr(instances, "CLIENT_SERIES_PER_INSTANCE_MAX", 3)
    monkeypatch.setattr(instances, "CLIENT_SERIES_MAX", 4)
    clients = ClientInstances()
    points = [Point(f"m{number}", (), Kind.GAUGE, 1.0) for number in range(5)]
    for number, kept in ((0, 3), (1, 1)):
        found = clients.heard(bytes([number]), client(), 0.0)
        found.wanted = Wanted(("*",), 1000)
        clients.take(found, Points(points, 0))
        assert len(found.series) == kept
    assert (clients.series, clients.dropped_points) == (4, 6)
    assert limits.CLIENT_SERIES_MAX >= limits.CLIENT_SERIES_PER_INSTANCE_MAX


def test_a_gauge_without_a_value_is_not_shown_and_no_attribute_replaces_a_label() -> None:
    clients = ClientInstances()
    found = clients.heard(b"i", client(client_instance_id="i"), 0.0)
    found.wanted = Wanted(("*",), 1000)
    attributes = (("", "e"), ("1-b", "x"), ("client_id", "forged"), ("name", 'a"b'))
    clients.take(found, Points([Point("m", attributes, Kind.TOTAL, 2.0)], 0))
    clients.take(found, Points([Point("m", attributes, Kind.TOTAL, 3.0)], 0))
    clients.take(found, Points([Point("g", (), Kind.GAUGE, 1.0)], 0))
    clients.take(found, Points([Point("g", (), Kind.GAUGE, float("nan"))], 0))
    samples = of_kafka_clients(clients, lambda: 0.0)()
    assert [(key, value) for key, value in samples.items() if "{" in key] == [
        (
            'polynya_kafka_client_counter_total{client_id="c",client_instance_id="i",metric="m",'
            '_="e",_1_b="x",name="a\\"b"}',
            3.0,
        )
    ]
