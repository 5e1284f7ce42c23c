"""Find the admin port of a node that opens it only on its own machine."""

from __future__ import annotations

import httpx

NEAR_SECONDS = 2.0  # response timeout on the loopback


def near_admin(port: int, start: str) -> str:
    """Return the admin URL on this machine's loopback, or "" if the node with start id `start` is
    not the one there.

    The request carries no token, because only the right node may see it.
    """
    url = f"http://127.0.0.1:{port}"
    try:
        status = httpx.get(f"{url}/v1/node", timeout=NEAR_SECONDS, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return ""
    return url if isinstance(status, dict) and start and status.get("start") == start else ""


def far_refusal(server: str) -> str:
    """Return the message for requests from another machine."""
    return (
        f"the admin port of {server} listens only on its own machine: run the command there, or "
        "set admin_listen"
    )
