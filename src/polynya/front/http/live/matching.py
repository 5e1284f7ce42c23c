"""Find the streams of a prefix or pattern, within the limits of a reader and of its core."""

from __future__ import annotations

from polynya.base.limits import LIVE_MATCHES_MAX, LIVE_NAMES_MAX, LIVE_STREAMS_PER_CORE_MAX
from polynya.front.http.live.selection import Selection
from polynya.front.http.protocol.errors import Failure
from polynya.local.api import StreamInfo
from polynya.service.api import Service
from polynya.service.live import LiveStreams

_LIST_PAGE = 1000
_MANY_NAMES = (
    f"the pattern had to be compared with more than {LIVE_NAMES_MAX} names: begin it with a "
    "segment without a wildcard, or use a prefix"
)


async def find_matching(
    service: Service, selection: Selection, shared: LiveStreams
) -> dict[str, StreamInfo]:
    """Return the streams of the prefix or pattern. Raises `Failure` if there are too many."""
    found: dict[str, StreamInfo] = {}
    compared = 0
    for prefix in selection.prefixes:
        after = ""
        while True:
            if compared >= LIVE_NAMES_MAX:
                raise Failure("LIVE_LIMIT", _MANY_NAMES)
            page = await service.list_streams(prefix, after, _LIST_PAGE, local=selection.local)
            found |= {info.name: info for info in page if selection.matches(info.name)}
            compared += len(page)
            check_count(len(found), shared)
            if len(page) < _LIST_PAGE:
                break
            after = page[-1].name
    return found


def check_count(count: int, shared: LiveStreams, more: int = 0) -> None:
    """Raise `Failure` if a prefix or pattern has so many streams, or if the readers of the core
    would follow too many with these and `more`."""
    if count > LIVE_MATCHES_MAX:
        raise Failure(
            "LIVE_LIMIT",
            f"the prefix or pattern has more than {LIVE_MATCHES_MAX} streams; use a longer one",
        )
    if shared.followed + count + more > LIVE_STREAMS_PER_CORE_MAX:
        shared.parked.clear()  # those who read go first
    if shared.followed + count + more > LIVE_STREAMS_PER_CORE_MAX:
        raise Failure(
            "LIVE_LIMIT",
            f"the readers of this core follow {LIVE_STREAMS_PER_CORE_MAX} streams; retry at "
            "another node",
        )
