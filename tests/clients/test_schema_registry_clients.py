"""Unchanged clients of Confluent's schema registry against a real node: they register, evolve, are
refused, and read back what they produced."""

from __future__ import annotations

import base64
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import go_programs
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from product import RunningNode

pytestmark = pytest.mark.process
SECONDS = 60.0
GO_SECONDS = 280  # with an empty cache of Go
HERE = Path(__file__).parent
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "item", "type": "long"}],
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    running = RunningNode(tmp_path_factory.mktemp("registry") / "data", ("--cores", "2"))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "request failed" not in "".join(running.log), "".join(running.log)


@pytest.fixture(scope="module")
def client(node: RunningNode) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": f"{node.url}/registry"})


def context(topic: str) -> SerializationContext:
    return SerializationContext(topic, MessageField.VALUE)


def through(node: RunningNode, topic: str, values: list[bytes]) -> list[bytes]:
    """Produce values, and return what a consumer reads."""
    producer = Producer({"bootstrap.servers": node.kafka})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(SECONDS) == 0
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(len(values), SECONDS)
    consumer.close()
    return [each.value() for each in found]


def evolved(**more: Any) -> str:
    """Return the schema with one more field."""
    return json.dumps({**ORDER, "fields": [*ORDER["fields"], more]})


def test_avro_records_are_written_read_and_evolve(
    node: RunningNode, client: SchemaRegistryClient
) -> None:
    first = AvroSerializer(client, json.dumps(ORDER))
    second = AvroSerializer(client, evolved(name="note", type="string", default=""))
    where = context("avro")
    values = [first({"item": 7}, where), second({"item": 8, "note": "x"}, where)]
    assert [each[:5] for each in values] == [b"\0\0\0\0\1", b"\0\0\0\0\2"]
    read = AvroDeserializer(client)
    assert [read(each, where) for each in through(node, "avro", values)] == [
        {"item": 7},
        {"item": 8, "note": "x"},
    ]
    newest = AvroDeserializer(client, evolved(name="note", type="string", default=""))
    assert newest(values[0], where) == {"item": 7, "note": ""}
    refused = AvroSerializer(client, evolved(name="must", type="string"))
    with pytest.raises(SchemaRegistryError, match="READER_FIELD_MISSING_DEFAULT_VALUE") as failed:
        refused({"item": 9, "must": "x"}, where)
    assert (failed.value.http_status_code, failed.value.error_code) == (409, 409)


def test_json_records_are_written_read_and_evolve(
    node: RunningNode, client: SchemaRegistryClient
) -> None:
    def schema(**properties: str) -> str:
        types = {name: {"type": each} for name, each in properties.items()}
        made = {"title": "Order", "type": "object", "properties": types}
        return json.dumps({**made, "additionalProperties": False})

    where = context("json")
    first = JSONSerializer(schema(item="integer"), client)
    second = JSONSerializer(schema(item="number", note="string"), client)
    values = [first({"item": 7}, where), second({"item": 8.5, "note": "x"}, where)]
    read = JSONDeserializer(None, schema_registry_client=client)
    assert [read(each, where) for each in through(node, "json", values)] == [
        {"item": 7},
        {"item": 8.5, "note": "x"},
    ]
    with pytest.raises(SchemaRegistryError) as failed:
        JSONSerializer(schema(item="string"), client)({"item": "9"}, where)
    assert failed.value.error_code == 409


