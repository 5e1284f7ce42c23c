"""Impossible commands: they are refused, every ever committed one is accepted, and no accepted one
stops a machine."""

from __future__ import annotations

import json
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from test_commands_golden import (
    BATCH,
    COMMIT,
    CONFIG,
    FORK,
    GOLDEN,
    NODE,
    PACKED,
    PRODUCER,
    SLICE,
)

from polynya.base.errors import InvalidMessage
from polynya.base.limits import COMMIT_APPENDS_MAX
from polynya.replica.log import decode_command, decode_heard, encode_command, encode_proposal
from polynya.stream import parts as stream_parts
from polynya.stream.command import Command
from polynya.stream.command_validation import ROWS, SPANS, describe_fault, fault_of
from polynya.stream.features.appends.commands import (
    BUNDLE_COMMANDS_MAX,
    Append,
    AppendIf,
    Bundle,
    Produce,
    is_common_produce,
)
from polynya.stream.features.attributes.commands import SetAttributes
from polynya.stream.features.consumer_groups.commands import DropOffsets
from polynya.stream.features.forks.commands import PinSource
from polynya.stream.features.lifetimes.commands import Create, CreateWithAttributes, Touch
from polynya.stream.features.packs.commands import PackWritten, PublishSlices
from polynya.stream.features.pages.commands import Evict
from polynya.stream.features.placement import commands as placement
from polynya.stream.features.placement.commands import (
    ClusterBorn,
    GroupPlaced,
    NodeAdd,
    NodeAnnounce,
    NodeRecord,
    NodeSet,
    PlaceGroup,
    Placement,
    SetBalancing,
)
from polynya.stream.features.profiles import commands as profiles
from polynya.stream.features.profiles.commands import (
    CommitSlices,
    Profile,
    SealProfileEpoch,
    SetProfile,
)
from polynya.stream.features.retention.commands import BucketRetention, SetRetention
from polynya.stream.features.settings.commands import MetaChange, MetaSet, SetLevel
from polynya.stream.features.subscriptions.commands import LinkSubscription, SubscriptionPut
from polynya.stream.features.tables.commands import TableCommit, TableCreate
from polynya.stream.features.topics.commands import TopicChange, TopicDrop, TopicPut
from polynya.stream.features.transactions.commands import TxnAdd
from polynya.stream.machine import Machine
from polynya.stream.parts import (
    Batch,
    ColdSlice,
    Encoding,
    Producer,
    Retention,
    SegmentLimits,
)
from polynya.stream.registry import AnyCommand
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import machine_from, snapshot_of
from polynya.wal import FrameKind, Journal
from polynya.wal.frames import SegmentHeader, parse_segment_header

TESTS = Path(__file__).parents[1]
JSON = "application/json"
replace = msgspec.structs.replace


PRODUCED = Produce(
    "kafka/t/0",
    1,
    Batch(Encoding.KAFKA, 2, b"batch", 5, record_time_ms_max=9),
    Producer("77", 0, 5, 6, kind=1),
)


def born(node: NodeRecord = NODE, **fields: Any) -> ClusterBorn:
    return ClusterBorn([node], [replace(Placement((4,), (4,), 4), **fields)], 1)


def appended(batch: Batch = BATCH, producer: Producer | None = None, now_ms: int = 1) -> Append:
    return Append("docs/a", now_ms, JSON, batch, producer)


def conditional(**fields: Any) -> AppendIf:
    return replace(AppendIf("docs/a", 1, JSON, BATCH, record=5), **fields)


def published(**fields: Any) -> PublishSlices:
    return PublishSlices(SLICE.pack, 1, 4, [(7, replace(SLICE, **fields))])


def committed(**fields: Any) -> CommitSlices:
    return replace(COMMIT, slices=[COMMIT.slices[1], replace(COMMIT.slices[0], **fields)])


def packed(**fields: Any) -> CommitSlices:
    return committed(
        appends=[PACKED[0], replace(PACKED[0], command=replace(PACKED[0].command, **fields))]
    )


