"""The settings `segments.*`."""

from __future__ import annotations

import msgspec

from polynya.base.limits import SEGMENT_BYTES, SEGMENT_RECORDS


class SegmentsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the segments of leased streams that name none."""

    records: int = SEGMENT_RECORDS
    bytes: int = SEGMENT_BYTES
