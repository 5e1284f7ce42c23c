"""Request routing in a cluster: to the node that owns the stream if known, otherwise to any node
that responds.

A response relayed by another node names the owner in `Stream-Owner`. The client follows the hint
only to a node that the user's server lists as a member, because the token goes with the request.
The scheme must match. A token sent to a loopback address leaves this machine only over TLS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from urllib.parse import urlsplit

OWNERS_MAX = 16_384  # streams whose owner is cached
NODES_MAX = 64
AVOID_SECONDS = 2.0  # how long to avoid a node that failed, doubled each time …
AVOID_SECONDS_MAX = 120.0  # … up to this
ASK_SECONDS = 30.0  # between two fetches of the node list
NEXT_SECONDS = 2.0  # connect timeout when another node is left to try
OWNER_SECONDS = 10.0  # response timeout of an owner: another node notices sooner that it is down
NOT_NOW = frozenset((502, 503, 504))
_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))


def is_loopback(url: str) -> bool:
    """Return True if the URL names this machine."""
    return urlsplit(url).hostname in _LOOPBACK


class NodeRouter:
    """Chooses servers for requests. `servers` are the user's URLs without a trailing slash. Threads
    may share it. Times are monotonic seconds."""

    def __init__(self, servers: Sequence[str], *, with_token: bool) -> None:
        self.servers = tuple(servers)
        self._with_token = with_token
        self._nodes: tuple[str, ...] = ()
        self._owners: dict[str, str] = {}
        self._avoided: dict[
            str, tuple[float, float]
        ] = {}  # end of avoidance, and seconds of the next one
        self._ask_at = 0.0
        self._lock = Lock()
        self._guarded: NodeRouter | None = self if with_token else None

    def guarded(self) -> NodeRouter:
        """Return the router for requests that may carry a secret although the client has no token:
        it follows fewer hints."""
        with self._lock:
            if self._guarded is None:
                self._guarded = NodeRouter(self.servers, with_token=True)
            return self._guarded

    def ways(self, target: str, now: float) -> list[str]:
        """Return all known servers in the order to try them: the owner first, avoided ones last.
        Try the next only while nothing could be sent."""
        path = path_of(target)
        with self._lock:
            owner = None if "consistency=local" in target else self._owners.get(path)
            known = dict.fromkeys((*((owner,) if owner else ()), *self.servers, *self._nodes))
            return sorted(known, key=lambda server: self._is_avoided(server, now))

    def owns(self, server: str, target: str) -> bool:
        """Return True if the server owns the stream."""
        return self._owners.get(path_of(target)) == server

    def on_answer(
        self, server: str, target: str, answer: tuple[int, Mapping[str, str]] | None, now: float
    ) -> bool:
        """Record the result of a request: status and headers, or None without a complete response.

        Return True if the caller should fetch the node list from this server, pass it to `met`, and
        call this again."""
        with self._lock:
            if answer is None or answer[0] in NOT_NOW:
                self._avoid(server, now)
                self._forget(server, path_of(target))
                return False
            self._avoided.pop(server, None)
            return self._note(path_of(target), answer[1].get("stream-owner", "").rstrip("/"), now)

    def met(self, urls: Iterable[str]) -> None:
        """Store the node list of a cluster that a server returned."""
        with self._lock:
            good = [url.rstrip("/") for url in urls if self._may_follow(url)]
            self._nodes = tuple(good[:NODES_MAX])

    def _note(self, path: str, hint: str, now: float) -> bool:
        if not hint:
            return False
        if hint in self.servers or hint in self._nodes:
            if len(self._owners) >= OWNERS_MAX:
                self._owners.clear()
            self._owners[path] = hint
            return False
        if now < self._ask_at or not self._may_follow(hint):
            return False
        self._ask_at = now + ASK_SECONDS
        return True

    def _may_follow(self, url: str) -> bool:
        first = self.servers[0]
        parts = urlsplit(url)
        if (
            parts.scheme != urlsplit(first).scheme
            or not parts.hostname
            or parts.path.strip("/")
            or parts.username
        ):
            return False
        secret = self._with_token and parts.scheme != "https"
        return not secret or is_loopback(url) or not is_loopback(first)

    def _forget(self, server: str, path: str) -> None:
        if self._owners.get(path) == server:
            del self._owners[path]

    def _avoid(self, server: str, now: float) -> None:
        _, seconds = self._avoided.get(server, (0.0, AVOID_SECONDS))
        self._avoided[server] = (now + seconds, min(2 * seconds, AVOID_SECONDS_MAX))

    def _is_avoided(self, server: str, now: float) -> bool:
        return server in self._avoided and now < self._avoided[server][0]


def path_of(target: str) -> str:
    """Return the cache key of a stream's owner."""
    path = target.partition("?")[0]
    stem, _, last = path.rpartition("/")
    return stem if last in ("retention", "attrs", "append-batch") else path


def server_list(text: str | Sequence[str]) -> list[str]:
    """Parse server URLs: one, several with commas, or a list. Completes `HOST:PORT`."""
    parts = text.split(",") if isinstance(text, str) else list(text)
    given = [part.strip() for part in parts if part.strip()]
    return list(
        dict.fromkeys((part if "://" in part else f"http://{part}").rstrip("/") for part in given)
    )
