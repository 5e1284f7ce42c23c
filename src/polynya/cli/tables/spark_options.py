"""The options of the commands that start Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

from polynya.base.errors import ConfigError
from polynya.cli.terminal import exits, options, output
from polynya.lakehouse.machine.master import parse_settings

if TYPE_CHECKING:
    from polynya.lakehouse.jobs.lazy_runner import RunnerFactory
    from polynya.lakehouse.jobs.results import Runner


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--master` and `--conf` to a command, and pass what starts such a session as `spark`."""

    @options.value(
        "--master URL",
        default="",
        help=(
            "The Spark master: local[N], spark://HOST:PORT, yarn, or k8s://https://HOST:PORT. "
            "Default: all cores of this machine."
        ),
    )
    @options.value(
        "--conf KEY=VALUE",
        "pairs",
        multiple=True,
        help=(
            "A setting of Spark; repeatable. Other users can see command lines, so put secrets "
            "into spark-defaults.conf."
        ),
    )
    @wraps(command)
    def with_spark(*args: Any, master: str, pairs: tuple[str, ...], **options: Any) -> Any:
        try:
            settings = parse_settings(pairs)
        except ConfigError as wrong:
            raise exits.Misused(f"--conf: {wrong}") from None
        return command(*args, spark=spark_factory(master, settings), **options)

    return with_spark


def spark_factory(master: str, settings: Mapping[str, str] | None = None) -> RunnerFactory:
    """Return a function that starts Spark when the first job needs it."""

    def start() -> Runner:
        from polynya.lakehouse.jobs.spark import SparkRunner

        output.notice(f"starting Spark{f' at {master}' if master else ''}")
        return SparkRunner(master, settings=settings)

    return start
