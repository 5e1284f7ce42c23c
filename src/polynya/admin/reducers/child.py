"""The workers of reducers as children of the node: their command line and environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from polynya.config.core_start import CoreStart
from polynya.system.ports import spelled

_ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (an address to compare with)


def reduce_command(parent_pid: int) -> list[str]:
    """Return the command of `polynya reduce run`, set up to die with its parent."""
    start = [sys.executable, "-m", "polynya.config.core_start", str(parent_pid)]
    return [*start, sys.executable, "-m", "polynya.cli", "reduce", "run"]


def reduce_environment(
    start: CoreStart, address: tuple[str, int], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the node's environment without its settings, plus the server, the token file and the
    certificate to trust as variables. `address`: where the node listens for HTTP."""
    made = {name: value for name, value in environ.items() if not name.startswith("POLYNYA_")}
    host, port = address
    scheme = "https" if start.tls is not None else "http"
    made["POLYNYA_SERVER"] = f"{scheme}://{spelled(_ANYWHERE.get(host, host), port)}"
    if start.config.reduce.token_file:
        made["POLYNYA_TOKEN_FILE"] = start.config.reduce.token_file
    if start.tls is not None and start.tls.fingerprint:
        made["POLYNYA_CA_FILE"] = start.tls.cert
    return made
