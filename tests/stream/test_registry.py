"""A mistake in a command is found when its module, or the registry, is imported."""

from __future__ import annotations

import re
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import pytest

from polynya.base.levels import LEVEL
from polynya.local import hooks
from polynya.stream import command as commands
from polynya.stream import registry
from polynya.stream.command import Command, applies, command, level_of
from polynya.stream.command_validation import NONE, TIME, WIDE, fault_of
from polynya.stream.features.appends.commands import APPEND_BASES, APPENDS
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.replies import Code, Reply

FREE = 29  # a tag that no command has


@pytest.fixture(autouse=True)
def _kept_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("COMMANDS", "RULES", "NAMES", "NEEDS", "LEVELS"):
        monkeypatch.setattr(commands, table, dict(getattr(commands, table)))
    for table in ("COMMANDS", "RULES"):
        monkeypatch.setattr(registry, table, getattr(commands, table))


def planted(tag: int = FREE) -> type[Command]:
    class Planted(Command, tag=tag, frozen=True):
        name: str
        uid: int
        now_ms: int

    return Planted


BOUNDS: dict[str, Any] = {"uid": WIDE, "now_ms": TIME}


def test_a_whole_command_is_registered() -> None:
    kind = command(since=2, bounds=BOUNDS)(planted())
    applies(kind)(lambda machine, command, position: Reply(Code.OK))
    registry.check([kind])
    assert level_of(kind) == 2 and commands.COMMANDS[FREE] is kind
    assert fault_of(kind("a", -1, 0)).startswith("Planted.uid is -1; expected 0 to")


@pytest.mark.parametrize("bounds", [NONE, {"uid": WIDE}, {**BOUNDS, "name": WIDE}])
def test_a_command_needs_a_bound_for_each_whole_number(bounds: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Planted needs one bound for each whole number: "):
        command(since=1, bounds=bounds)(planted())


@pytest.mark.parametrize("level", [0, LEVEL + 1])
def test_a_command_has_a_level_of_this_release(level: int) -> None:
    with pytest.raises(TypeError, match=f"of level {level}; the highest one is {LEVEL}"):
        command(since=level, bounds=BOUNDS)(planted())


def test_a_tag_is_of_one_command_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="tag 1, which Create has"):
        command(since=1, bounds=BOUNDS)(planted(1))
    monkeypatch.setattr(commands, "RETIRED", frozenset({FREE}))
    with pytest.raises(TypeError, match="which a retired command had"):
        command(since=1, bounds=BOUNDS)(planted())


def test_a_command_without_registration_or_rule_is_found() -> None:
    with pytest.raises(TypeError, match="put @command above it"):
        registry.check([planted()])
    kind = command(since=1, bounds=BOUNDS)(planted())
    with pytest.raises(TypeError, match="has no rule"):
        registry.check([kind])


def test_the_commands_of_each_folder_are_registered() -> None:
    features = Path(registry.__file__).parent / "features"
    written = {
        name
        for path in features.rglob("*.py")
        for name in re.findall(
            r"^class (\w+)\((?:\w+, )?.*\btag=\d", path.read_text(), re.MULTILINE
        )
        if issubclass(getattr(import_module(module_of(path)), name), Command)
    }
    assert written == {kind.__name__ for kind in get_args(registry.AnyCommand)}


def test_every_kind_of_append_is_listed() -> None:
    assert {*APPEND_BASES, *chain.from_iterable(map(registry.kinds_of, APPEND_BASES))} == APPENDS


def module_of(path: Path) -> str:
    source = Path(registry.__file__).parents[2]
    return ".".join(path.relative_to(source).with_suffix("").parts)


def test_a_command_has_one_rule() -> None:
    with pytest.raises(TypeError, match="Create has two rules"):
        applies(Create)(lambda machine, command, position: Reply(Code.OK))


def test_a_command_has_one_hook_of_a_core() -> None:
    class Part:
        @hooks.proposed(Create)
        def first(self, group: int, command: Create, done: object) -> None: ...

    class Other:
        @hooks.proposed(Create)
        def second(self, group: int, command: Create, done: object) -> None: ...

    assert list(hooks.Hooks(Part()).proposed) == [Create]
    with pytest.raises(TypeError, match="Create has two hooks"):
        hooks.Hooks(Part(), Other())
