"""`polynya serve`: a node from its settings. The flags are those of the settings' table."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from polynya.base.errors import ConfigError
from polynya.cli import exits, output
from polynya.node.config import load, show
from polynya.node.settings import SETTINGS, Setting, parse_switch

# The settings that --help shows; docs/configuration.md has all of them, and every one has a flag.
SHOWN = ("listen", "data", "cores", "long_poll_timeout", "lake.interval", "cold.backend", "unsafe_no_auth")


def _variable(setting: Setting) -> str:
    return setting.key.replace(".", "_")


def _with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    for setting in reversed(SETTINGS):
        if setting.flag is not None:
            hidden = setting.key not in SHOWN
            kind: dict[str, Any] = {"is_flag": True, "flag_value": "true"} if setting.parse is parse_switch else {"metavar": "VALUE"}
            command = click.option(setting.flag, _variable(setting), default=None, help=_help(setting), hidden=hidden, **kind)(command)
    return command


def _help(setting: Setting) -> str:
    plain = setting.doc.replace("`", "")
    return plain if setting.default in (None, "", False) else f"{plain}  [default: {setting.default}]"


@click.command("serve")
@_with_settings
@click.option("--config", "file", metavar="FILE", help="A TOML file of settings. Default: ./polynya.toml if it is there.")
@click.option("--show-config", is_flag=True, help="Print every setting with its value and where that comes from, and leave.")
@click.option("--json", "as_json", is_flag=True, help="With --show-config: print JSON.")
def serve_command(file: str | None, show_config: bool, as_json: bool, **values: str | None) -> None:
    """Start a node here and serve until SIGTERM or Ctrl-C.

    What was acknowledged is on the disk, whenever and however the node ends. Only the common settings are listed below: every one has a
    flag, a variable and a key in the file, and --show-config prints them all.

    \b
    polynya serve
    polynya serve --listen 127.0.0.1:8080 --data /var/lib/polynya
    POLYNYA_COLD_BACKEND=s3 POLYNYA_COLD_S3_BUCKET=events polynya serve
    """
    flags = {setting.flag: text for setting in SETTINGS if setting.flag and (text := values[_variable(setting)]) is not None}
    try:
        loaded = load(flags, environ=os.environ, path=file)
    except ConfigError as error:
        raise exits.Misused(str(error)) from None
    if show_config:
        rows = show(loaded)
        if as_json:
            output.json_line({key: {"value": value, "origin": origin} for key, value, origin in rows})
        else:
            output.table(("setting", "value", "from"), rows)
        return
    from polynya.node.supervisor import serve

    raise click.exceptions.Exit(serve(loaded.config))