def order_type(**fields: int) -> Any:
    """Return a class of messages with fields of these types, as the compiler would make it."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    made = file.message_type.add(name="Order")
    for number, (name, type_) in enumerate(fields.items(), 1):
        made.field.add(name=name, number=number, type=type_, label=1)  # type: ignore[arg-type]
    file.message_type.add(name="Other")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_protobuf_records_are_written_read_and_evolve(
    node: RunningNode, client: SchemaRegistryClient
) -> None:
    where, plain = context("protobuf"), {"use.deprecated.format": False}
    one, two, three = order_type(item=5), order_type(item=3, note=9), order_type(item=9)
    values = [
        ProtobufSerializer(one, client, plain)(one(item=7), where),
        ProtobufSerializer(two, client, plain)(two(item=2**40, note="x"), where),
    ]
    read = ProtobufDeserializer(two, plain, client)
    found = [read(each, where) for each in through(node, "protobuf", values)]
    assert [(each.item, each.note) for each in found] == [(7, ""), (2**40, "x")]
    text = client.get_latest_version("protobuf-value").schema.schema_str
    assert text is not None
    assert "message Order {\n  int64 item = 1;\n  string note = 2;\n}" in text
    with pytest.raises(SchemaRegistryError, match="FIELD_TYPE_CHANGED"):
        ProtobufSerializer(three, client, plain)(three(item="9"), where)


def test_the_calls_of_the_client(client: SchemaRegistryClient) -> None:
    schema = Schema('{"type": "enum", "name": "E", "symbols": ["A"]}', "AVRO")
    id_ = client.register_schema("calls", schema)
    assert client.get_schema(id_).schema_str == '{"type":"enum","name":"E","symbols":["A"]}'
    assert client.lookup_schema("calls", schema).version == 1
    assert "calls" in client.get_subjects()
    assert client.get_versions("calls") == [1]
    assert client.get_latest_version("calls").schema_id == id_
    assert client.get_schema_types() == ["PROTOBUF", "JSON", "AVRO"]
    client.set_compatibility("calls", "FULL")
    assert client.get_compatibility("calls") == "FULL"
    more = Schema('{"type": "enum", "name": "E", "symbols": ["A", "B"]}', "AVRO")
    assert not client.test_compatibility("calls", more)
    assert client.delete_subject("calls") == client.delete_subject("calls", permanent=True) == [1]
    with pytest.raises(SchemaRegistryError) as failed:
        client.get_versions("calls")
    assert failed.value.error_code == 40401


def sent(node: RunningNode, method: str, path: str, body: Any = None) -> Any:
    """Send a request as Confluent's Java client does, and return the JSON of the response."""
    data = None if body is None else json.dumps(body).encode()
    headers = {
        "Content-Type": "application/vnd.schemaregistry.v1+json",
        "Accept": "application/vnd.schemaregistry.v1+json, application/vnd.schemaregistry+json, application/json",
        "Confluent-Accept-Unknown-Properties": "true",
        "X-Forward": "true",
    }
    request = urllib.request.Request(  # noqa: S310 (of the test's own node)
        f"{node.url}/registry{path}", data, headers, method=method
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
        assert answer.headers["content-type"] == "application/vnd.schemaregistry.v1+json"
        return json.loads(answer.read())


def refused(node: RunningNode, method: str, path: str, body: Any = None) -> tuple[int, int]:
    """Send a request as `sent` does. Return the status of the refusal and its `error_code`."""
    with pytest.raises(urllib.error.HTTPError) as failed:
        sent(node, method, path, body)
    assert failed.value.headers["content-type"] == "application/vnd.schemaregistry.v1+json"
    return failed.value.code, json.loads(failed.value.read())["error_code"]


def test_the_calls_and_bytes_of_the_java_serializer(
    node: RunningNode, client: SchemaRegistryClient
) -> None:
    """`KafkaAvroSerializer` registers, or looks up without `auto.register.schemas`, or takes the
    latest version; `KafkaAvroDeserializer` asks for the id of a record. The frame is a zero byte, the
    id as four bytes, and the Avro body."""
    text = '{"type":"record","name":"J","fields":[{"name":"x","type":"long"}]}'
    made = sent(node, "POST", "/subjects/java-value/versions?normalize=false", {"schema": text})
    id_ = made["id"]
    found = sent(
        node, "POST", "/subjects/java-value?normalize=false&deleted=false", {"schema": text}
    )
    wanted = {"subject": "java-value", "version": 1, "id": id_, "schema": text}
    assert found == wanted == sent(node, "GET", "/subjects/java-value/versions/latest")
    value = b"\0" + id_.to_bytes(4, "big") + b"\x0e"
    assert AvroSerializer(client, text)({"x": 7}, context("java")) == value
    (read,) = through(node, "java", [value])
    asked = f"/schemas/ids/{int.from_bytes(read[1:5], 'big')}?fetchMaxId=false&subject=java-value"
    assert sent(node, "GET", asked) == {"schema": text}
    assert AvroDeserializer(client)(read, context("java")) == {"x": 7}


def test_the_calls_and_bytes_of_the_java_protobuf_serializer(
    node: RunningNode, client: SchemaRegistryClient
) -> None:
    """`KafkaProtobufSerializer` registers what a file imports, looks its version up, and registers the
    file with references. Behind the id are the indexes of the message: their number and each of
    them, as varints in zigzag; the first message of a file is one zero byte."""
    item = 'syntax = "proto3";\npackage java;\n\nmessage Item {\n  int64 id = 1;\n}\n'
    text = (
        'syntax = "proto3";\npackage java;\n\nimport "java_item.proto";\n\nmessage First {\n  Item item = 1;\n}\n'
        "message Order {\n  message Line {\n    Item item = 1;\n  }\n}\n"
    )
    imported = {"schemaType": "PROTOBUF", "schema": item}
    sent(node, "POST", "/subjects/java_item.proto/versions?normalize=false", imported)
    found = sent(node, "POST", "/subjects/java_item.proto?normalize=false&deleted=true", imported)
    reference = {"name": "java_item.proto", "subject": "java_item.proto", "version": 1}
    assert {each: found[each] for each in ("subject", "version")} == {
        "subject": reference["subject"],
        "version": reference["version"],
    }
    body = {"schemaType": "PROTOBUF", "references": [reference], "schema": text}
    id_ = sent(node, "POST", "/subjects/java_proto-value/versions?normalize=false", body)["id"]
    asked = sent(node, "GET", f"/schemas/ids/{id_}?fetchMaxId=false&subject=java_proto-value")
    assert asked == body
    dependency = sent(node, "GET", "/subjects/java_item.proto/versions/1?deleted=true")
    assert (dependency["schemaType"], dependency["schema"]) == ("PROTOBUF", item)
    pool, plain = descriptor_pool.DescriptorPool(), {"use.deprecated.format": False}
    for name, subject in (("java_item.proto", "java_item.proto"), ("o.proto", "java_proto-value")):
        made = sent(node, "GET", f"/subjects/{subject}/versions/1?format=serialized")["schema"]
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(made))
        file.name = name
        pool.AddSerializedFile(file.SerializeToString())
    for name, indexes in {"First": b"\0", "Order.Line": b"\4\2\0"}.items():
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"java.{name}"))
        value = b"\0" + id_.to_bytes(4, "big") + indexes + b"\x0a\2\x08\7"
        (read,) = through(node, f"java_proto_{name}", [value])
        got = ProtobufDeserializer(kind, plain, client)(read, context("java_proto"))
        assert got.item.id == 7


