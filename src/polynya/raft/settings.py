"""The numbers that an agreement runs by, each with its reason."""

import msgspec

KIB = 1024
MIB = 1024 * KIB
PRIORITY_TOP = 2
NEVER = 2**62  # a deadline that does not come, in ms


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Raises ValueError for numbers that cannot work together. `election_ms` and `clock_drift` must be the same on all members."""

    heartbeat_ms: int = 100  # also the grid on which all groups beat, so that their heartbeats share a frame
    election_ms: int = 600  # silence of a leader before anyone may be elected; timeouts are drawn from one to two of these
    clock_drift: float = 0.01  # by how much a clock may be too fast or too slow: leases are that much shorter
    priority: int = PRIORITY_TOP  # each step below the top waits half an election longer; 0 votes and never campaigns by itself
    spread_ms: int = 150  # members that lose a leader at the same moment campaign at different ones: votes are not split
    sleep_after_ms: int = 3000  # of quiet; 0: never
    message_bytes_max: int = 1 * MIB  # entries of one append; a single larger entry goes alone
    inflight_messages_max: int = 64  # appends to one member that are not acknowledged
    inflight_bytes_max: int = 8 * MIB
    uncommitted_bytes_max: int = 64 * MIB  # then proposals are refused
    log_bytes_max: int = 16 * MIB  # payload of applied entries kept for members that lag; older ones are loaded
    reads_max: int = 8192  # waiting, own and of others
    rounds_max: int = 16  # of heartbeats for reads, in flight; later reads join the next one
    chunk_bytes: int = 256 * KIB  # of a snapshot
    chunk_window_bytes: int = 2 * MIB  # asked for and not acknowledged
    rejoin_ms: int = 15_000  # a leader does not take a member back before so long: longer than a message can be on its way
    caught_up_entries: int = 1000  # a learner this close to the end may become a voter

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ms * 2 <= self.election_ms:
            raise ValueError(f"election_ms ({self.election_ms}) must be at least twice heartbeat_ms ({self.heartbeat_ms}), which is not 0")
        if not 0 <= self.clock_drift < 0.5 or self.lease_ms <= 0:
            raise ValueError(f"clock_drift ({self.clock_drift}) leaves no lease; it is a ratio such as 0.01")
        if not 0 <= self.priority <= PRIORITY_TOP:
            raise ValueError(f"priority ({self.priority}) must be 0 to {PRIORITY_TOP}")
        if not 0 < self.chunk_bytes <= self.chunk_window_bytes:
            raise ValueError(f"chunk_bytes ({self.chunk_bytes}) must fit in chunk_window_bytes ({self.chunk_window_bytes})")

    @property
    def lease_ms(self) -> int:
        """How long after sending a heartbeat no other leader can be: the followers' clocks may be fast, ours slow, and both are rounded."""
        return int(self.election_ms * (1 - self.clock_drift) / (1 + self.clock_drift)) - 2
