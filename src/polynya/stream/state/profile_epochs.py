"""The regime of a stream: its profile now, and the record since which it has it.

A stream without a regime has been replicated since its creation.
"""

from __future__ import annotations

from typing import Protocol

from polynya.stream.features.profiles.commands import Profile
from polynya.stream.state.model import ProfileEpoch, Stream


def profile_epoch_of(stream: Stream) -> ProfileEpoch:
    """Return the stream's regime: the first one, if its profile never changed."""
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


class ByProfile(Protocol):
    """The part of a machine that lists streams by their profiles."""

    diskless: dict[int, Stream]
    changing: dict[int, Stream]
    diskless_left: int


def list_by_profile(machine: ByProfile, stream: Stream) -> None:
    """Put the stream among those whose profile is diskless, or changes; or remove it from them."""
    profile_epoch = None if stream.extras is None else stream.extras.profile_epoch
    changes = profile_epoch is not None and profile_epoch.changing_since_ms > 0
    is_diskless = profile_epoch is not None and profile_epoch.profile == Profile.DISKLESS
    if changes:
        machine.changing[stream.uid] = stream
    else:
        machine.changing.pop(stream.uid, None)
    if changes or is_diskless:
        machine.diskless[stream.uid] = stream
    elif machine.diskless.pop(stream.uid, None) is not None:
        machine.diskless_left += 1


def unlist(machine: ByProfile, stream: Stream) -> None:
    """Remove a stream that leaves memory."""
    machine.changing.pop(stream.uid, None)
    if machine.diskless.pop(stream.uid, None) is not None:
        machine.diskless_left += 1
