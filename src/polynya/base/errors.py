"""The exceptions of this package: faults. A refusal is deterministic and a value
(`polynya.stream.replies.Reply`), never an exception."""


class PolynyaError(Exception):
    """The base class of all exceptions that this package raises on purpose."""


class Unavailable(PolynyaError):
    """A temporary failure: nothing was applied, and the caller may retry."""


class UpgradePending(Unavailable):
    """The request needs a feature level that its group does not have yet (`base.levels`)."""


class NotLeader(Unavailable):
    """Another node is the group's leader: `node`, or 0 if unknown."""

    def __init__(self, node: int) -> None:
        super().__init__(
            f"node {node} is the leader of this group; send the request there"
            if node
            else "this group is electing a leader; retry"
        )
        self.node = node


class OutcomeUnknown(PolynyaError):
    """The operation may or may not have been applied; only an idempotent retry is safe."""


class CorruptData(PolynyaError):
    """A checksum or structure is invalid. Never repaired by truncation."""


class InvalidMessage(PolynyaError, ValueError):
    """A message from another node is invalid. It had no effect; the sender is ignored or
    disconnected."""


class ConfigError(PolynyaError):
    """The configuration is unusable; the message names the key and the remedy."""
