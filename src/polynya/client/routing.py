"""Where requests go, of several nodes that act as one: to the one that owns the stream where that is known, else to one that answers.

An answer that came by way of another node names that node in `Stream-Owner`. A hint alone is not followed, as a token would follow with it:
the node has to be among those that the server, which the user named, tells of itself; by the same scheme; and a token that was sent within
this machine stays there unless the way out is encrypted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from urllib.parse import urlsplit

OWNERS_MAX = 16_384  # streams whose owner is remembered
NODES_MAX = 64
AVOID_SECONDS = 2.0  # a node that did not answer, doubled each time …
AVOID_SECONDS_MAX = 120.0  # … up to this
ASK_SECONDS = 30.0  # between two looks at which nodes there are
NEXT_SECONDS = 2.0  # to connect, where there is another node to try
OWNER_SECONDS = 10.0  # for an owner to answer: through another node it takes less to learn that it is away
NOT_NOW = frozenset((502, 503, 504))
_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))


def is_loopback(url: str) -> bool:
    """Whether the URL names this machine."""
    return urlsplit(url).hostname in _LOOPBACK


class NodeRouter:
    """`servers` are the user's, URLs without a slash at the end. Threads may share it. Times are seconds of any clock that does not go back."""

    def __init__(self, servers: Sequence[str], *, with_token: bool) -> None:
        self.servers = tuple(servers)
        self._with_token = with_token
        self._nodes: tuple[str, ...] = ()
        self._owners: dict[str, str] = {}
        self._avoided: dict[str, tuple[float, float]] = {}  # until when, and for how long the next time
        self._ask_at = 0.0
        self._lock = Lock()
        self._guarded: NodeRouter | None = self if with_token else None

    def guarded(self) -> NodeRouter:
        """The one for requests that may carry a secret though there is no token: it follows fewer hints."""
        with self._lock:
            if self._guarded is None:
                self._guarded = NodeRouter(self.servers, with_token=True)
            return self._guarded

    def ways(self, target: str, now: float) -> list[str]:
        """The servers to try, one after the other as long as nothing could be sent; all that are known are among them."""
        path = path_of(target)
        with self._lock:
            owner = None if "consistency=local" in target else self._owners.get(path)
            known = dict.fromkeys((*((owner,) if owner else ()), *self.servers, *self._nodes))
            return sorted(known, key=lambda server: self._is_avoided(server, now))

    def owns(self, server: str, target: str) -> bool:
        """Whether the server is asked because it owns the stream."""
        return self._owners.get(path_of(target)) == server

    def heard(self, server: str, target: str, answer: tuple[int, Mapping[str, str]] | None, now: float) -> bool:
        """What became of a request: status and headers, or None when there was no whole answer. Whether it is time to ask this server which
        nodes there are, and to tell `met`, and this again."""
        with self._lock:
            if answer is None or answer[0] in NOT_NOW:
                self._avoid(server, now)
                self._forget(server, path_of(target))
                return False
            self._avoided.pop(server, None)
            return self._note(path_of(target), answer[1].get("stream-owner", "").rstrip("/"), now)

    def met(self, urls: Iterable[str]) -> None:
        """The nodes that a server named as those of its cluster."""
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
        if parts.scheme != urlsplit(first).scheme or not parts.hostname or parts.path.strip("/") or parts.username:
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
    """What a stream's owner is remembered by."""
    return target.partition("?")[0].removesuffix("/retention")


def server_list(text: str | Sequence[str]) -> list[str]:
    """URLs as a user gives them: one, several with commas, or a list; `HOST:PORT` is completed."""
    parts = text.split(",") if isinstance(text, str) else list(text)
    given = [part.strip() for part in parts if part.strip()]
    return list(dict.fromkeys((part if "://" in part else f"http://{part}").rstrip("/") for part in given))