NONSENSE: list[tuple[Command, str]] = [
    (appended(now_ms=-1), r"Append\.now_ms is -1"),
    (appended(now_ms=1 << 53), r"Append\.now_ms"),
    (appended(now_ms=1 << 70), r"Append\.now_ms"),
    (replace(appended(), incarnation=1 << 63), r"Append\.incarnation"),
    (appended(producer=Producer("p", -1, 0)), r"Producer\.epoch is -1"),
    (appended(producer=Producer("p", 0, 1 << 64)), r"Producer\.sequence"),
    (
        appended(producer=Producer("p", 0, 5, 4)),
        "the last producer sequence 4 is below the first, 5",
    ),
    (appended(producer=Producer("p", 0, 0, kind=7)), r"Producer\.kind"),
    (appended(replace(BATCH, records=0)), r"Batch\.records"),
    (
        appended(replace(BATCH, records=3)),
        "the record lengths of a batch do not match its 3 records and 5 bytes of payload",
    ),
    (appended(replace(BATCH, lengths=b"")), "the record lengths of a batch"),
    (appended(replace(BATCH, lengths=b"12345")), "the record lengths of a batch"),
    (
        appended(replace(BATCH, lengths=bytes([2, 0, 0, 0, 4, 0, 0, 0]))),
        "the record lengths of a batch",
    ),
    (appended(replace(BATCH, encoding=9)), r"Batch\.encoding"),
    (appended(replace(BATCH, crc=1 << 32)), r"Batch\.crc"),
    (appended(replace(BATCH, flags=8)), r"Batch\.flags is 8; expected 0 to 7"),
    (conditional(record=-2), r"AppendIf\.record is -2"),
    (conditional(record=(1 << 62) + 1), r"AppendIf\.record"),
    (conditional(now_ms=-1), r"AppendIf\.now_ms"),
    (conditional(batch=replace(BATCH, records=3)), "the record lengths of a batch"),
    (Bundle([appended(), conditional(record=-2)]), r"AppendIf\.record"),
    (Bundle([]), "the bundle has 0 commands"),
    (Bundle([appended()] * (BUNDLE_COMMANDS_MAX + 1)), "the bundle has 65 commands"),
    (Bundle([appended(), appended(now_ms=-1)]), r"Append\.now_ms"),
    (Create("", 1, JSON, 1), "the stream name has 0 characters"),
    (Create("docs/" + "x" * 1020, 1, JSON, 1), "the stream name has 1025 characters"),
    (Create("docs/a", 1, JSON, 5), r"Create\.encoding"),
    (
        Create("docs/a", 1, JSON, 0, batch=BATCH),
        "the stream has encoding 0, but its first batch has encoding 1",
    ),
    (Create("docs/a", 1, JSON, 1, ttl_seconds=-1), r"Create\.ttl_seconds"),
    (Create("docs/a", 1, JSON, 1, expires_at_ms=1 << 60), r"Create\.expires_at_ms"),
    (Create("docs/a", 1, JSON, 1, fork=replace(FORK, record=1 << 63)), r"Fork\.record"),
    (
        Create("docs/a", 1, JSON, 1, fork=replace(FORK, first_record=4)),
        "the fork point is record 3, but the first inherited record is 4",
    ),
    (Create("docs/a", 1, JSON, 1, fork=replace(FORK, source_uid=1 << 62)), r"Fork\.source_uid"),
    (Create("docs/a", 1, JSON, 1, retention=Retention(-1)), r"Retention\.age_seconds"),
    (SetRetention("docs/a", Retention(None, 1 << 60), 1), r"Retention\.bytes"),
    (SetAttributes("docs/a", b"[1]", 1), "the attributes have 3 bytes; expected a JSON object"),
    (SetAttributes("docs/a", b"{" * 16385, 1), "the attributes have 16385 bytes; expected"),
    (SetAttributes("docs/a", None, 1, revision=-2), r"SetAttributes\.revision is -2"),
    (
        CreateWithAttributes("docs/a", 1, JSON, 1, attributes=b"{}"),
        "the attributes have 2 bytes; expected",
    ),
    (BucketRetention("docs", Retention(None, -1), 1), r"Retention\.bytes"),
    (Touch([(7, -1)], 1), r"Touch\.touches has -1"),
    (published(record=1 << 63), r"ColdSlice\.record"),
    (published(missing_records=3), "spans 2 records and 5 bytes; of these 3 and 2 are missing"),
    (published(records=0), r"ColdSlice\.records"),
    (published(offset=1 << 32), r"ColdSlice\.offset"),
    (replace(published(), owner_group=5000), r"PublishSlices\.owner_group"),
    (PackWritten("p", [1, 5000], 1), "the pack names group 5000"),
    (Evict("p", 1, [(7, 1 << 32, 0, 0, 0)]), r"Evict\.slots"),
    (
        SubscriptionPut("s", 1, replace(CONFIG, lease_ttl_ms=1 << 60), ""),
        r"SubscriptionConfig\.lease_ttl_ms",
    ),
    (TableCommit(3, 1, "", "", "", "", "", 1 << 63, 0, 1), r"TableCommit\.rows"),
    (MetaChange("access/", 0, []), "'access/' is not a valid settings scope"),
    (TopicPut("t", b"short", 1, [], 1), "the id of a topic has 5 bytes"),
    (TopicPut("t", bytes(16), 0, [], 1), r"TopicPut\.partitions"),
    (TopicChange("t", bytes(16), 1, 0, []), r"TopicChange\.partitions"),
    (TopicDrop("", bytes(16)), "the name of a topic has 1 to 249 characters"),
    (MetaChange("", 0, []), "'' is not a valid settings scope"),
    (MetaChange("access", -1, []), r"MetaChange\.version"),
    (MetaSet("access/token/x", b""), "is not a valid key"),
    (SetLevel(99), "the command sets level 99; this release supports levels up to"),
    (born(epoch=-1), r"Placement\.epoch"),
    (born(voters=()), r"\(\) is not a valid voter set"),
    (born(voters=(4, 4)), r"\(4, 4\) is not a valid voter set"),
    (born(goal=(4, 5)), "groups on node 5, which is not in its node list"),
    (born(first=7), "node 7 is the preferred leader of a group in which it has no vote"),
    (born(replace(NODE, peer="nowhere")), "'nowhere'; expected HOST:PORT"),
    (born(replace(NODE, id=0)), "node 4, which is not in its node list"),
    (replace(born(), nodes=[NODE, NODE]), r"needs distinct nodes; it has \[4, 4\]"),
    (replace(born(), placements=[]), "the first cluster map has 0 groups"),
    (NodeAnnounce(4, "h:99999", "", "", 2), "expected HOST:PORT"),
    (NodeSet(4, 9), r"NodeSet\.state"),
    (PlaceGroup(1, (4,), 4, -1), r"PlaceGroup\.epoch"),
    (GroupPlaced(1, (4,), 1 << 63), r"GroupPlaced\.epoch"),
    (GroupPlaced(1, (), 8), "is not a valid voter set"),
    (SetBalancing(True, 1000), r"SetBalancing\.replicas"),
    (SetProfile("docs/a", 2, 1), r"SetProfile\.profile is 2"),
    (SealProfileEpoch("docs/a", 7, 0, 1), r"SealProfileEpoch\.epoch"),
    (
        Create("docs/a", 1, JSON, 1, segments=SegmentLimits(0, 0), profile=1),
        "a leased stream has segments",
    ),
    (replace(COMMIT, sequence=0), r"CommitSlices\.sequence is 0"),
    (replace(COMMIT, writer=""), "the name of the writer has 0 characters"),
    (replace(COMMIT, slices=[]), "the commit has 0 appends"),
    (committed(appends=[]), "a slice of the commit has no appends"),
    (committed(appends=PACKED[:1] * COMMIT_APPENDS_MAX), "the commit has 16385 appends"),
    (committed(appends=PACKED[1:]), "a slice of 0 records has 61 stored bytes"),
    (committed(stored=0), "a slice of 2 records has 0 stored bytes"),
    (committed(encoding=0), "a batch of encoding 1 is in a slice of encoding 0"),
    (packed(batch=replace(BATCH, lengths=b"")), "a payload or record lengths"),
    (packed(batch=replace(BATCH, payload=b"")), "a payload or record lengths"),
    (packed(batch=None), "an append of the commit adds nothing"),
    (packed(name="docs/b"), "a slice has appends to docs/a and to docs/b"),
    (packed(producer=Producer("p", 0, 5, 4)), "the last producer sequence 4 is below"),
    (packed(now_ms=-1), r"Append\.now_ms is -1"),
    (
        committed(appends=[replace(PACKED[0], length=(1 << 32) - 1)] * 2),
        "has 4 records and 8589934590 bytes",
    ),
]


