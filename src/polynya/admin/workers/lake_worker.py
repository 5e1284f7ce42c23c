"""The lake worker as a child of the node: its requirements, command line and environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from polynya.base.errors import ConfigError
from polynya.config.model import Config
from polynya.config.settings import SETTINGS
from polynya.lakehouse.machine.master import default_settings, master_addresses
from polynya.lakehouse.machine.needs import INSTALL, NotInstalled, check_pipeline


def check_lake(config: Config) -> None:
    """Raise ConfigError if a lake worker is configured and cannot run here. It would otherwise fail
    in every round."""
    if not config.lake.interval:
        return
    without = "set lake.interval to 0: then another machine can run 'polynya lake run'"
    try:
        check_spark(config)
    except ConfigError as wrong:
        raise ConfigError(f"lake.interval: {wrong}; or {without}") from None


def check_spark(config: Config) -> None:
    """Raise ConfigError if tables cannot be built on this node, with what to do."""
    try:
        check_pipeline()
        master_addresses(config.lake.master, default_settings())
    except NotInstalled as missing:
        raise ConfigError(f"tables cannot be built here, as {missing}: {INSTALL}") from None
    except ConfigError as wrong:
        raise ConfigError(f"tables cannot be built here: {wrong}") from None


def lake_command(config: Config, url: str, parent_pid: int) -> list[str]:
    """Return the command of `polynya lake run`, set up to die with its parent."""
    worker = ["lake", "run", "--server", url]
    options = ["--interval", f"{config.lake.interval:g}", "--master", config.lake.master]
    return child_command(parent_pid, *worker, *options)


def child_command(parent_pid: int, *arguments: str) -> list[str]:
    """Return a `polynya` command that is set up to die with its parent."""
    return [
        sys.executable,
        "-m",
        "polynya.config.core_start",
        str(parent_pid),
        sys.executable,
        *("-m", "polynya.cli", *arguments),
    ]


def lake_environment(config: Config, url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the node's environment plus its store settings as variables.
    The server sends no credentials to a remote runner; this one is a child of the node."""
    made = {name: value for name, value in environ.items() if not name.startswith("POLYNYA_")}
    made["POLYNYA_SERVER"] = url
    for setting in SETTINGS:
        if setting.key.startswith("cold."):
            value = getattr(config.cold, setting.key.removeprefix("cold."))
            if value != setting.default:
                made[setting.env] = str(value)
    return made
