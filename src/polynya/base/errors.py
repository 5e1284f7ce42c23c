"""Faults: things that are broken. A refusal (a deterministic no) is a value, `polynya.stream.replies.Reply`, never an exception."""


class PolynyaError(Exception):
    """The root of all that this package raises on purpose."""


class Unavailable(PolynyaError):
    """Not now: the outcome is certain (nothing was applied) and the caller may try again."""


class NotLeader(Unavailable):
    """Another node leads the group: `node`, or 0 when it is not known yet."""

    def __init__(self, node: int) -> None:
        super().__init__(f"node {node} leads this group; ask there" if node else "this group is electing a leader; retry")
        self.node = node


class OutcomeUnknown(PolynyaError):
    """The operation may or may not have been applied; only an idempotent repeat is safe."""


class CorruptData(PolynyaError):
    """A checksum or a structure is wrong where it must not be. Never repaired by cutting."""


class InvalidMessage(PolynyaError, ValueError):
    """What another node says cannot be. Nothing was done, and it is not listened to on that connection any more."""


class ConfigError(PolynyaError):
    """The configuration cannot be used; the message says which key and what to do."""