@pytest.mark.parametrize(("command", "fault"), NONSENSE, ids=lambda value: type(value).__name__)
def test_nonsense_is_neither_proposed_nor_taken(command: Command, fault: str) -> None:
    with pytest.raises(InvalidMessage, match=fault):
        encode_proposal(command)
    try:
        data = encode_command(command)
    except OverflowError:  # no log can hold such a number
        return
    with pytest.raises((InvalidMessage, msgspec.ValidationError)):
        decode_heard(data)


@pytest.mark.parametrize(
    "command", [command for command, _ in GOLDEN], ids=lambda value: type(value).__name__
)
def test_what_the_format_names_as_examples_makes_sense(command: Command) -> None:
    if isinstance(command, ClusterBorn):  # there on more nodes than it is born with
        command = born()
    if isinstance(command, SetLevel):
        command = SetLevel(2)
    assert fault_of(command) == ""
    assert decode_heard(encode_proposal(command)) == command


def test_a_batch_has_no_flags_that_its_slice_may_not_have() -> None:
    """A slice with others would be refused in every attempt to publish it."""
    assert SPANS[Batch]["flags"][1] & ~SPANS[ColdSlice]["flags"][1] == 0
    assert fault_of(appended(replace(BATCH, flags=7))) == ""


@pytest.mark.parametrize("producer", [None, PRODUCED.producer], ids=["no producer", "a producer"])
def test_the_quick_check_of_a_produce_finds_what_the_full_one_finds(
    producer: Producer | None,
) -> None:
    """Each number of a command, its batch and its producer at the edges of its range."""
    command = replace(PRODUCED, producer=producer)
    assert is_common_produce(command) and not describe_fault(command)
    parts = {"": command, "batch": command.batch, "producer": producer}
    common = 0
    for part, value in parts.items():
        for field, (low, high) in SPANS.get(type(value), {}).items():
            for number in {-1, 0, 1, 7, 8, 1 << 31, 1 << 32, low - 1, low, high, high + 1}:
                changed: Any = replace(value, **{field: number})
                changed = changed if part == "" else replace(command, **{part: changed})
                assert fault_of(changed) == describe_fault(changed), changed
                common += is_common_produce(changed)
    assert common > 20
    for batch in (replace(command.batch, payload=b""), replace(command.batch, lengths=b"1234")):
        assert "has record lengths or no payload" in fault_of(replace(command, batch=batch))


