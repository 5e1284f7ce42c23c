"""All features of the state machine. Importing this module registers every command and its rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias, Union

from polynya.stream.command import COMMANDS, RULES, Command
from polynya.stream.features.appends import across, conditions, kafka, mirror, together
from polynya.stream.features.appends import rules as appends
from polynya.stream.features.attributes import rules as attributes
from polynya.stream.features.compaction import rules as compaction
from polynya.stream.features.consumer_groups import rules as consumer_groups
from polynya.stream.features.consumer_groups import transactions as group_transactions
from polynya.stream.features.forks import rules as forks
from polynya.stream.features.lifetimes import creation
from polynya.stream.features.lifetimes import rules as lifetimes
from polynya.stream.features.markers import decisions
from polynya.stream.features.markers import rules as markers
from polynya.stream.features.marks import rules as marks
from polynya.stream.features.packs import rules as packs
from polynya.stream.features.pages import eviction
from polynya.stream.features.pages import rules as pages
from polynya.stream.features.placement import rules as placement
from polynya.stream.features.profiles import commits
from polynya.stream.features.profiles import rules as profiles
from polynya.stream.features.retention import rules as retention
from polynya.stream.features.retention import trimming
from polynya.stream.features.segments import rules as segments
from polynya.stream.features.settings import rules as settings
from polynya.stream.features.subscriptions import links, workers
from polynya.stream.features.subscriptions import rules as subscriptions
from polynya.stream.features.tables import failures, watches
from polynya.stream.features.tables import lifetimes as table_lifetimes
from polynya.stream.features.tables import rules as tables
from polynya.stream.features.topics import rules as topics
from polynya.stream.features.transactions import rules as transactions

FEATURES = (
    appends,
    conditions,
    kafka,
    mirror,
    together,
    across,
    markers,
    decisions,
    attributes,
    compaction,
    creation,
    lifetimes,
    retention,
    trimming,
    marks,
    forks,
    segments,
    profiles,
    commits,
    packs,
    pages,
    eviction,
    subscriptions,
    links,
    workers,
    tables,
    failures,
    table_lifetimes,
    watches,
    settings,
    placement,
    topics,
    consumer_groups,
    group_transactions,
    transactions,
)


def check(kinds: Iterable[type[Command]]) -> None:
    """Raise TypeError for a kind of command that is not registered, or that no rule applies."""
    registered = set(COMMANDS.values())
    for kind in kinds:
        if kind not in registered:
            raise TypeError(f"{kind.__name__} is not registered: put @command above it")
        if kind not in RULES:
            raise TypeError(f"{kind.__name__} has no rule: put @applies({kind.__name__}) above one")


def kinds_of(base: type[Command]) -> Iterator[type[Command]]:
    """Yield all kinds of commands that are derived from this one."""
    for kind in base.__subclasses__():
        yield kind
        yield from kinds_of(kind)


check(kinds_of(Command))

if TYPE_CHECKING:
    AnyCommand: TypeAlias = Command
else:
    AnyCommand = Union[tuple(COMMANDS.values())]  # noqa: UP007 - of a tuple
