"""`/v1/topics`: topics are created, changed, described and deleted, by callers who may."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from stories.service import story
from worlds.service import World

from polynya.access import Principal
from polynya.access.grants import Grant, Verb
from polynya.front.http.api.kafka.topics import PATH, TopicRoutes
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request
from polynya.front.kafka.configs import NodeProfiles
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding

Send = Callable[..., Awaitable[tuple[int, Any]]]


def sender(world: World, profiles: NodeProfiles = NodeProfiles()) -> Send:  # noqa: B008
    ids = iter(range(1, 100))
    routes = TopicRoutes(
        world.service, lambda: next(ids).to_bytes(16), partitions=2, profiles=profiles
    )

    async def send(
        method: str, *segments: str, principal: Principal | None = None, **body: object
    ) -> tuple[int, Any]:
        request = Request(method, PATH, segments, {}, {}, json.dumps(body).encode(), "", principal)
        answer = await (routes.handle if segments else routes.list)(request)
        return answer.status, json.loads(answer.body) if answer.body else None

    return send


@story
async def test_a_topic_is_created_changed_described_and_deleted(world: World) -> None:
    send = sender(world)
    configs = {"retention.ms": "1000", "content.type": "text/plain"}
    status, made = await send("PUT", "t", configs=configs)
    assert (status, made["partitions"], made["configs"]) == (201, 2, configs)
    assert (await send("PUT", "t", partitions=2, configs=configs))[0] == 200
    status, changed = await send(
        "PATCH", "t", partitions=3, configs={"retention.ms": None, "segment.ms": "5"}
    )
    assert status == 200
    assert changed["configs"] == {"content.type": "text/plain", "segment.ms": "5"}
    assert changed["content_type"] == "text/plain"
    _, shown = await send("GET", "t")
    assert [(each["partition"], each["stream"]) for each in shown["details"]] == [
        (number, f"kafka/t/{number}") for number in range(3)
    ]
    assert shown["defaults"]["retention.ms"] == "-1" and "content.type" in shown["defaults"]
    assert "segment.ms" not in shown["defaults"], "it has no effect"
    assert [each["name"] for each in (await send("GET"))[1]["topics"]] == ["t"]
    assert await send("DELETE", "t") == (204, None)
    assert (await send("GET"))[1] == {"topics": []}


@story
async def test_compaction_says_when_nothing_is_compacted(world: World) -> None:
    send = sender(world, NodeProfiles(object_store=False))
    assert (await send("PUT", "plain"))[1]["notes"] == []
    made = (await send("PUT", "t", configs={"cleanup.policy": "compact"}))[1]
    assert made["notes"] == (await send("GET", "t"))[1]["notes"]
    (note,) = made["notes"]
    assert note.endswith("this node has none; all records stay. Set cold.backend")
    both = {"cleanup.policy": "compact,delete"}
    (note,) = (await send("PATCH", "plain", configs=both))[1]["notes"]
    assert note.endswith("retention applies. Set cold.backend")
    assert (await sender(world)("GET", "t"))[1]["notes"] == []


@story
async def test_a_new_topic_has_the_default_profile_of_the_bucket_of_topics(world: World) -> None:
    send = sender(world)
    assert (await send("PUT", "before"))[1]["configs"] == {}
    await world.service.bucket_profiles.set("kafka", "diskless")
    assert (await send("PUT", "t"))[1]["configs"] == {"profile": "diskless"}
    assert (await send("PUT", "t"))[0] == (await send("PUT", "before"))[0] == 200
    named = await send("PUT", "named", configs={"profile": "replicated"})
    assert named[1]["configs"] == {"profile": "replicated"}
    await world.service.bucket_profiles.set("kafka", None)
    assert (await send("PUT", "t"))[0] == 200, "the default is for new topics"
    with pytest.raises(Failure) as refused:
        await send("PUT", "t", configs={"profile": "replicated"})
    assert refused.value.code == "TOPIC_CONFLICT"


@story
async def test_a_config_that_cannot_be_kept_is_refused(world: World) -> None:
    send = sender(world)
    await send("PUT", "old")
    for method, topic in (("PUT", "t"), ("PATCH", "old")):
        for name, value in (("min.insync.replicas", "2"), ("max.message.bytes", "33554433")):
            with pytest.raises(Failure, match=name) as refused:
                await send(method, topic, configs={name: value})
            assert refused.value.code == "TOPIC_INVALID"


@story
async def test_names_that_kafka_refuses(world: World) -> None:
    send = sender(world)
    await send("PUT", "a.b")
    assert (await send("PUT", "a.b"))[0] == 200
    for name, why in (
        ("a_b", "collides with existing topic 'a.b'"),
        ("__consumer_offsets", "is res"),
    ):
        with pytest.raises(Failure, match=why) as refused:
            await send("PUT", name)
        assert refused.value.code == "TOPIC_INVALID"


@story
async def test_the_storage_switch_of_ursa_is_the_profile(world: World) -> None:
    send = sender(world)
    switch = "ursa.storage.enable"
    for value, profile in (("true", "diskless"), ("false", "replicated")):
        for configs in ({switch: value}, {switch: value, "profile": profile}):
            made = await send("PUT", f"t-{value}", configs=configs)
            assert (made[0] in (200, 201), made[1]["configs"]) == (True, {"profile": profile})
    wrong = [{switch: "true", "profile": "replicated"}, {switch: "yes"}]
    wrong.append({switch: "false", "profile": "leased"})
    for configs in wrong:
        with pytest.raises(Failure) as refused:
            await send("PUT", "t", configs=configs)
        assert refused.value.code == "TOPIC_INVALID"


@pytest.mark.parametrize(
    ("method", "name", "body", "code"),
    [
        ("PUT", "no/topic", {}, "TOPIC_INVALID"),
        ("PUT", "new", {"partitions": 10_001}, "TOPIC_INVALID"),
        ("PUT", "new", {"configs": {"no.config": "1"}}, "TOPIC_INVALID"),
        ("PUT", "new", {"configs": {"retention.ms": "soon"}}, "TOPIC_INVALID"),
        ("PUT", "new", {"colour": 1}, "INVALID_REQUEST"),
        ("PUT", "known", {"partitions": 9}, "TOPIC_CONFLICT"),
        ("PUT", "taken", {}, "TOPIC_CONFLICT"),
        ("PATCH", "known", {"partitions": 1}, "TOPIC_CONFLICT"),
        ("PATCH", "known", {"configs": {"content.type": "a/b"}}, "TOPIC_INVALID"),
        ("PATCH", "none", {"partitions": 3}, "TOPIC_NOT_FOUND"),
        ("GET", "none", {}, "TOPIC_NOT_FOUND"),
        ("DELETE", "none", {}, "TOPIC_NOT_FOUND"),
        ("POST", "known", {}, "METHOD_NOT_ALLOWED"),
    ],
)
def test_what_cannot_be_is_refused(
    method: str, name: str, body: dict[str, object], code: str
) -> None:
    @story
    async def run(world: World) -> None:
        send = sender(world)
        await send("PUT", "known")
        taken = Create("kafka/taken/1", 1, "text/plain", Encoding.BYTES)
        await world.service.call(world.service.group_of("kafka/taken/1"), taken)
        with pytest.raises(Failure) as refused:
            await send(method, name, **body)
        assert refused.value.code == code

    run()


@story
async def test_a_caller_sees_the_topics_that_it_may_read(world: World) -> None:
    send = sender(world)
    for name in ("mine", "other"):
        await send("PUT", name)
    reads = Principal(id="id", name="name", grants=(Grant(frozenset((Verb.READ,)), "kafka/mine/"),))
    _, listed = await send("GET", principal=reads)
    assert [each["name"] for each in listed["topics"]] == ["mine"]


@story
async def test_records_are_posted_to_the_partition_of_their_key(world: World) -> None:
    send = sender(world)
    await send("PUT", "t", partitions=2, configs={"max.message.bytes": "1000"})
    record = {"key": "cust-1", "value": "one", "headers": [["source", "web"]]}
    assert await send("POST", "t", "records", records=[record]) == (
        200,
        {"partition": 1, "offset": 0},
    )
    keyless = [{"value": None}, {"value": "two"}]
    status, first = await send("POST", "t", "records", records=keyless, partition=1)
    assert (status, first) == (200, {"partition": 1, "offset": 1})
    _, shown = await send("GET", "t")
    assert [each["next_offset"] for each in shown["details"]] == [0, 3]
    for wrong, code, words in (
        ({"records": [{"value": "x"}], "partition": 2}, "INVALID_REQUEST", "partitions 0 to 1"),
        ({"records": []}, "INVALID_REQUEST", "is empty"),
        ({"records": [{"value": 7}]}, "INVALID_REQUEST", "value"),
        ({"records": [{"value": "x", "timestamp": 1}]}, "INVALID_REQUEST", "timestamp"),
        ({"records": [record, {"value": "x"}]}, "INVALID_REQUEST", "several keys"),
        ({"records": [{"key": {"base64": ""}, "value": ""}]}, "INVALID_REQUEST", "key"),
        ({"records": [{"value": "x" * 1001}]}, "BODY_TOO_LARGE", "max.message.bytes"),
    ):
        with pytest.raises(Failure) as refused:
            await send("POST", "t", "records", **wrong)
        assert refused.value.code == code and words in refused.value.message, wrong
    with pytest.raises(Failure) as refused:
        await send("POST", "none", "records", records=[record])
    assert refused.value.code == "TOPIC_NOT_FOUND"
    with pytest.raises(Failure) as refused:
        await send("GET", "t", "records")
    assert refused.value.code == "METHOD_NOT_ALLOWED"
