"""Where a node's admin port is found that is open on its own machine alone."""

from __future__ import annotations

import httpx

NEAR_SECONDS = 2.0  # for an answer on the loopback


def near_admin(port: int, start: str) -> str:
    """Its URL on this machine's loopback; empty when the node that began as `start` is not the one there, and so on another machine.
    It is asked without a token, which only the right node is to see."""
    url = f"http://127.0.0.1:{port}"
    try:
        told = httpx.get(f"{url}/v1/node", timeout=NEAR_SECONDS, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return ""
    return url if isinstance(told, dict) and start and told.get("start") == start else ""


def far_refusal(server: str) -> str:
    """In words for who asks from elsewhere."""
    return f"the admin port of {server} is open on its own machine alone: give the command there, or set admin_listen"
