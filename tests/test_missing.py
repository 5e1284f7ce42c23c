"""A test may be skipped for want of something, but not in CI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from missing import CannotStart, left_out, missing, needed, needed_module, needed_program

Skipped, Failed = pytest.skip.Exception, pytest.fail.Exception


@contextmanager
def nowhere() -> Iterator[None]:
    raise CannotStart("the door is locked")
    yield


def enter() -> None:
    with needed("server", nowhere()):
        raise AssertionError("nothing was started")


@pytest.mark.parametrize(("find", "reason"), [
    (lambda: missing("no luck"), "no luck"),
    (lambda: needed_program("no-such-program", "nor-this"), "not installed: no-such-program or nor-this"),
    (lambda: needed_module("no_such_module"), "not installed: no_such_module"),
    (enter, "no server: the door is locked"),
])  # fmt: skip
@pytest.mark.parametrize(("ci", "end"), [("", Skipped), ("true", Failed)])
def test_what_is_missing_ends_the_test(
    find: Callable[[], object],
    reason: str,
    ci: str,
    end: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(end, match=reason):
        find()


def test_what_is_there_is_given() -> None:
    @contextmanager
    def here() -> Iterator[int]:
        yield 7

    assert needed_program("no-such-program", "sh").endswith("/sh")
    assert needed_module("json").loads("1") == 1
    with needed("server", here()) as started:
        assert started == 7


def test_what_ci_is_not_asked_to_have_is_left_out_there_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(Skipped, match="needs root"):
        left_out("needs root")