def test_a_fork_may_begin_with_two_records_of_bytes() -> None:
    assert fault_of(Create("docs/f", 1, "text/plain", 0, batch=replace(BATCH, encoding=0))) == ""


def structs() -> Iterator[type[msgspec.Struct]]:
    parts = (*vars(stream_parts).values(), *vars(profiles).values(), *vars(placement).values())
    yield from get_args(AnyCommand)
    yield from (
        kind for kind in parts if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    )


def test_every_whole_number_of_every_command_has_a_span() -> None:
    for kind in structs():
        numbers = {
            field.encode_name
            for field in msgspec.inspect.type_info(kind).fields
            if _is_number(field.type)
        }  # type: ignore[attr-defined]
        assert numbers == SPANS.get(kind, {}).keys() | ({"level"} if kind is SetLevel else set()), (
            kind
        )
        rows = {
            field.encode_name
            for field in msgspec.inspect.type_info(kind).fields
            if _is_rows(field.type)
        }  # type: ignore[attr-defined]
        # the checks of these judge their rows
        assert rows == ({ROWS[kind][0]} if kind in ROWS else set()) or kind in (
            DropOffsets,
            TxnAdd,
        ), kind


def _is_number(found: msgspec.inspect.Type) -> bool:
    kinds = found.types if isinstance(found, msgspec.inspect.UnionType) else (found,)
    return any(isinstance(kind, msgspec.inspect.IntType) for kind in kinds)


def _is_rows(found: msgspec.inspect.Type) -> bool:
    return (
        isinstance(found, msgspec.inspect.ListType)
        and isinstance(found.item_type, msgspec.inspect.TupleType)
        and any(map(_is_number, found.item_type.item_types))
    )


# --- what was committed ---------------------------------------------------------------------------


