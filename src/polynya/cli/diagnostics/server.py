"""Checks of the target server: reachability, release, health and clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from polynya import __version__
from polynya.cli.cluster.commands import UNTOLD
from polynya.cli.diagnostics.findings import FAIL, OK, WARN, Finding
from polynya.cli.remote.client import Client
from polynya.cli.terminal import exits, output

if TYPE_CHECKING:
    import httpx

SLOW_SECONDS = 1.0
SKEW_SECONDS = 5.0
ANSWER_SECONDS = 10.0


def check_server(client: Client) -> Iterator[Finding]:
    """Check the server. A missing server at the default address is only a warning: none may have
    been started."""
    began = time.monotonic()
    try:
        node = client.call("GET", "/v1/node", seconds=ANSWER_SECONDS)
        reported = node.json()
        version = str(reported["version"])
    except exits.Ended as failure:
        status = WARN if client.origin == "default" else FAIL
        yield Finding("server", status, failure.message, failure.hint)
        return
    except (ValueError, KeyError, TypeError):
        yield Finding(
            "server",
            FAIL,
            f"{client.server} is not a Polynya node",
            "Pass the node with --server, POLYNYA_SERVER or --context.",
        )
        return
    taken = time.monotonic() - began
    said = (
        f"{client.server} ({client.origin}) responded in {taken * 1000:.0f} ms: "
        f"{output.counted(reported.get('cores', 1), 'core')}"
    )
    yield Finding(
        "server",
        OK if taken < SLOW_SECONDS else WARN,
        said,
        "" if taken < SLOW_SECONDS else "The response is slow: the node is busy or far away.",
    )
    yield _version(version)
    yield from _health(client)
    if reported.get("nodes"):
        yield from _cluster(client)
    yield from _clock(node)


def _version(version: str) -> Finding:
    if version == __version__:
        return Finding("versions", OK, f"{version}, both")
    return Finding(
        "versions",
        WARN,
        f"the server is {version}, this command is {__version__}",
        "Upgrade the older one.",
    )


def _health(client: Client) -> Iterator[Finding]:
    try:
        answer = client.send("GET", "/health")
        reported = answer.json()
        failed = [
            f"core {row['core']} {row['check']}: {row['reason']}" for row in reported["failed"]
        ]
        warned = [
            f"core {row['core']} {row['check']}: {row['reason']}"
            for row in reported.get("warnings", ())
        ]
        unsafe = list(reported["unsafe"])
    except (exits.Ended, ValueError, KeyError, TypeError):
        yield Finding("health", FAIL, "the server reported no reason", "Read its log.")
        return
    step = "Read its log and /readyz?verbose."
    yield (
        Finding("health", FAIL, "; ".join(failed), step)
        if failed
        else Finding("health", OK, "all checks pass")
    )
    for line in warned:
        yield Finding("health", WARN, line, step)
    for line in unsafe:
        yield Finding("access", WARN, line, "Not for production: see docs/access.md.")


def _cluster(client: Client) -> Iterator[Finding]:
    """Report the cluster's problems. A node that is down is a warning: the other nodes keep
    serving."""
    try:
        reported = client.send("GET", "/v1/cluster/health").json()
        if "nodes" not in reported:  # details require a token
            yield (
                Finding("cluster", OK, "healthy")
                if reported["healthy"]
                else Finding("cluster", WARN, UNTOLD)
            )
            return
        problems, notes, nodes = (
            list(reported["problems"]),
            list(reported["notes"]),
            int(reported["nodes"]),
        )
    except (exits.Ended, ValueError, KeyError, TypeError):
        yield Finding("cluster", WARN, "the server reported no reason", "Read its log.")
        return
    if not problems and not notes:
        yield Finding("cluster", OK, f"{output.counted(nodes, 'node')}, healthy")
    for line in (*problems, *notes):
        yield Finding(
            "cluster",
            WARN,
            line,
            "Run 'polynya cluster status', and read the logs of the nodes that it names.",
        )


def _clock(answer: httpx.Response) -> Iterator[Finding]:
    """Check the clock skew, if the server or its proxy sends a Date header."""
    reported = answer.headers.get("date")
    if reported is None:
        return
    try:
        skew = time.time() - parsedate_to_datetime(reported).timestamp()
    except ValueError:
        return
    if abs(skew) > SKEW_SECONDS:
        ahead = "ahead of" if skew > 0 else "behind"
        step = "Synchronise the clock: '--from 10m' counts from this machine's time."
        yield Finding("time", WARN, f"this machine is {abs(skew):.0f} s {ahead} the server", step)
