"""The profile of a stream: where an append stores its records first, and how that changes.

The log of a diskless stream has only index entries. A change to diskless waits until nothing of the
stream is hot, and appends are refused meanwhile (docs/decisions/0027). Record numbers go on over a
change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.stream.command import applies, level_of
from polynya.stream.features.lifetimes.rules import is_surely_expired, tail_reply
from polynya.stream.features.profiles.commands import Profile, SealProfileEpoch, SetProfile
from polynya.stream.features.retention.trimming import extras_of, tidy
from polynya.stream.parts import Batch
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import ProfileEpoch, Stream
from polynya.stream.state.profile_epochs import profile_epoch_of, profile_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

__all__ = ["profile_of"]

_LEVEL = level_of(SetProfile)


def begin_first(machine: Machine, stream: Stream, profile: int) -> None:
    """Give a new stream a profile, from its tail on."""
    _begin(machine, stream, profile, 1, stream.created_ms)


def judge_logged(machine: Machine, stream: Stream, batch: Batch | None) -> Reply | None:
    """Return the refusal of an append that is in the log itself, to a stream that is diskless or
    changes; or None. A close without a batch may come either way."""
    if stream.deleted or stream.uid not in machine.diskless.streams:
        return None
    if profile_epoch_of(stream).changing_since_ms:
        return tail_reply(Code.NOT_YET, stream)
    return None if batch is None else tail_reply(Code.WRONG_PROFILE, stream)


def judge_packed(machine: Machine, stream: Stream) -> Reply | None:
    """Return the refusal of an append whose payload is in a pack, or None."""
    if stream.deleted:
        return None
    if stream.uid not in machine.diskless.streams:
        return tail_reply(Code.WRONG_PROFILE, stream)
    if stream.hot or profile_epoch_of(stream).changing_since_ms:
        return tail_reply(Code.NOT_YET, stream)
    return None


@applies(SetProfile)
def apply_set_profile(machine: Machine, command: SetProfile, position: int) -> Reply:
    """Begin a change of the profile, or take it back. Refusals: NOT_FOUND, EVICTED, GONE,
    INCARNATION, FENCED (another epoch is open), REFUSED (a leased stream)."""
    machine.counters.raise_level(_LEVEL)  # a standalone node gets no `SetLevel`
    stream = machine.directory.streams.get(command.name)
    if stream is None:
        return machine.directory.absent(command.name)
    refusal = _judge_change(stream, command)
    if refusal is not None:
        return _with_epoch(refusal, stream)
    profile_epoch = profile_epoch_of(stream)
    if command.profile != profile_epoch.profile:
        if command.profile == Profile.REPLICATED or stream.hot is None:
            _begin(machine, stream, command.profile, profile_epoch.epoch + 1, command.now_ms)
        elif not profile_epoch.changing_since_ms:
            profile_epoch.changing_since_ms, profile_epoch.wanted = (
                max(1, command.now_ms),
                command.profile,
            )
            _keep(machine, stream, profile_epoch)
    elif profile_epoch.changing_since_ms:
        profile_epoch.changing_since_ms = profile_epoch.wanted = 0
        _keep(machine, stream, profile_epoch)
    return _with_epoch(tail_reply(Code.OK, stream), stream)


def _judge_change(stream: Stream, command: SetProfile) -> Reply | None:
    if stream.deleted:
        return tail_reply(Code.GONE, stream)
    if is_surely_expired(stream, command.now_ms):
        return Reply(Code.NOT_FOUND)
    if command.uid and command.uid != stream.uid:
        return tail_reply(Code.INCARNATION, stream)
    if command.epoch and command.epoch != profile_epoch_of(stream).epoch:
        return tail_reply(Code.FENCED, stream)
    is_leased = stream.extras is not None and stream.extras.segments is not None
    return tail_reply(Code.REFUSED, stream) if is_leased else None


@applies(SealProfileEpoch)
def apply_seal_profile_epoch(machine: Machine, command: SealProfileEpoch, position: int) -> Reply:
    """End a profile epoch whose stream waits for it. Refusals: NOT_FOUND, EVICTED, GONE, FENCED
    (another epoch is open), REFUSED (it does not change), NOT_YET (something is hot)."""
    machine.counters.raise_level(_LEVEL)
    stream = machine.directory.streams.get(command.name)
    if stream is None:
        return machine.directory.absent(command.name)
    if stream.uid != command.uid:
        return Reply(Code.NOT_FOUND)
    profile_epoch = profile_epoch_of(stream)
    code = _judge_seal(stream, command, profile_epoch)
    if code == Code.OK:
        _begin(machine, stream, profile_epoch.wanted, profile_epoch.epoch + 1, command.now_ms)
    return _with_epoch(tail_reply(code, stream), stream)


def _judge_seal(stream: Stream, command: SealProfileEpoch, profile_epoch: ProfileEpoch) -> Code:
    if stream.deleted:
        return Code.GONE
    if profile_epoch.epoch != command.epoch:
        return Code.FENCED
    if not profile_epoch.changing_since_ms:
        return Code.REFUSED
    return Code.NOT_YET if stream.hot else Code.OK


def _begin(machine: Machine, stream: Stream, profile: int, epoch: int, now_ms: int) -> None:
    """Begin a profile epoch at the tail."""
    machine.counters.raise_level(_LEVEL)
    _keep(
        machine, stream, ProfileEpoch(profile, epoch, stream.next_record, stream.next_byte, now_ms)
    )


def _keep(machine: Machine, stream: Stream, profile_epoch: ProfileEpoch) -> None:
    is_first = profile_epoch == ProfileEpoch(Profile.REPLICATED, 1, 0, 0, stream.created_ms)
    extras_of(stream).profile_epoch = None if is_first else profile_epoch
    tidy(stream)
    machine.diskless.update(stream)
    machine.changes.streams.add(stream.uid)


def _with_epoch(reply: Reply, stream: Stream) -> Reply:
    """Add the profile epoch that is open now to a reply."""
    if reply.uid:
        profile_epoch = profile_epoch_of(stream)
        reply.detail = (
            profile_epoch.profile,
            profile_epoch.epoch,
            bool(profile_epoch.changing_since_ms),
        )
    return reply


def profile_differences(stream: Stream, wanted: int) -> list[tuple[str, str | int | None]]:
    """Return how the profile that a repeated create names differs; REPLICATED names none."""
    is_leased = stream.extras is not None and stream.extras.segments is not None
    known = "leased" if is_leased else Profile.NAMES[profile_of(stream)]
    named = {Profile.DISKLESS: "diskless", Profile.NAMED_REPLICATED: "replicated"}.get(wanted)
    return [] if named in (None, known) else [("profile", known)]