def golden_journals() -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yield each golden folder with its journal files by name."""
    for path in sorted((TESTS / "e2e" / "golden").glob("*.tar.xz")):
        with lzma.open(path) as file, tarfile.open(fileobj=file) as tar:
            found = {
                info.name.rpartition("/")[2]: tar.extractfile(info)
                for info in tar
                if info.isfile() and "/core-0/journal/" in info.name
            }
            yield path.name, {name: data.read() for name, data in found.items() if data is not None}
    first = json.loads(zlib.decompress((TESTS / "recovery" / "first_clusters.json.z").read_bytes()))
    for which, files in first.items():
        yield (
            which,
            {
                name.rpartition("/")[2]: bytes.fromhex(data)
                for name, data in files.items()
                if "/journal/" in name
            },
        )


def test_all_that_older_releases_committed_makes_sense(tmp_path: Path) -> None:
    kinds: dict[str, set[str]] = {}
    for which, files in golden_journals():
        folder = tmp_path / which
        folder.mkdir()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        header = parse_segment_header(
            next(data for data in files.values() if data.startswith(b"POLYNYAJ"))
        )
        assert isinstance(header, SegmentHeader)
        journal = Journal.open(folder, journal_id=header.journal_id)
        commands = [
            decode_command(frame.payload)
            for frame in journal.segments.entries()
            if frame.kind == FrameKind.COMMAND
        ]
        journal.close()
        assert [fault for fault in map(fault_of, commands) if fault] == [], which
        kinds[which] = {type(command).__name__ for command in commands}
    assert len(kinds) == 6 and len(set().union(*kinds.values())) > 20, kinds


# --- what is let through --------------------------------------------------------------------------

EXTREMES = (
    -(1 << 63),
    -1,
    0,
    1,
    255,
    256,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 48,
    1 << 53,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    1 << 64,
)


def machine_with_something(kind: str) -> Machine:
    """The commands of `GOLDEN` find what they are about, as far as one machine can have it. Those
    of this kind are tried."""
    machine = Machine(1, 4)
    for command in (
        Create("docs/a", 1, JSON, 1, batch=BATCH),
        born(),
        NodeAdd(replace(NODE, id=6, peer="h:6", http="http://six", replaces=0)),
        TableCreate("all", "docs/", 2),
        SubscriptionPut("s", 3, CONFIG, "http://h:1"),
        LinkSubscription("s", 7, 1, "docs/*", "default/wake", []),
        PinSource("docs/a", "pinned", "docs/f", 4),
        PackWritten(SLICE.pack, [1], 5),
        MetaChange("access", 0, [("token/a", b"v")]),
    ):
        assert machine.apply(command, 1).code < 100
    uid = machine.directory.streams["docs/a"].uid
    assert machine.apply(
        PublishSlices(
            SLICE.pack,
            1,
            1,
            [(uid, replace(SLICE, length=5, missing_records=0, missing_bytes=0))],
            6,
        ),
        2,
    ).detail == [0]
    if kind == "CommitSlices":
        assert machine.apply(SetProfile("docs/a", Profile.DISKLESS, 6)).code == Code.OK
    machine.apply(Append("docs/a", 7, JSON, BATCH, PRODUCER), 3)
    if kind == "SealRegime":
        assert machine.apply(SetProfile("docs/a", Profile.DISKLESS, 7)).code == Code.OK
    return machine


def altered(value: Any) -> Iterator[Any]:
    """The struct or tuple with one whole number in it, however deep, as each of the extremes."""
    if isinstance(value, bool | str | bytes | None):
        return
    if isinstance(value, int):
        yield from EXTREMES
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from (
                type(value)((*value[:at], other, *value[at + 1 :])) for other in altered(item)
            )
    else:
        for field in value.__struct_fields__:
            yield from (
                replace(value, **{field: other}) for other in altered(getattr(value, field))
            )


@pytest.mark.parametrize("kind", sorted({type(command).__name__ for command, _ in GOLDEN}))
def test_what_makes_sense_ends_no_machine_and_no_snapshot(kind: str) -> None:
    uid = machine_with_something(kind).directory.streams["docs/a"].uid
    examples = [command for command, _ in GOLDEN if type(command).__name__ == kind]
    for example in [*examples, *(_about(each, uid) for each in examples)]:
        for command in altered(example):
            if fault_of(command):
                continue
            machine = machine_with_something(kind)
            machine.apply(decode_command(encode_command(command)), 9)
            machine.apply(Append("docs/a", 8, JSON, BATCH), 10)
            machine_from(snapshot_of(machine), lambda position, uid: BATCH.payload)


def _about(value: Any, uid: int) -> Any:
    """The same about a stream that is there."""
    if isinstance(value, int) and not isinstance(value, bool):
        return uid if value == 7 else value
    if isinstance(value, list | tuple):
        return type(value)(_about(item, uid) for item in value)
    if isinstance(value, msgspec.Struct):
        return replace(
            value,
            **{field: _about(getattr(value, field), uid) for field in value.__struct_fields__},
        )
    return value


def test_a_value_in_the_place_of_a_version_is_no_version() -> None:
    machine = Machine(0, 4)
    machine.apply(MetaSet("access", b"no number"))
    assert machine.apply(MetaChange("access", 0, [("k", b"v")])).code == Code.NOT_YET
