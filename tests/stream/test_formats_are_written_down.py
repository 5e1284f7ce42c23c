"""The tables of docs/formats are what the code writes: each row's fields, in order."""

from pathlib import Path
from typing import get_args

import pytest

from polynya.stream.command import Command
from polynya.stream.features.consumer_groups import state as consumer_groups
from polynya.stream.features.consumer_groups.commands import ConsumerGroupMember, OffsetEntry
from polynya.stream.features.consumer_groups.modern_records import Holdings, Subscription
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.placement.commands import NodeRecord, Placement
from polynya.stream.features.profiles.commands import PackedAppend, PackedSlice
from polynya.stream.features.subscriptions import state as subscriptions_model
from polynya.stream.features.subscriptions.commands import SubscriptionConfig
from polynya.stream.features.tables.state import Failure, Table, Watch
from polynya.stream.features.transactions.state import Transaction, TransactionOutcome
from polynya.stream.parts import Batch, ColdSlice, Fork, Producer, Retention, SegmentLimits
from polynya.stream.registry import AnyCommand
from polynya.stream.snapshots import deltas
from polynya.stream.snapshots import encode as snapshots
from polynya.stream.state import model

FORMATS = Path(__file__).parents[2] / "docs" / "formats"


def rows(page: str) -> set[tuple[str, ...]]:
    lines = (FORMATS / page).read_text().splitlines()
    return {
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for line in lines
        if line.startswith("|")
    }


def fields(kind: type) -> str:
    return ", ".join(kind.__struct_fields__)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "kind",
    [
        *get_args(AnyCommand),
    ],
)
def test_command_is_in_the_page(kind: type[Command]) -> None:
    assert (str(kind.__struct_config__.tag), kind.__name__, fields(kind)) in rows("commands.md")


@pytest.mark.parametrize(
    "kind",
    [
        Batch,
        Producer,
        Fork,
        ColdSlice,
        Retention,
        SegmentLimits,
        NodeRecord,
        Placement,
        SubscriptionConfig,
        ConsumerGroupMember,
        OffsetEntry,
        Subscription,
        Holdings,
        PackedAppend,
        PackedSlice,
    ],
)
def test_part_is_in_the_page(kind: type) -> None:
    assert (kind.__name__, fields(kind)) in rows("commands.md")


@pytest.mark.parametrize(
    "kind",
    [
        snapshots.Image,
        model.Stream,
        model.HotBatch,
        model.Pin,
        model.TableClaim,
        model.StreamExtras,
        model.Segments,
        model.SealedSegment,
        model.ProfileEpoch,
        model.Attributes,
        model.Compaction,
        model.WriterState,
        model.KafkaState,
        model.OpenTransaction,
        model.Evicted,
        model.PackReference,
        model.Pack,
        Table,
        Failure,
        Watch,
        consumer_groups.ConsumerGroup,
        consumer_groups.PendingOffsets,
        Transaction,
        TransactionOutcome,
        ClusterMap,
    ],
)
def test_state_is_in_the_page(kind: type) -> None:
    assert (kind.__name__, fields(kind)) in rows("group-state.md")


@pytest.mark.parametrize("kind", [deltas.DeltaHead, deltas.Gone])
def test_delta_is_in_the_page(kind: type) -> None:
    assert (kind.__name__, fields(kind)) in rows("group-state.md")


@pytest.mark.parametrize(
    "kind",
    [
        subscriptions_model.Subscription,
        subscriptions_model.Failures,
        subscriptions_model.Roster,
        subscriptions_model.Tombstone,
        subscriptions_model.Registration,
        subscriptions_model.Link,
    ],
)
def test_state_of_subscriptions_is_in_the_page(kind: type) -> None:
    assert (kind.__name__, fields(kind)) in rows("group-state.md")
    assert ("Subscribed", fields(subscriptions_model.SubscriptionsImage)) in rows("group-state.md")
