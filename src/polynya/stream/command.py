"""The commands of a group's log, which are also its wire and journal types, and what is known of
each kind.

msgspec structs, array-like, integer tags; fields are only appended, and with defaults; golden bytes
are in the tests. Tags in use: 1-19 streams, 20-29 across groups, 30-39 object tier, 40-59
subscriptions, 60-79 tables, 80-92 cluster, 99 the log itself, 100-109 topics, 110-119
transactions, 120-129 diskless streams, 130-139 consumer groups. A range that is full goes on
in a new one, from 140 on.

A feature registers its commands (`@command`) and their rules (`@applies`).
`polynya.stream.registry` imports all features, so a rule is there for every command that can be
decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from polynya.base.levels import LEVEL, LEVELS
from polynya.stream.command_validation import Check, Rows, Span, bounded
from polynya.stream.replies import Reply


class Command(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The common base of all commands."""


KindT = TypeVar("KindT", bound=type[Command])
RuleT = TypeVar("RuleT", bound=Callable[..., Any])
Names = Callable[[Any], Sequence[str]]

RETIRED: frozenset[int] = frozenset()  # tags of commands that are gone: never to be used again
COMMANDS: dict[int, type[Command]] = {}  # by tag
RULES: dict[type[Command], Callable[[Any, Any, int], Reply]] = {}
NAMES: dict[type[Command], Names] = {}  # the streams that a command names
# (machine, command) -> the streams whose states it needs; those that are not evicted may be in it
NEEDS: dict[type[Command], Callable[[Any, Any], Iterable[str]]] = {}
_LEVELS_BY_VALUE: dict[type[Command], Callable[[Any], int]] = {}


def command(
    *,
    since: int,
    bounds: Mapping[str, Span | None],
    rows: Rows | None = None,
    check: Check | None = None,
    level: Callable[[Any], int] | None = None,
    names: Names | None = None,
    needs_state: bool = True,
) -> Callable[[KindT], KindT]:
    """Register a kind of command. `since`: the feature level of the first release with it.

    `bounds`, `rows` and `check` say which values are valid (see `bounded`). `level`: the feature
    level that a command needs, where it goes by value. `names`: the streams that it names; it waits
    until an eviction of them is decided. With `needs_state` it also waits until they are back."""

    def register(kind: KindT) -> KindT:
        tag = tag_of(kind)
        if tag in COMMANDS:
            raise TypeError(f"{kind.__name__} has tag {tag}, which {COMMANDS[tag].__name__} has")
        if tag in RETIRED:
            raise TypeError(f"{kind.__name__} has tag {tag}, which a retired command had")
        if not 1 <= since <= LEVEL:
            raise TypeError(f"{kind.__name__} is of level {since}; the highest one is {LEVEL}")
        bounded(bounds, rows=rows, check=check)(kind)
        COMMANDS[tag] = kind
        if since > 1:
            LEVELS[tag] = since
        if level is not None:
            _LEVELS_BY_VALUE[kind] = level
        if names is not None:
            NAMES[kind] = names
            if needs_state:
                NEEDS[kind] = lambda _, command: names(command)
        return kind

    return register


def applies(kind: type[Command]) -> Callable[[RuleT], RuleT]:
    """Register the rule that applies a kind of command: (machine, command, journal position) ->
    reply. A kind has one rule."""
    return _registers(RULES, kind)


def needs(kind: type[Command]) -> Callable[[RuleT], RuleT]:
    """Register the streams whose states a command needs, where that depends on the machine."""
    return _registers(NEEDS, kind)


def _registers(
    table: dict[type[Command], Callable[..., Any]], kind: type[Command]
) -> Callable[[RuleT], RuleT]:
    def register(rule: RuleT) -> RuleT:
        if kind in table:
            raise TypeError(f"{kind.__name__} has two rules: {table[kind]} and {rule}")
        table[kind] = rule
        return rule

    return register


def its_name(command: Any) -> Sequence[str]:
    """Return the one stream that a command names."""
    return (command.name,)


def tag_of(kind: type[Command]) -> int:
    """Return the number that identifies this kind in logs. It survives a rename of the class."""
    tag = kind.__struct_config__.tag
    if not isinstance(tag, int):
        raise TypeError(f"{kind.__name__} has no tag")
    return tag


def level_of(kind: type[Command]) -> int:
    """Return the feature level that a group must have before a command of this kind is logged."""
    return LEVELS.get(tag_of(kind), 1)


def level_for(command: Command) -> int:
    """Return the feature level that a group must have before this command is logged."""
    by_value = _LEVELS_BY_VALUE.get(type(command))
    return level_of(type(command)) if by_value is None else by_value(command)


def named_by(command: Command) -> Sequence[str]:
    """Return the streams that a command names."""
    names = NAMES.get(type(command))
    return () if names is None else names(command)
