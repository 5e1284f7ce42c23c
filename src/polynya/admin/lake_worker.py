"""The lake worker as a child of the node: what it needs, its command line and its environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from polynya.base.errors import ConfigError
from polynya.config.model import Config
from polynya.config.settings import SETTINGS
from polynya.lakehouse.needs import INSTALL, NotInstalled, check_pipeline


def check_lake(config: Config) -> None:
    """That the worker can run here, if one is asked for: it would say what it lacks for ever. Raises ConfigError."""
    if not config.lake.interval:
        return
    without = "set lake.interval to 0: then another machine can run 'polynya lake run'"
    try:
        check_pipeline()
    except NotInstalled as missing:
        raise ConfigError(f"lake.interval: tables cannot be built here, as {missing}: {INSTALL}, or {without}") from None
    except ConfigError as wrong:
        raise ConfigError(f"lake.interval: tables cannot be built here: {wrong}; or {without}") from None


def lake_command(config: Config, url: str, parent_pid: int) -> list[str]:
    """`polynya lake run`, made to die with its parent."""
    worker = ["-m", "polynya.cli", "lake", "run", "--server", url]
    options = ["--interval", f"{config.lake.interval:g}", "--master", config.lake.master]
    return [sys.executable, "-m", "polynya.config.core_start", str(parent_pid), sys.executable, *worker, *options]


def lake_environment(config: Config, url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The node's own environment, and the settings of the object store as variables, wherever the node had them from: the server
    never tells a runner its credentials, but this runner is the node's own child."""
    made = {name: value for name, value in environ.items() if not name.startswith("POLYNYA_")}
    made["POLYNYA_SERVER"] = url
    for setting in SETTINGS:
        if setting.key.startswith("cold."):
            value = getattr(config.cold, setting.key.removeprefix("cold."))
            if value != setting.default:
                made[setting.env] = str(value)
    return made
