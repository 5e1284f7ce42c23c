"""Declare options of commands, and those that many commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from polynya.cli.terminal.complete import complete_context
from polynya.cli.terminal.values import SECONDS

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)  # as click types its decorators


class Number(click.IntRange):
    """A whole number from a least to a largest one; `N` in the help."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "N"


def value(*names: str, **attributes: Any) -> Callable[[FC], FC]:
    """Declare an option with a value. `--name METAVAR` names the value in the help, which shows the
    default."""
    parts = [name.partition(" ") for name in names]
    metavar = next((said for _, _, said in parts if said), None)
    shown = bool(attributes.get("default"))
    return click.option(
        *(name for name, _, _ in parts), metavar=metavar, show_default=shown, **attributes
    )


def flag(*names: str, **attributes: Any) -> Callable[[FC], FC]:
    """Declare an option without a value."""
    return click.option(*names, is_flag=True, **attributes)


def json_flag(about: str = "Print JSON.") -> Callable[[FC], FC]:
    """Declare `--json`, as `as_json`."""
    return flag("--json", "as_json", help=about)


def retry(default: str, about: str = "Retry timeout.") -> Callable[[FC], FC]:
    """Declare `--retry`, in seconds."""
    return value("--retry", type=SECONDS, default=default, help=about)


def server(about: str, *, context: str = "Use the server of this context.") -> Callable[[FC], FC]:
    """Declare `--server` and `--context`."""

    def decorate(command: FC) -> FC:
        command = value("--context NAME", shell_complete=complete_context, help=context)(command)
        return value("--server URL", help=about)(command)

    return decorate


as_json = json_flag()
consistency = value(
    "--consistency",
    type=click.Choice(("leader", "local")),
    default="leader",
    help=(
        "leader: all acknowledged records; local: the contacted node's replica, without "
        "contacting another node."
    ),
)
