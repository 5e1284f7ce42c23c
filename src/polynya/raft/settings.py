"""The tuning parameters of Raft, each with its reason."""

import msgspec

KIB = 1024
MIB = 1024 * KIB
PRIORITY_TOP = 2
NEVER = 2**62  # a deadline that never passes, in ms


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Raft parameters. Raises ValueError for an invalid combination. `election_ms` and
    `clock_drift` must be the same on all members."""

    # also the grid on which all groups send heartbeats, so that they share a frame
    heartbeat_ms: int = 100
    # silence of a leader before an election; timeouts are drawn from one to two of these
    election_ms: int = 600
    clock_drift: float = 0.01  # maximum clock rate error; leases are shortened by it
    # each step below the top waits half an election longer; 0 votes but never campaigns on its own
    priority: int = PRIORITY_TOP
    # random delay of members that lose a leader at the same moment, against split votes
    spread_ms: int = 150
    sleep_after_ms: int = 3000  # idle time before sleep; 0: never sleep
    message_bytes_max: int = 1 * MIB  # bytes of entries in one append; a larger entry is sent alone
    inflight_messages_max: int = 64  # unacknowledged appends to one member
    inflight_bytes_max: int = 8 * MIB
    uncommitted_bytes_max: int = 64 * MIB  # proposals beyond this are refused
    # payload of applied entries cached for lagging members; older entries are read from the journal
    log_bytes_max: int = 16 * MIB
    reads_max: int = 8192  # waiting reads, local and forwarded
    rounds_max: int = 16  # heartbeat rounds in flight for reads; later reads join the next round
    chunk_bytes: int = 256 * KIB  # size of a snapshot chunk
    chunk_window_bytes: int = 2 * MIB  # requested but not acknowledged
    # delay before a removed member may return; longer than a message can be in flight
    rejoin_ms: int = 15_000
    caught_up_entries: int = 1000  # a learner within this distance of the end may become a voter

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ms * 2 <= self.election_ms:
            raise ValueError(
                f"election_ms ({self.election_ms}) must be at least twice heartbeat_ms "
                f"({self.heartbeat_ms}), which is not 0"
            )
        if not 0 <= self.clock_drift < 0.5 or self.lease_ms <= 0:
            raise ValueError(
                f"clock_drift ({self.clock_drift}) leaves no lease; it is a ratio such as 0.01"
            )
        if not 0 <= self.priority <= PRIORITY_TOP:
            raise ValueError(f"priority ({self.priority}) must be 0 to {PRIORITY_TOP}")
        if not 0 < self.chunk_bytes <= self.chunk_window_bytes:
            raise ValueError(
                f"chunk_bytes ({self.chunk_bytes}) must fit in chunk_window_bytes "
                f"({self.chunk_window_bytes})"
            )

    @property
    def lease_ms(self) -> int:
        """Return the lease length after a heartbeat is sent. The followers' clocks may be fast and
        ours slow, and both are rounded."""
        return int(self.election_ms * (1 - self.clock_drift) / (1 + self.clock_drift)) - 2
