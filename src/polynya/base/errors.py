"""Faults: things that are broken. A refusal (a deterministic no) is a value, `polynya.stream.replies.Reply`, never an exception."""


class PolynyaError(Exception):
    """The root of all that this package raises on purpose."""


class Unavailable(PolynyaError):
    """Not now: the outcome is certain (nothing was applied) and the caller may try again."""


class NotLeader(Unavailable):
    """This node does not lead the group: nothing was taken. `leader` is the node that does, as far as this one knows, or 0."""

    def __init__(self, leader: int) -> None:
        super().__init__(f"node {leader} leads this group" if leader else "this group has no leader at the moment; retry")
        self.leader = leader


class OutcomeUnknown(PolynyaError):
    """The operation may or may not have been applied; only an idempotent repeat is safe."""


class CorruptData(PolynyaError):
    """A checksum or a structure is wrong where it must not be. Never repaired by cutting."""


class ConfigError(PolynyaError):
    """The configuration cannot be used; the message says which key and what to do."""
