"""What a test needs of the machine and does not find: the test is skipped, saying what is missing;
in CI it fails."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import ModuleType
from typing import NoReturn, TypeVar

import pytest

Started = TypeVar("Started")


class CannotStart(Exception):
    """Why there is no such server or program."""


def missing(why: str) -> NoReturn:
    """End the test, or the module that is being imported."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have it: {why}", pytrace=False)
    pytest.skip(why, allow_module_level=True)


def left_out(why: str) -> NoReturn:
    """End the test also in CI, which is not asked to have this: root, another user, IPv6, a
    kernel's or a system's own features."""
    pytest.skip(why, allow_module_level=True)


def needed_program(*names: str) -> str:
    """The path of the first that is installed."""
    return next(filter(None, map(shutil.which, names)), None) or missing(
        f"not installed: {' or '.join(names)}"
    )


def needed_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as reason:
        missing(f"not installed: {name} ({reason})")


@contextmanager
def needed(what: str, start: AbstractContextManager[Started]) -> Iterator[Started]:
    """What is started, unless it says `CannotStart`."""
    with ExitStack() as stack:
        try:
            started = stack.enter_context(start)
        except CannotStart as reason:
            missing(f"no {what}: {reason}")
        yield started
