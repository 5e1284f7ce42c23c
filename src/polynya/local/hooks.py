"""Hooks: what this core does with a kind of command when it is proposed here, and when it was
applied."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from polynya.stream.command import Command

Kinds = tuple[type[Command], ...]
Methods = dict[type[Command], Callable[..., None]]
HookT = TypeVar("HookT", bound=Callable[..., None])

_PROPOSED: dict[object, Kinds] = {}
_APPLIED: dict[object, Kinds] = {}
KEEPS_JUDGEMENTS: set[type[Command]] = set()


def proposed(*kinds: type[Command]) -> Callable[[HookT], HookT]:
    """Let a method (group, command, done) propose commands of these kinds, or answer them."""

    def mark(method: HookT) -> HookT:
        _PROPOSED[method] = kinds
        return method

    return mark


def after_applied(
    *kinds: type[Command], keeps_judgements: bool = False
) -> Callable[[HookT], HookT]:
    """Call a method (group, command, reply) after commands of these kinds were applied, before
    their writers get the replies. `keeps_judgements`: what bound appenders know stays true."""

    def mark(method: HookT) -> HookT:
        _APPLIED[method] = kinds
        if keeps_judgements:
            KEEPS_JUDGEMENTS.update(kinds)
        return method

    return mark


class Hooks:
    """The hooks of some objects. A kind of command has at most one of each."""

    __slots__ = ("applied", "proposed")

    def __init__(self, *parts: Any) -> None:
        self.proposed = _bound(_PROPOSED, parts)
        self.applied = _bound(_APPLIED, parts)


def _bound(marked: dict[object, Kinds], parts: tuple[Any, ...]) -> Methods:
    found: Methods = {}
    for part in parts:
        for name, method in vars(type(part)).items():
            for kind in marked.get(method, ()) if isinstance(method, FunctionType) else ():
                if kind in found:
                    raise TypeError(f"{kind.__name__} has two hooks: {found[kind]} and {name}")
                found[kind] = getattr(part, name)
    return found
