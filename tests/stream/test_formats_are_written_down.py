"""The tables of docs/formats are what the code writes: each row's fields, in order."""

from pathlib import Path

import pytest

from polynya.stream import (
    commands,
    diskless_commands,
    group_commands,
    placement,
    table_commands,
)
from polynya.stream.consumer_groups import state as consumer_groups
from polynya.stream.rules import table_failures, table_watches, tables
from polynya.stream.snapshots import deltas
from polynya.stream.snapshots import encode as snapshots
from polynya.stream.state import model
from polynya.stream.subscriptions import state as subscriptions_model

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
        kind
        for kind in (
            *vars(commands).values(),
            *vars(table_commands).values(),
            *vars(group_commands).values(),
            *vars(diskless_commands).values(),
        )
        if isinstance(kind, type)
        and issubclass(kind, commands.Command)
        and kind is not commands.Command
    ],
)
def test_command_is_in_the_page(kind: type[commands.Command]) -> None:
    assert (str(kind.__struct_config__.tag), kind.__name__, fields(kind)) in rows("commands.md")


@pytest.mark.parametrize(
    "kind",
    [
        commands.Batch,
        commands.Producer,
        commands.Fork,
        commands.ColdSlice,
        commands.Retention,
        commands.SegmentLimits,
        commands.NodeRecord,
        commands.Placement,
        commands.SubscriptionConfig,
        group_commands.ConsumerGroupMember,
        group_commands.OffsetEntry,
        diskless_commands.PackedAppend,
        diskless_commands.PackedSlice,
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
        model.WriterState,
        model.KafkaState,
        model.OpenTransaction,
        model.Evicted,
        model.PackReference,
        model.Pack,
        tables.Table,
        table_failures.Failure,
        table_watches.Watch,
        consumer_groups.ConsumerGroup,
        placement.ClusterMap,
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
        subscriptions_model.Tombstone,
        subscriptions_model.Registration,
        subscriptions_model.Link,
    ],
)
def test_state_of_subscriptions_is_in_the_page(kind: type) -> None:
    assert (kind.__name__, fields(kind)) in rows("group-state.md")
    assert ("Subscribed", fields(subscriptions_model.SubscriptionsImage)) in rows("group-state.md")
