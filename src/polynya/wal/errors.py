"""Errors of the journal and the snapshot store."""

from polynya.base.errors import CorruptData, PolynyaError, Unavailable


class DiskFull(Unavailable):
    """No space left on the disk; the write was undone and may be retried later (507)."""


class JournalGone(CorruptData):
    """Files of a running journal were deleted, or its directory was moved or unmounted. A restart
    would not find acknowledged entries."""


class JournalFailed(PolynyaError):
    """An earlier write or sync of this journal failed. Nothing can be made durable until a
    restart."""


class JournalLocked(PolynyaError):
    """Another process holds the lock of the directory."""
