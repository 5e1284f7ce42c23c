"""The members of a group and their quorums."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class Configuration(msgspec.Struct, frozen=True, array_like=True):
    """Members by role, each tuple sorted. `outgoing` holds the previous voters while both
    majorities are needed (joint consensus)."""

    voters: tuple[int, ...]
    outgoing: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    readers: tuple[int, ...] = ()

    @property
    def joint(self) -> bool:
        return bool(self.outgoing)

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted({*self.voters, *self.outgoing, *self.learners, *self.readers}))

    def votes(self, member: int) -> bool:
        return member in self.voters or member in self.outgoing

    def alone(self, member: int) -> bool:
        """Return whether the vote of this member alone is a quorum."""
        return self.voters == (member,) and self.outgoing in {(), (member,)}

    def agreed(self, value: Callable[[int], int]) -> int:
        """Return the largest number that a majority of voters has reached (a majority of each side
        when joint). `value` maps a voter to its number."""
        voters = self.voters
        reached = sorted(map(value, voters))[(len(voters) - 1) // 2]
        if self.outgoing:
            return min(reached, sorted(map(value, self.outgoing))[(len(self.outgoing) - 1) // 2])
        return reached

    def won(self, votes: dict[int, bool]) -> bool | None:
        """Return whether the votes decide the election: True for won, False for lost, None while it
        is open."""
        sides = [_won(side, votes) for side in (self.voters, self.outgoing) if side]
        if False in sides:
            return False
        return None if None in sides else True


def normal(configuration: Configuration) -> Configuration:
    """Return the configuration sorted and without duplicates. Raises ValueError if it has no voter,
    or a member with two roles."""
    parts = [
        tuple(sorted(set(part)))
        for part in (configuration.voters, configuration.learners, configuration.readers)
    ]
    if not parts[0]:
        raise ValueError("a group needs a voter")
    members = [member for part in parts for member in part]
    if len(set(members)) < len(members) or min(members) < 1:
        raise ValueError("each member is one of voter, learner and reader, and its number is not 0")
    return Configuration(parts[0], (), parts[1], parts[2])


def _won(side: tuple[int, ...], votes: dict[int, bool]) -> bool | None:
    needed = len(side) // 2 + 1
    if sum(votes.get(member, False) for member in side) >= needed:
        return True
    return (
        False if sum(not votes.get(member, True) for member in side) > len(side) - needed else None
    )


encode_configuration: Callable[[Configuration], bytes] = msgspec.msgpack.Encoder().encode
decode_configuration: Callable[[bytes], Configuration] = msgspec.msgpack.Decoder(
    Configuration
).decode
