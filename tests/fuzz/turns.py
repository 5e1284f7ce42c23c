"""How long a node was silent: the longest turn of a loop, in its own CPU time."""

from __future__ import annotations

from contextlib import suppress
from urllib.error import HTTPError
from urllib.request import Request, urlopen

TURN_SECONDS_MAX = 0.25
EVERY_ACTS = 10  # of a client: then it looks
_METRIC = b"polynya_loop_turn_max_seconds "


def silence(urls: list[str], token: str = "") -> list[str]:
    """Return the turns of nodes that took too long, as defects."""
    found = []
    for url in urls:
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
        request = Request(f"{url}/metrics", headers=bearer)
        with suppress(OSError):
            try:
                with urlopen(request, timeout=20) as it:
                    lines = it.read().splitlines()
            except HTTPError as error:
                if error.code < 500:
                    found.append(f"{url}: the metrics answered {error.code}")
                continue
            longest = max(float(each.split()[1]) for each in lines if each.startswith(_METRIC))
            if longest >= TURN_SECONDS_MAX:
                found.append(f"{url}: a turn of the loop took {longest:.3f} s of its CPU time")
    return found
