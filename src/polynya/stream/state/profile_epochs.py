"""The profile epoch of a stream: its profile now, and the record since which it has it; and the
streams of a group that are diskless.

A stream without a profile epoch has been replicated since its creation.
"""

from __future__ import annotations

from polynya.stream.features.profiles.commands import Profile
from polynya.stream.state.model import ProfileEpoch, Stream, WriterState


def profile_epoch_of(stream: Stream) -> ProfileEpoch:
    """Return the stream's profile epoch: the first one, if its profile never changed."""
    profile_epoch = None if stream.extras is None else stream.extras.profile_epoch
    return profile_epoch or ProfileEpoch(Profile.REPLICATED, 1, 0, 0, stream.created_ms)


def profile_of(stream: Stream) -> int:
    """Return the stream's profile. During a change it is the one before."""
    extras = stream.extras
    return (
        Profile.REPLICATED
        if extras is None or extras.profile_epoch is None
        else extras.profile_epoch.profile
    )


class DisklessStreams:
    """The streams of a group whose profile is diskless or changes, and the writers of them."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.changing: dict[int, Stream] = {}  # those of them whose profile changes
        self.writers: dict[str, WriterState] = {}  # with their last commits
        self.left = 0  # streams that left `streams`; no part of the state

    def update(self, stream: Stream) -> None:
        """List the stream as its profile tells, or no longer."""
        profile_epoch = None if stream.extras is None else stream.extras.profile_epoch
        changes = profile_epoch is not None and profile_epoch.changing_since_ms > 0
        is_diskless = profile_epoch is not None and profile_epoch.profile == Profile.DISKLESS
        if changes:
            self.changing[stream.uid] = stream
        else:
            self.changing.pop(stream.uid, None)
        if changes or is_diskless:
            self.streams[stream.uid] = stream
        elif self.streams.pop(stream.uid, None) is not None:
            self.left += 1

    def remove(self, stream: Stream) -> None:
        """Remove a stream that leaves memory."""
        self.changing.pop(stream.uid, None)
        if self.streams.pop(stream.uid, None) is not None:
            self.left += 1
