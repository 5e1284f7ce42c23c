"""The settings of a node as command flags, merged with the file and the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import click

from polynya.base.errors import ConfigError
from polynya.cli.terminal import exits, options
from polynya.config.loading import Loaded, inspect, load
from polynya.config.setting import Setting, parse_seconds, parse_switch
from polynya.config.settings import SETTINGS

# The settings that --help shows; docs/configuration.md has all of them, and every one has a flag.
SHOWN = (
    "listen",
    "data",
    "cores",
    "long_poll_timeout",
    "lake.interval",
    "cold.backend",
    "unsafe_no_auth",
)

config_option = options.value(
    "--config FILE", "file", help="A TOML file of settings. Default: ./polynya.toml if it exists."
)


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add one flag per setting to a command."""
    for setting in reversed(SETTINGS):
        if setting.flag is not None:
            hidden = setting.key not in SHOWN
            kind: dict[str, Any] = (
                {"is_flag": True, "flag_value": "true"}
                if setting.parse is parse_switch
                else {"metavar": "VALUE"}
            )
            command = click.option(
                setting.flag,
                _variable(setting),
                default=None,
                help=_help(setting),
                hidden=hidden,
                **kind,
            )(command)
    return command


def with_hidden_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags hidden, for commands about something else."""
    command = with_settings(command)
    for option in getattr(command, "__click_params__", []):
        option.hidden = option.hidden or option.name in {_variable(setting) for setting in SETTINGS}
    return command


def loaded_config(
    file: str | None, values: Mapping[str, str | None], environ: Mapping[str, str] = os.environ
) -> Loaded:
    """Return the configuration; `values` are the flags by variable. Raises `exits.Misused` listing
    every problem."""
    try:
        return load(_flags(values), environ=environ, path=file)
    except ConfigError as error:
        raise exits.Misused(str(error)) from None


def inspected_config(
    file: str | None, values: Mapping[str, str | None], environ: Mapping[str, str] = os.environ
) -> tuple[Loaded, list[str]]:
    """Return the readable configuration and all its problems."""
    return inspect(_flags(values), environ=environ, path=file)


def _flags(values: Mapping[str, str | None]) -> dict[str, str]:
    return {
        setting.flag: text
        for setting in SETTINGS
        if setting.flag and (text := values[_variable(setting)]) is not None
    }


def _variable(setting: Setting) -> str:
    return setting.key.replace(".", "_")


def _help(setting: Setting) -> str:
    plain = setting.doc.replace("`", "")
    if setting.default in (None, "", False):
        return plain
    default = f"{setting.default:g}s" if setting.parse is parse_seconds else setting.default
    return f"{plain}  [default: {default}]"
