"""The streams whose slices a worker of the core is replacing, so that no two do at once."""

from __future__ import annotations

import msgspec


class InHand(msgspec.Struct):
    """The objects that a core is putting, the streams that the merger or the compactor is working on,
    and those whose keys are compacted: these get no pages, since the entries of a page are never
    rewritten."""

    packs: set[str] = msgspec.field(default_factory=set)
    uids: set[int] = msgspec.field(default_factory=set)
    compacted: set[int] = msgspec.field(default_factory=set)
