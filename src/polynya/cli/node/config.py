"""`polynya config`: show and check the settings of a node."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from polynya.base.errors import ConfigError
from polynya.cli.node.setting_flags import (
    config_option,
    inspected_config,
    loaded_config,
    with_hidden_settings,
)
from polynya.cli.terminal import exits, options, output
from polynya.cli.terminal.command_group import CommandGroup

if TYPE_CHECKING:
    from polynya.config.model import Config


@click.group("config", cls=CommandGroup)
def config_command() -> None:
    """Inspect the settings with which 'polynya serve' would start here."""


@config_command.command("show")
@options.flag(
    "--origin",
    help="Also print the source of each value: default, FILE:LINE, a variable or a flag.",
)
@options.flag("--changed", help="Only settings that differ from their defaults.")
@config_option
@options.as_json
@with_hidden_settings
def config_show_command(
    origin: bool, changed: bool, file: str | None, as_json: bool, **values: str | None
) -> None:
    """Print every setting with its value; secrets are masked. Accepts the flags of 'polynya serve'.

    \b
    polynya config show --origin
    polynya config show --changed --config /etc/polynya.toml
    """
    from polynya.config.loading import show

    rows = [row for row in show(loaded_config(file, values)) if row[2] != "default" or not changed]
    if as_json:
        shown = {key: {"value": value, "origin": where} for key, value, where in rows}
        output.json_line(shown if origin else {key: value for key, value, _ in rows})
    elif rows:
        heads = ("setting", "value", "from")
        output.table(heads if origin else heads[:2], rows if origin else [row[:2] for row in rows])
    else:
        output.notice("all settings have their defaults")


@config_command.command("check")
@config_option
@options.as_json
@with_hidden_settings
def config_check_command(file: str | None, as_json: bool, **values: str | None) -> None:
    """Check the settings and their certificates without starting a node, and list all problems with
    their places. Exits with 2 if any is found.

    'polynya doctor' checks the rest: free ports and write access to the bucket.

    \b
    polynya config check
    polynya config check --config /etc/polynya.toml --json
    """
    loaded, problems = inspected_config(file, values)
    problems += _certificate_problems(loaded.config, problems)
    if problems and as_json:
        output.json_line({"problems": problems, "unsafe": [], "warnings": loaded.warnings})
        raise click.exceptions.Exit(exits.USAGE)
    if problems:
        shown = "\n".join(f"  {problem}" for problem in problems)
        raise exits.Misused(
            f"{output.counted(len(problems), 'problem')} with the settings:\n{shown}"
        )
    if as_json:
        output.json_line(
            {"problems": [], "unsafe": loaded.config.unsafe, "warnings": loaded.warnings}
        )
        return
    for line in loaded.config.unsafe:
        output.notice(f"unsafe: {line}")
    for line in loaded.warnings:
        output.notice(f"warning: {line}")
    changed = sum(origin != "default" for origin in loaded.origins.values())
    output.notice(
        f"the settings are valid ({output.counted(changed, 'setting')} of {len(loaded.origins)} "
        "changed)"
    )


def _certificate_problems(config: Config, known: list[str]) -> list[str]:
    """Return one line per certificate problem; skip settings with `known` problems."""
    from polynya.cluster.certificates import peer_tls_of
    from polynya.config.tls import prepare

    looks: dict[str, Callable[[], object]] = {
        r"tls\.(?:cert|key|self)": lambda: None if config.tls.self else prepare(config),
        r"cluster\.(?:ca|cert|key)": lambda: (
            peer_tls_of(config.cluster, dates=True) if config.cluster.node else None
        ),
    }
    problems = []
    for settings, look in looks.items():
        if any(re.search(rf"(?<![\w.]){settings}\b", problem) for problem in known):
            continue
        try:
            look()
        except ConfigError as error:
            problems += str(error).splitlines()
    return problems
