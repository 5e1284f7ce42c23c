"""Schemas and data of other people, from the packages that have them, through the registry into tables:
Iceberg's manifests (Avro, of its format 1 and 2), descriptors of Google's files (Protobuf), and
documents of Swagger (JSON Schema). Other people's decoders say which values are right."""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import json
import pkgutil
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import google.protobuf
import jsonschema
import msgspec
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from jsonschema_specifications import REGISTRY
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from worlds.lakehouse import Lake, quiet
from worlds.schema_registry import batch_of, framed

from polynya.lakehouse.jobs.worker import compact
from polynya.lakehouse.sql.query import query


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(str(tmp_path / "store"))
    coordinator = lake.coordinator
    coordinator.table = msgspec.structs.replace(coordinator.table, columns=[("", "registry")])
    return lake


def synced(lake: Lake, names: str, values: list[bytes]) -> list[dict[str, Any]]:
    """Add values, and return these columns of all rows, which three readers agree on."""
    lake.source.append_kafka("kafka/real/0", batch_of(*values))
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    wanted = ["offset", "value", *names.split()]
    one, two = (
        [plain(row) for row in table.sort_by("offset").select(wanted).to_pylist()]
        for table in (lake.iceberg(), lake.delta())
    )
    spelled = ", ".join(f'"{name}"' for name in wanted)
    found = query(lake.coordinator.tables(), f'select {spelled} from flights order by "offset"')
    assert one == two == [plain(dict(zip(wanted, row, strict=True))) for row in found.rows]
    return one


def plain(value: Any) -> Any:
    """Return a value as every reader has it: an empty list in a struct is none to some."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] or None if isinstance(value, list) else value


def dead(lake: Lake) -> list[tuple[str, str | None]]:
    found = [(row["reason"], row["field"]) for row in lake.iceberg("dlq").to_pylist()]
    assert found == [(row["reason"], row["field"]) for row in lake.delta("dlq").to_pylist()]
    return found


def manifest(path: Path, version: int) -> tuple[str, list[dict[str, Any]]]:
    """Return the schema and the entries of a manifest that pyiceberg writes, of its own files."""
    output = PyArrowFileIO().new_output(path.as_uri())
    with write_manifest(version, PartitionSpec(), Schema(), output, version, "null") as writer:  # type: ignore[arg-type]
        for file in (importlib.metadata.files("pyiceberg") or [])[:50]:
            made = DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=str(file),
                file_format=FileFormat.PARQUET,
                partition=Record(),
                record_count=len(file.parts),
                file_size_in_bytes=file.size or 0,
                lower_bounds={1: file.name.encode()},
            )
            writer.add_entry(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED, snapshot_id=version, data_file=made
                )
            )
    with path.open("rb") as file:
        read = fastavro.reader(file)
        return read.metadata["avro.schema"], list(read)


def bodies(text: str, entries: list[dict[str, Any]]) -> Iterator[bytes]:
    schema = fastavro.parse_schema(json.loads(text))
    for entry in entries:
        made = io.BytesIO()
        fastavro.schemaless_writer(made, schema, entry)
        yield made.getvalue()


def test_manifests_of_iceberg_evolve_from_format_1_to_2(tmp_path: Path, lake: Lake) -> None:
    wanted, sent = [], []
    for version in (1, 2):
        text, entries = manifest(tmp_path / str(version), version)
        lake.coordinator.registry.register(version, text)
        values = [framed(version, body) for body in bodies(text, entries)]
        wanted, sent = [*wanted, *entries], [*sent, *values]
        rows = synced(lake, "status snapshot_id data_file", values)
        assert [row["value"] for row in rows] == sent
        for row, entry in zip(rows, wanted, strict=True):
            assert (row["status"], row["snapshot_id"]) == (entry["status"], entry["snapshot_id"])
            theirs, ours = entry["data_file"], row["data_file"]
            for name in ("file_path", "file_format", "record_count", "file_size_in_bytes"):
                assert ours[name] == theirs[name], name
            bounds = [(each["key"], each["value"]) for each in theirs["lower_bounds"]]
            assert [(each["key"], each["value"]) for each in ours["lower_bounds"]] == bounds
    assert len(rows) == 100
    assert dead(lake) == []
    assert "content" in rows[-1]["data_file"], "format 2 has more fields"


def descriptors() -> dict[str, FileDescriptor]:
    """The files of all modules that Google's package has, by name."""
    found: dict[str, FileDescriptor] = {}
    for each in pkgutil.walk_packages(google.protobuf.__path__, "google.protobuf."):
        if each.name.endswith("_pb2"):
            file = importlib.import_module(each.name).DESCRIPTOR
            found[file.name] = file
    return found


def test_descriptors_are_decoded_by_the_descriptor_of_descriptors(lake: Lake) -> None:
    files = descriptors()
    assert len(files) >= 10
    whole = descriptor_pb2.FileDescriptorProto()
    descriptor_pb2.DESCRIPTOR.CopyToProto(whole)
    text = b64encode(whole.SerializeToString()).decode()
    number = [each.name for each in whole.message_type].index("FileDescriptorProto")
    index = b"\2" + bytes([number * 2])  # one index, in zigzag
    older = descriptor_pb2.FileDescriptorProto.FromString(whole.SerializeToString())
    fields = older.message_type[number].field
    gone = next(each for each in fields if each.name == "edition")
    fields.remove(gone)
    registry = lake.coordinator.registry
    registry.register(1, b64encode(older.SerializeToString()).decode(), "PROTOBUF")
    registry.register(2, text, "PROTOBUF")
    sent: list[bytes] = []
    for id_ in (1, 2):
        values = [framed(id_, index + each.serialized_pb) for each in files.values()]
        sent += values
        rows = synced(lake, "name package dependency message_type syntax", values)
        assert [row["value"] for row in rows] == sent
    for row, file in zip(rows, [*files.values()] * 2, strict=True):
        theirs = descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)
        assert (row["name"], row["package"]) == (theirs.name, theirs.package)
        assert (row["dependency"] or []) == list(theirs.dependency)
        names = [each["name"] for each in row["message_type"] or ()]
        assert names == [each.name for each in theirs.message_type]
        assert row["syntax"] == (theirs.syntax if theirs.HasField("syntax") else None)
    assert dead(lake) == []


def test_schemas_of_json_are_documents_of_their_schemas(lake: Lake) -> None:
    """The meta-schemas of drafts 4 and 7 describe each other, and Swagger's schema."""
    path = Path(jsonschema.__file__).parent / "benchmarks" / "issue232" / "issue.json"
    (swagger,) = json.loads(path.read_text("utf-8"))
    known = [REGISTRY[uri].contents for uri in REGISTRY]
    documents = [*(each for each in known if isinstance(each, dict)), swagger["schema"]]
    assert len(documents) >= 10
    sent: list[bytes] = []
    for id_, draft in ((1, "draft-04"), (2, "draft-07")):
        meta = REGISTRY[f"http://json-schema.org/{draft}/schema#"].contents
        lake.coordinator.registry.register(id_, json.dumps(meta), "JSON")
        values = [framed(id_, json.dumps(each).encode()) for each in documents]
        sent += values
        rows = synced(lake, "title description _schema", values)
        assert [row["value"] for row in rows] == sent
    for row, document in zip(rows, documents * 2, strict=True):
        assert (row["title"], row["description"]) == (
            document.get("title"),
            document.get("description"),
        )
        assert row["_schema"] == document.get("$schema"), "the name of a column has no '$'"
    # what the meta-schemas leave open has a column by the first records, which others do not fit
    assert {reason for reason, _ in dead(lake)} == {"misfit"}
