"""Two cores of a node serve the schema registry at once: the log decides who was first."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

from stories.service import node_story, story
from worlds.registry import RECORD, RegistryClient, grown, registry
from worlds.service import Node, World

from polynya.front.http.registry.log import PREFIX
from polynya.local.api import ReadQuery
from polynya.registry import plans
from polynya.registry.plans import ID_JUMP, Asked, Change
from polynya.registry.records import Content, read_object
from polynya.registry.view import View
from polynya.wire.kafka.records import decoded_records, placed_batches


async def clients_of(node: Node, stack: AsyncExitStack) -> list[RegistryClient]:
    return [await stack.enter_async_context(registry(world)) for world in node.worlds]


@node_story
async def test_many_register_at_once_on_both_cores(node: Node) -> None:
    """Register twenty schemas, each on both cores in two subjects: each gets one id, and no id
    comes twice."""
    schemas = [grown(**{f"f{number}": number}) for number in range(20)]
    async with AsyncExitStack() as stack:
        clients = await clients_of(node, stack)
        answers = await asyncio.gather(
            *(
                client.register(f"s{number}-{subject}", schema)
                for number, schema in enumerate(schemas)
                for subject in "ab"
                for client in clients
            )
        )
        ids = [id_ for status, id_ in answers if status == 200]
        assert len(ids) == len(answers) == 80
        by_schema = [set(ids[at : at + 4]) for at in range(0, 80, 4)]
        assert all(len(each) == 1 for each in by_schema)
        assert sorted(each.pop() for each in by_schema) == list(range(1, 21))
        for client in clients:
            for subject in ("s0-a", "s19-b"):
                assert (await client.ask("GET", f"/subjects/{subject}/versions"))[1] == [1]


@node_story
async def test_a_change_that_comes_between_is_seen(node: Node) -> None:
    """The other core registers a schema after this one has decided: the first id is taken."""
    async with AsyncExitStack() as stack:
        one, two = await clients_of(node, stack)
        await one.register("a", RECORD)
        seen: list[int] = []

        async def decide(view: View) -> Change:
            seen.append(view.id_max)
            if len(seen) == 1:
                assert await two.register("b", grown(y=1)) == (200, 2)
            asked = Asked(Content("AVRO", '"int"'))
            return plans.register(view, "c", asked, one.log.history)

        assert await one.log.change(decide) == {"id": 3, "version": 1}
        assert (seen, one.log.conflicts) == ([1, 2], 1)


@node_story
async def test_one_subject_evolves_on_both_cores(node: Node) -> None:
    """All versions read the one before, whichever core wrote it, and numbers have no gaps."""
    async with AsyncExitStack() as stack:
        clients = await clients_of(node, stack)
        await clients[0].register("s", RECORD)
        other = {**RECORD, "name": "Other"}
        answers = await asyncio.gather(
            *(
                clients[number % 2].register(
                    "s", other if number % 5 == 4 else grown(**{f"f{number}": 0})
                )
                for number in range(20)
            )
        )
        assert [status for status, _ in answers].count(409) == 4
        for client in clients:
            assert (await client.ask("GET", "/subjects/s/versions"))[1] == list(range(1, 18))


@node_story
async def test_what_one_core_changes_the_other_sees(node: Node) -> None:
    async with AsyncExitStack() as stack:
        one, two = await clients_of(node, stack)
        assert await two.ask("GET", "/subjects") == (200, [])
        await one.register("a", RECORD)
        assert await two.ask("GET", "/subjects/a/versions") == (200, [1])
        assert (await two.ask("DELETE", "/subjects/a"))[0] == 200
        assert (await one.ask("GET", "/subjects"))[1] == []
        await one.ask("PUT", "/config", {"compatibility": "FULL"})
        assert (await two.ask("GET", "/config"))[1] == {"compatibilityLevel": "FULL"}


@story
async def test_the_topic_has_the_records_of_confluents_registry(world: World) -> None:
    async with registry(world) as client:
        await client.register("a", RECORD)
        await client.ask("PUT", "/config", {"compatibility": "NONE"})
        await client.ask("PUT", "/mode/a", {"mode": "READWRITE"})
        await client.ask("DELETE", "/subjects/a")
        page = await world.service.read(ReadQuery(f"{PREFIX}0"))
        found = [
            (each.key, each.value)
            for span in page.spans  # type: ignore[union-attr]
            for batch, _, base in placed_batches(span.payload, span.record)
            for each in decoded_records(batch, base)
        ]
        text = json.dumps(json.dumps(RECORD, separators=(",", ":"))).encode()
        assert found == [
            (
                b'{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}',
                b'{"subject":"a","version":1,"id":1,"schema":' + text + b',"deleted":false}',
            ),
            (b'{"keytype":"NOOP","magic":0}', b'{"polynya":{"history":1,"idMax":1}}'),
            (
                b'{"keytype":"CONFIG","subject":null,"magic":0}',
                b'{"compatibilityLevel":"NONE"}',
            ),
            (b'{"keytype":"MODE","subject":"a","magic":0}', b'{"mode":"READWRITE"}'),
            (
                b'{"keytype":"DELETE_SUBJECT","subject":"a","magic":0}',
                b'{"subject":"a","version":1}',
            ),
            (b'{"keytype":"MODE","subject":"a","magic":0}', None),
        ]
        assert all(read_object(key) for key, _ in found)
        topic = client.log._topics.known("_schemas")
        assert topic is not None
        assert topic.settings["cleanup.policy"] == "compact"


@story
async def test_ids_jump_after_a_restore(world: World) -> None:
    async with registry(world) as client:
        await client.register("a", RECORD)
        world.service.local.history = 2
        assert await client.register("b", RECORD) == (200, 1), "a known schema keeps its id"
        assert await client.register("b", grown(y=1)) == (200, 1 + ID_JUMP)
        assert await client.register("b", grown(y=2)) == (200, 2 + ID_JUMP)


@story
async def test_a_topic_that_is_created_again_is_read_again(world: World) -> None:
    async with registry(world) as client:
        await client.register("a", RECORD)
        topics = client.log._topics
        topic = topics.known("_schemas")
        assert topic is not None
        await topics.drop(topic)
        assert await client.ask("GET", "/subjects") == (200, [])
        assert await client.register("b", grown(y=1)) == (200, 1)
        assert await client.ask("GET", "/subjects") == (200, ["b"])


@node_story
async def test_a_topic_that_the_other_core_deleted_is_created_again(node: Node) -> None:
    async with AsyncExitStack() as stack:
        one, two = await clients_of(node, stack)
        await one.register("a", RECORD)
        assert await two.ask("GET", "/subjects") == (200, ["a"])
        topic = two.log._topics.known("_schemas")
        assert topic is not None
        await two.log._topics.drop(topic)
        assert await one.ask("GET", "/subjects") == (200, [])
        assert await one.register("b", grown(y=1)) == (200, 1)
        assert await two.ask("GET", "/subjects") == (200, ["b"])


@story
async def test_a_topic_of_two_partitions_is_refused(world: World) -> None:
    async with registry(world) as client:
        await client.log._topics.create("_schemas", 2, [])
        status, answer = await client.ask("GET", "/subjects")
        assert (status, answer["error_code"]) == (422, 42205)
        assert "has 2 partitions" in answer["message"]


@story
async def test_a_mirrored_topic_is_read_only(world: World) -> None:
    async with registry(world) as client:
        await client.log._topics.create("_schemas", 1, [("mirror.from", "kafka:9092")])
        status, answer = await client.ask("PUT", "/config", {"compatibility": "NONE"})
        assert (status, answer["error_code"]) == (422, 42205)
        assert "polynya mirror --cut-over" in answer["message"]
        await client.log._topics.alter("_schemas", lambda _: {})
        assert (await client.ask("PUT", "/config", {"compatibility": "NONE"}))[0] == 200
