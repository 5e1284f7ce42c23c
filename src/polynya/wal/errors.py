"""The faults of this room."""

import errno

from polynya.base.errors import CorruptData, PolynyaError, Unavailable

_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))


class DiskFull(Unavailable):
    """There was no room; the write was undone and may be tried again later (507)."""


class JournalGone(CorruptData):
    """Files of a running journal were deleted, or its folder was moved or unmounted: a restart would not find what was acknowledged."""


class JournalFailed(PolynyaError):
    """A write or sync of this journal failed before: nothing can be made durable until a restart."""


class JournalLocked(PolynyaError):
    """Another process has the folder."""


def is_full(error: OSError) -> bool:
    """Whether `error` says that a disk or quota is full."""
    return error.errno in _FULL
