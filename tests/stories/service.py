"""Tests as stories: each is told to a world, or to a node of two cores, which is started before it
and stopped after it.

A decorated story is a test whose arguments (those of `pytest.mark.parametrize`) are the story's
after the first.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from worlds.service import Node, World

Story: TypeAlias = Callable[..., Awaitable[None]]
Test: TypeAlias = Callable[..., None]


def story(tell: Story) -> Test:
    """Told to one core."""
    return story_of(World)(tell)


def story_of(make: Callable[[], World]) -> Callable[[Story], Test]:
    """Told to one core that is made so."""

    async def run(tell: Story, **arguments: Any) -> None:
        world = make().start()
        await tell(world, **arguments)
        assert not world.faults
        await world.stop()

    return lambda tell: _test(tell, lambda **arguments: asyncio.run(run(tell, **arguments)))


def node_story(tell: Story) -> Test:
    """Told to a node of two cores."""
    return _test(tell, lambda **arguments: _on_a_node(tell, **arguments))


def story_on_one_and_two_cores(tell: Story) -> Test:
    """Told twice: to one core, and to one of two cores over which the streams are spread."""

    async def of_two(node: Node, **arguments: Any) -> None:
        await tell(node.worlds[0], **arguments)

    alone = story(tell)

    def test(cores: int, **arguments: Any) -> None:
        if cores == 1:
            alone(**arguments)
        else:
            _on_a_node(of_two, **arguments)

    return pytest.mark.parametrize("cores", [1, 2])(_test(tell, test, "cores"))


def _on_a_node(tell: Story, **arguments: Any) -> None:
    async def run(directory: str) -> None:
        node = await Node(directory).start()
        await tell(node, **arguments)
        assert not [fault for world in node.worlds for fault in world.faults]
        await node.stop()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(directory))


def _test(tell: Story, run: Callable[..., None], *more: str) -> Test:
    """A test by the story's name, with its arguments and some `more`, that runs so."""

    @functools.wraps(tell)
    def test(**arguments: Any) -> None:
        run(**arguments)

    signature = inspect.signature(tell)
    _, *parameters = signature.parameters.values()
    parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in more]
    test.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return test
