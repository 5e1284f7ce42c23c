"""The members of a group as its coordinator knows them."""

from __future__ import annotations

from collections.abc import Iterator

from polynya.stream.features.consumer_groups.calls import GroupError, Join
from polynya.stream.features.consumer_groups.commands import ConsumerGroupMember


class Member:
    """A member, and the calls of it that wait for an answer."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline_ms",
        "id",
        "instance",
        "joining",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "skips_assignment",
        "syncing",
    )

    def __init__(self, id_: str, instance: str | None) -> None:
        self.id, self.instance = id_, instance
        self.client_id = self.client_host = ""
        self.protocols: list[tuple[str, bytes]] = []
        self.session_timeout_ms = self.rebalance_timeout_ms = 0
        self.assignment = b""
        self.deadline_ms = 0  # of its session
        self.joining: int | None = None  # tickets of waiting calls
        self.syncing: int | None = None
        self.skips_assignment = False

    @classmethod
    def of(cls, id_: str, call: Join) -> Member:
        made = cls(id_, call.instance)
        made.update(call)
        return made

    @classmethod
    def logged(cls, stored: ConsumerGroupMember, protocol: str) -> Member:
        """Return a member as the log has it: of its protocols, the selected one is known."""
        made = cls(stored.id, stored.instance)
        made.client_id, made.client_host = stored.client_id, stored.client_host
        made.session_timeout_ms = stored.session_timeout_ms
        made.rebalance_timeout_ms = stored.rebalance_timeout_ms
        made.protocols = [(protocol, stored.metadata)]
        made.assignment = stored.assignment
        return made

    def update(self, call: Join) -> None:
        """Take over what a join says."""
        self.client_id, self.client_host = call.client_id, call.client_host
        self.protocols = call.protocols
        self.session_timeout_ms = call.session_timeout_ms
        self.rebalance_timeout_ms = call.rebalance_timeout_ms
        self.skips_assignment = call.skips_assignment

    def touch(self, now_ms: int) -> None:
        """Begin the session's timeout again."""
        self.deadline_ms = now_ms + self.session_timeout_ms

    def metadata(self, protocol: str) -> bytes:
        """Return the metadata of a protocol."""
        return dict(self.protocols).get(protocol, b"")

    def to_log(self, protocol: str) -> ConsumerGroupMember:
        return ConsumerGroupMember(
            self.id,
            self.instance,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.metadata(protocol),
            self.assignment,
        )

    @property
    def bytes(self) -> int:
        """The size of its metadata."""
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)


class Roster:
    """The members of a group by id, in the order in which they joined."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._instances: dict[str, str] = {}  # instance id -> member id

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, id_: str) -> Member | None:
        return self._members.get(id_)

    def instance(self, instance: str | None) -> Member | None:
        """Return the static member of this instance id."""
        id_ = self._instances.get(instance or "")
        return None if id_ is None else self._members[id_]

    def find(self, id_: str, instance: str | None) -> tuple[Member | None, GroupError]:
        """Return a member, or the error for one that is unknown or replaced."""
        member = self.get(id_)
        if instance is not None:
            known = self.instance(instance)
            if known is not None and known.id != id_:
                return None, GroupError.FENCED_INSTANCE_ID
            member = known
        return member, GroupError.NONE if member is not None else GroupError.UNKNOWN_MEMBER_ID

    def add(self, member: Member) -> None:
        self._members[member.id] = member
        if member.instance is not None:
            self._instances[member.instance] = member.id

    def remove(self, member: Member) -> None:
        del self._members[member.id]
        if member.instance is not None:
            del self._instances[member.instance]

    def rename(self, member: Member, id_: str) -> None:
        """Give a static member another id; it keeps its place."""
        member.id = id_
        self._members = {each.id: each for each in self}
        assert member.instance is not None
        self._instances[member.instance] = id_

    @property
    def bytes(self) -> int:
        """The size of all metadata."""
        return sum(member.bytes for member in self)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest time that a member may need to join again."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def supports(self, call: Join, besides: Member | None) -> bool:
        """Report whether a protocol of the call is one of all other members."""
        common = {name for name, _ in call.protocols}
        for member in self:
            if member is not besides:
                common &= {name for name, _ in member.protocols}
        return bool(common)

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer among those that all have."""
        common = set.intersection(*({name for name, _ in each.protocols} for each in self))
        votes = [next(name for name, _ in each.protocols if name in common) for each in self]
        return max(sorted(set(votes)), key=votes.count)
