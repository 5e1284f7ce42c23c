"""Commands that move parts of the state to the object store: tags 35-38."""

from __future__ import annotations

from polynya.stream.command import Command, command
from polynya.stream.command_validation import COUNTER, TIME, WIDE, WORD


@command(
    since=3,
    bounds={
        "uid": WIDE,
        "record": COUNTER,
        "end": COUNTER,
        "mark": WORD,
        "stored": WORD,
        "crc": WORD,
        "now_ms": TIME,
    },
)
class PageEntries(Command, tag=37, frozen=True, gc=False):
    """Put one entry for `page`, whose owner group this is, in place of the entries of a stream from
    `record` to before `end`. Level 3.

    `mark` is the CRC-32C of these entries (`paging.mark_of`); others are left as they are. `stored` and `crc`
    are those of the object. The reply's detail is [0] if the index has the page now, else []."""

    page: str
    uid: int
    record: int
    end: int
    mark: int
    stored: int
    crc: int
    now_ms: int


@command(since=3, bounds={"now_ms": TIME}, rows=("packs", (None, (1, 2**32 - 1))))
class ReleasePaged(Command, tag=38, frozen=True, gc=False):
    """Release a page that no index names any more, and the packs of its entries. Level 3.

    `packs`: (key, entries of the page). NOT_FOUND: the page is not held. NOT_YET: an index names
    it."""

    page: str
    packs: list[tuple[str, int]]
    now_ms: int


@command(since=2, bounds={"now_ms": TIME}, rows=("slots", (WIDE, WORD, WORD, WORD, WORD)))
class Evict(Command, tag=35, frozen=True, gc=False):
    """Evict idle streams whose states are in the block `pack`, whose owner group this is. `slots`:
    (uid, mark of the state, offset in the object, length, CRC-32C). Streams that changed since are
    skipped. The reply's detail lists the evicted positions."""

    pack: str
    now_ms: int
    slots: list[tuple[int, int, int, int, int]]


@command(since=2, bounds={"now_ms": TIME}, rows=("states", (None, WIDE, None)))
class Return(Command, tag=36, frozen=True, gc=False):
    """Bring evicted streams back: `states` of (name, uid, state). The reply's detail lists the
    accepted positions in `states`."""

    states: list[tuple[str, int, bytes]]
    now_ms: int