def test_the_calls_and_bytes_of_the_java_json_serializer(
    node: RunningNode, client: SchemaRegistryClient
) -> None:
    text = '{"type":"object","properties":{"x":{"type":"integer"}},"additionalProperties":false}'
    body = {"schemaType": "JSON", "schema": text}
    id_ = sent(node, "POST", "/subjects/java_json-value/versions?normalize=false", body)["id"]
    wanted = {"subject": "java_json-value", "version": 1, "id": id_, **body}
    assert sent(node, "POST", "/subjects/java_json-value?normalize=false", body) == wanted
    asked = f"/schemas/ids/{id_}?fetchMaxId=false&subject=java_json-value"
    assert sent(node, "GET", asked) == body
    (read,) = through(node, "java_json", [b"\0" + id_.to_bytes(4, "big") + b'{"x":7}'])
    assert JSONDeserializer(text, schema_registry_client=client)(read, context("java_json")) == {
        "x": 7
    }


def test_a_java_client_is_told_what_is_wrong_in_its_words(node: RunningNode) -> None:
    """Serializers choose by the status and `error_code`: 40401 and 40403 mean that a subject or
    schema is unknown, 409 that it is incompatible, 42201 that it is invalid."""
    first, second = ('{"type":"long"}', '{"type":"string"}')
    assert refused(node, "GET", "/schemas/ids/4711?fetchMaxId=false&subject=s") == (404, 40403)
    assert refused(node, "GET", "/subjects/java_none/versions/latest") == (404, 40401)
    look = "/subjects/java_wrong-value?normalize=false&deleted=false"
    assert refused(node, "POST", look, {"schema": first}) == (404, 40401)
    register = "/subjects/java_wrong-value/versions?normalize=false"
    sent(node, "POST", register, {"schema": first})
    assert refused(node, "POST", look, {"schema": second}) == (404, 40403)
    assert refused(node, "POST", register, {"schema": second}) == (409, 409)
    assert refused(node, "POST", register, {"schema": "no schema"}) == (422, 42201)


@pytest.mark.long
def test_the_client_of_franz_go(node: RunningNode, tmp_path: Path) -> None:
    program = go_programs.built(HERE / "franz", "./schemas", tmp_path / "schemas")
    given = (str(program), f"{node.url}/registry", node.kafka, "go")
    done = subprocess.run(given, capture_output=True, text=True, timeout=SECONDS * 2, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["code"] == 409
    assert found["decoded"] == ["body 0", "body 1"]
    assert found["values"] == [f"00{id_:08x}" for id_ in found["ids"]]
    assert [len(json.loads(each)["fields"]) for each in found["schemas"]] == [1, 2]
