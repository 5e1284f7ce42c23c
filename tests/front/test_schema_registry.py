"""The schema registry over HTTP: subjects, versions, ids, deletions, settings and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stories.service import story
from worlds.registry import RECORD, RegistryClient, grown, registry
from worlds.service import World

from polynya.registry import plans

TEXT = '{"type":"record","name":"R","fields":[{"name":"x","type":"int"}]}'


async def code(client: RegistryClient, method: str, path: str, body: Any = None) -> int:
    """Return the error code of a refused request, whose status it begins with."""
    status, answer = await client.ask(method, path, body)
    assert set(answer) >= {"error_code", "message"}, answer
    assert str(answer["error_code"]).startswith(str(status))
    return int(answer["error_code"])


@story
async def test_a_registry_without_a_topic_is_empty(world: World) -> None:
    async with registry(world) as client:
        for path, wanted in (
            ("", {}),
            ("/", {}),
            ("/subjects", []),
            ("/schemas", []),
            ("/contexts", ["."]),
            ("/config", {"compatibilityLevel": "BACKWARD"}),
            ("/mode", {"mode": "READWRITE"}),
        ):
            assert await client.ask("GET", path) == (200, wanted), path
        assert await code(client, "GET", "/schemas/ids/1") == 40403
        assert await code(client, "GET", "/subjects/s/versions") == 40401
        assert await code(client, "POST", "/subjects/s", client.body(RECORD)) == 40401


@story
async def test_versions_are_registered_and_found(world: World) -> None:
    async with registry(world) as client:
        assert await client.register("a", RECORD) == (200, 1)
        assert await client.register("a", json.dumps(RECORD, indent=2)) == (200, 1)
        assert await client.register("b", RECORD) == (200, 1), "one schema has one id"
        assert await client.register("a", grown(y=1)) == (200, 2)
        assert await client.ask("GET", "/subjects") == (200, ["a", "b"])
        assert await client.ask("GET", "/subjects?subjectPrefix=b") == (200, ["b"])
        assert await client.ask("GET", "/subjects/a/versions") == (200, [1, 2])
        one = {"subject": "a", "version": 1, "id": 1, "schema": TEXT}
        assert await client.ask("GET", "/subjects/a/versions/1") == (200, one)
        assert await client.ask("GET", "/subjects/a/versions/1/schema") == (200, RECORD)
        assert (await client.ask("GET", "/subjects/a/versions/latest"))[1]["version"] == 2
        assert await client.ask("GET", "/schemas/ids/1") == (200, {"schema": TEXT})
        found = (await client.ask("GET", "/schemas/ids/1?fetchMaxId=true"))[1]
        assert found == {"schema": TEXT, "maxId": 2}
        assert await client.ask("GET", "/schemas/ids/1/schema") == (200, RECORD)
        assert await client.ask("GET", "/schemas/ids/1/subjects") == (200, ["a", "b"])
        versions = [{"subject": "a", "version": 1}, {"subject": "b", "version": 1}]
        assert await client.ask("GET", "/schemas/ids/1/versions") == (200, versions)
        assert await client.ask("POST", "/subjects/a", client.body(RECORD)) == (200, one)
        assert await code(client, "POST", "/subjects/b", client.body(grown(y=1))) == 40403
        every = (await client.ask("GET", "/schemas?latestOnly=true"))[1]
        assert [(each["subject"], each["version"]) for each in every] == [("a", 2), ("b", 1)]
        assert (await client.ask("GET", "/subjects?offset=1&limit=5"))[1] == ["b"]


@story
async def test_an_incompatible_schema_is_refused_and_told_why(world: World) -> None:
    other = {**RECORD, "fields": [{"name": "z", "type": "int"}]}
    async with registry(world) as client:
        await client.register("a", RECORD)
        assert await client.register("a", other) == (409, 409)
        path = "/compatibility/subjects/a/versions"
        for version in ("", "/latest", "/1"):
            found = await client.ask("POST", path + version, client.body(other))
            assert found == (200, {"is_compatible": False})
        found = await client.ask("POST", f"{path}?verbose=true", client.body(other))
        assert "READER_FIELD_MISSING_DEFAULT_VALUE" in found[1]["messages"][0]
        assert await client.ask("POST", path, client.body(grown(y=1))) == (
            200,
            {"is_compatible": True},
        )
        assert await code(client, "POST", f"{path}/7", client.body(other)) == 40402
        assert await code(client, "POST", f"{path}/x", client.body(other)) == 42202
        await client.ask("PUT", "/config/a", {"compatibility": "none"})
        assert await client.register("a", other) == (200, 2)


@story
async def test_levels_choose_the_direction_and_the_versions(world: World) -> None:
    plain, more = RECORD, {**RECORD, "fields": [*RECORD["fields"], {"name": "y", "type": "int"}]}  # type: ignore[misc]
    async with registry(world) as client:
        for level, forth, back in (
            ("BACKWARD", 409, 200),
            ("FORWARD", 200, 409),
            ("FULL", 409, 409),
            ("NONE", 200, 200),
        ):
            await client.ask("PUT", "/config", {"compatibility": level})
            for subject, first, second, wanted in (
                (f"{level}-forth", plain, more, forth),
                (f"{level}-back", more, plain, back),
            ):
                assert (await client.register(subject, first))[0] == 200
                assert (await client.register(subject, second))[0] == wanted, subject
        # the third reads the second and not the first
        steps = [
            grown(y=1),
            RECORD,
            {
                **grown(),
                "fields": [{"name": "y", "type": "string", "default": ""}, *RECORD["fields"]],
            },
        ]  # type: ignore[misc]
        for level, wanted in (("BACKWARD", 200), ("BACKWARD_TRANSITIVE", 409)):
            await client.ask("PUT", "/config", {"compatibility": level})
            answers = [(await client.register(level, each))[0] for each in steps]
            assert answers == [200, 200, wanted], level


@story
async def test_bad_requests_are_told_what_is_wrong(world: World) -> None:
    async with registry(world) as client:
        path = "/subjects/a/versions"
        assert await code(client, "POST", path, client.body("{")) == 42201
        assert await code(client, "POST", path, client.body("")) == 42201
        assert await code(client, "POST", path, {}) == 42201
        assert await code(client, "POST", path, []) == 422
        assert await code(client, "POST", path, client.body(RECORD, "THRIFT")) == 42201
        assert await code(client, "POST", path, client.body(RECORD, references=[{}])) == 42201
        lost = [{"name": "n", "subject": "b", "version": 1}]
        assert await code(client, "POST", path, client.body(RECORD, references=lost)) == 42201
        assert await code(client, "POST", path, client.body('"' + "x" * (1 << 20))) == 42201
        for subject in ("%20", "__EMPTY", ":.other:a", "x" * 513, "a%00"):
            found = await code(client, "POST", f"/subjects/{subject}/versions", client.body(RECORD))
            assert found == 42208, subject
        assert await code(client, "GET", "/subjects?deleted=perhaps") == 422
        assert await code(client, "GET", "/subjects?limit=x") == 422
        assert await code(client, "GET", "/nothing") == 404
        assert await code(client, "PATCH", "/config") == 405
        assert await code(client, "PUT", "/config", {"compatibility": "SOME"}) == 42203
        assert await code(client, "PUT", "/config", {"alias": "b"}) == 42205
        assert await code(client, "PUT", "/config", {}) == 42203
        assert await code(client, "PUT", "/mode", {"mode": "SOME"}) == 42204
        assert await code(client, "GET", "/schemas/ids/x") == 404
        assert await client.ask("GET", "/subjects") == (200, [])


@story
async def test_the_registry_has_a_bound_of_versions_and_of_bytes(world: World) -> None:
    async with registry(world) as client:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plans, "REGISTRY_VERSIONS_MAX", 2)
            assert await client.register("a", RECORD) == (200, 1)
            assert await client.register("b", grown(y=1)) == (200, 2)
            assert await client.register("c", grown(z=1)) == (422, 42205)
            assert await client.register("a", RECORD) == (200, 1), "it is there already"
            path = "/subjects/c/versions"
            _, answer = await client.ask("POST", path, client.body(grown(z=1)))
            assert "has 2 versions" in answer["message"] and "at most 2 and" in answer["message"]
            await client.ask("DELETE", "/subjects/b")
            assert await client.register("c", grown(z=1)) == (422, 42205), "it is still kept"
            await client.ask("DELETE", "/subjects/b?permanent=true")
            assert await client.register("c", grown(z=1)) == (200, 3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plans, "REGISTRY_BYTES_MAX", 100)
            assert await client.register("d", grown(w=1)) == (422, 42205)
        assert await client.register("d", grown(w=1)) == (200, 4)


@story
async def test_a_schema_refers_to_a_bounded_number_of_others(world: World) -> None:
    def record(name: str, *references: str) -> dict[str, Any]:
        fields = [{"name": each, "type": each} for each in references]
        text = {"type": "record", "name": name, "fields": fields}
        named = [{"name": each, "subject": each, "version": 1} for each in references]
        return client.body(text, references=named)

    async with registry(world) as client:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plans, "SCHEMA_REFERENCES_MAX", 2)
            for name, references in {"A": (), "B": ("A",), "C": ("A", "B")}.items():
                path = f"/subjects/{name}/versions"
                assert (await client.ask("POST", path, record(name, *references)))[0] == 200
            status, answer = await client.ask("POST", "/subjects/D/versions", record("D", "C"))
            assert (status, answer["error_code"]) == (422, 42201)
            assert "more than 2 schemas are referred to" in answer["message"]


@story
async def test_versions_are_deleted_softly_and_then_permanently(world: World) -> None:
    async with registry(world) as client:
        await client.register("a", RECORD)
        await client.register("a", grown(y=1))
        path = "/subjects/a/versions/1"
        assert await code(client, "DELETE", f"{path}?permanent=true") == 40407
        assert await client.ask("DELETE", path) == (200, 1)
        assert await code(client, "DELETE", path) == 40406
        assert await code(client, "GET", path) == 40402
        assert (await client.ask("GET", f"{path}?deleted=true"))[0] == 200
        assert await client.ask("GET", "/subjects/a/versions") == (200, [2])
        assert (await client.ask("GET", "/schemas/ids/1"))[0] == 200
        assert await client.ask("GET", "/schemas/ids/1/subjects") == (200, [])
        assert await client.register("a", RECORD) == (200, 1), "the id comes back"
        assert await client.ask("GET", "/subjects/a/versions") == (200, [2, 3])
        assert await client.ask("DELETE", f"{path}?permanent=true") == (200, 1)
        assert await client.ask("GET", "/subjects/a/versions?deleted=true") == (200, [2, 3])
        assert await code(client, "DELETE", "/subjects/a?permanent=true") == 40405
        assert await client.ask("DELETE", "/subjects/a") == (200, [2, 3])
        assert await code(client, "DELETE", "/subjects/a") == 40404
        assert await client.ask("GET", "/subjects") == (200, [])
        assert await client.ask("GET", "/subjects?deletedOnly=true") == (200, ["a"])
        assert await client.ask("DELETE", "/subjects/a?permanent=true") == (200, [2, 3])
        assert await code(client, "GET", "/schemas/ids/1") == 40403
        assert await client.register("a", RECORD) == (200, 3), (
            "ids of deleted schemas are not reused"
        )
        assert (await client.ask("GET", "/subjects/a/versions"))[1] == [1]


@story
async def test_a_schema_that_others_refer_to_stays(world: World) -> None:
    item = {"type": "record", "name": "Item", "fields": []}
    order = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": "Item"}]}
    references = [{"name": "Item", "subject": "item", "version": 1}]
    async with registry(world) as client:
        await client.register("item", item)
        assert await client.register("order", order, references=references) == (200, 2)
        found = (await client.ask("GET", "/schemas/ids/2"))[1]
        assert found["references"] == references
        assert await client.ask("GET", "/subjects/item/versions/1/referencedby") == (200, [2])
        assert await code(client, "DELETE", "/subjects/item") == 42206
        assert await code(client, "DELETE", "/subjects/item/versions/1") == 42206
        await client.ask("DELETE", "/subjects/order")
        assert await client.ask("DELETE", "/subjects/item") == (200, [1])


@story
async def test_configs_and_modes_of_subjects(world: World) -> None:
    async with registry(world) as client:
        assert await code(client, "GET", "/config/a") == 40408
        assert await code(client, "DELETE", "/config/a") == 40408
        shown = await client.ask("GET", "/config/a?defaultToGlobal=true")
        assert shown == (200, {"compatibilityLevel": "BACKWARD"})
        assert await client.ask("PUT", "/config/a", {"compatibility": "FULL"}) == (
            200,
            {"compatibility": "FULL"},
        )
        assert await client.ask("GET", "/config/a") == (200, {"compatibilityLevel": "FULL"})
        assert await client.ask("DELETE", "/config/a") == (200, {"compatibilityLevel": "FULL"})
        await client.ask("PUT", "/config", {"compatibility": "NONE"})
        assert await client.ask("GET", "/config") == (200, {"compatibilityLevel": "NONE"})
        assert (await client.ask("DELETE", "/config"))[0] == 200
        assert await client.ask("GET", "/config") == (200, {"compatibilityLevel": "BACKWARD"})

        assert await code(client, "GET", "/mode/a") == 40409
        assert await client.ask("PUT", "/mode/a", {"mode": "READONLY"}) == (
            200,
            {"mode": "READONLY"},
        )
        assert await client.register("a", RECORD) == (422, 42205)
        assert await client.register("b", RECORD) == (200, 1)
        assert await client.ask("DELETE", "/mode/a") == (200, {"mode": "READONLY"})
        assert await code(client, "PUT", "/mode", {"mode": "IMPORT"}) == 42205


@story
async def test_schemas_are_imported_with_their_ids(world: World) -> None:
    async with registry(world) as client:
        assert await client.register("a", RECORD, id=100, version=3) == (422, 42205)
        await client.ask("PUT", "/mode", {"mode": "IMPORT"})
        assert await client.register("a", RECORD, id=100, version=3) == (200, 100)
        assert await client.register("b", grown(y=1), id=100) == (422, 42205)
        assert await client.register("b", RECORD) == (422, 42205)
        await client.ask("PUT", "/mode", {"mode": "READWRITE"})
        assert await client.register("a", grown(y=1)) == (200, 101)
        assert (await client.ask("GET", "/subjects/a/versions"))[1] == [3, 4]


@story
async def test_normalized_texts_and_what_is_kept_beside_them(world: World) -> None:
    one, two = '{"type":"int","b":1,"a":2}', '{"type":"int","a":2,"b":1}'
    async with registry(world) as client:
        await client.ask("PUT", "/config", {"compatibility": "NONE"})
        assert [await client.register("a", each) for each in (one, two)] == [(200, 1), (200, 2)]
        await client.ask("PUT", "/config/b", {"normalize": True})
        assert [await client.register("b", each) for each in (one, two)] == [(200, 2), (200, 2)]
        metadata = {"properties": {"owner": "shop"}}
        assert await client.register("b", two, metadata=metadata) == (200, 3)
        assert (await client.ask("GET", "/schemas/ids/3"))[1]["metadata"] == metadata


@story
async def test_protobuf_and_json_schemas_evolve(world: World) -> None:
    head = 'syntax = "proto3"; '
    async with registry(world) as client:
        types = (await client.ask("GET", "/schemas/types"))[1]
        assert types == ["PROTOBUF", "JSON", "AVRO"]
        for type_, first, second, third in (
            ("PROTOBUF", f"{head}message M {{ int32 a = 1; }}", f"{head}message M {{ int64 a = 1; }}", f"{head}message M {{ }}"),
            ("JSON", {"type": "integer"}, {"type": "number"}, {"type": "string"}),
        ):  # fmt: skip
            subject = type_.lower()
            one = await client.register(subject, first, type_)
            assert one[0] == 200
            assert (await client.register(subject, second, type_))[0] == 200
            status, _ = await client.register(subject, first, type_)
            assert status == 200, "it is version 1"
            third_status, _ = await client.register(subject, third, type_)
            assert third_status == (409 if type_ == "JSON" else 200)
            assert await client.register(subject, RECORD) == (409, 409), "of another type"
            shown = (await client.ask("GET", f"/schemas/ids/{one[1]}"))[1]
            assert shown["schemaType"] == type_
        assert await code(client, "GET", "/subjects/json/versions/1?format=serialized") == 42201
        assert await code(client, "GET", "/subjects/json/versions/1?format=other") == 422


@story
async def test_one_protobuf_schema_in_other_words_is_one_version(world: World) -> None:
    text = 'syntax = "proto3"; message M { int32 a = 1; }'
    async with registry(world) as client:
        assert await client.register("s", text, "PROTOBUF") == (200, 1)
        found = await client.ask("GET", "/subjects/s/versions/1?format=serialized")
        coded = found[1]["schema"]
        assert await client.register("s", coded, "PROTOBUF") == (200, 1)
        same = (await client.ask("POST", "/subjects/s", client.body(coded, "PROTOBUF")))[1]
        assert (same["version"], same["schema"]) == (1, text)
        assert (await client.ask("GET", "/schemas/ids/1?format=serialized"))[1]["schema"] == coded
