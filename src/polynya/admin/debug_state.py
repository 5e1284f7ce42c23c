"""The state of a core for `/debug/state`: numbers alone, no payload and no secret. Its size is
bounded by the number of groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any

from polynya.base.names import DISKLESS, LEASED, PROFILES, REPLICATED
from polynya.engine.replicated import ReplicatedEngine
from polynya.observability.metrics import Samples
from polynya.service.assembly import CoreRuntime
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.machine import Machine
from polynya.stream.state.model import Stream
from polynya.stream.state.profile_epochs import profile_of

LOOKED_AT_MAX = 20_000  # streams of a core: the loop stands still for some milliseconds
# by part, the metrics whose samples belong to it, without `polynya_`
PARTS = {
    "connections": (
        *("http_connections", "kafka_connections", "kafka_connections_unauthenticated"),
        *("text_connections", "text_connections_unauthenticated"),
        *("transport_connected", "peers_connected", "live_readers", "process_open_files"),
    ),
    "queues": (
        *("inflight_bytes", "outbox", "transport_outstanding"),
        *("diskless_appends_waiting", "diskless_bytes_waiting", "diskless_puts_in_flight"),
        "object_store_waiting",
    ),
    "caches": ("cache_bytes", "cache_hits_total", "cache_misses_total", "index_slices", "packs"),
    "memory": (
        *("process_resident_bytes", "hot_bytes", "inflight_bytes"),
        *("diskless_bytes_waiting", "cache_bytes"),
    ),
}


def core_state(core: int, engine: CoreRuntime, read: Callable[[], Samples]) -> dict[str, Any]:
    """Return the state of one core. `read` returns the samples of its metrics."""
    samples = read()
    parts = {
        part: {name: samples[f"polynya_{name}"] for name in names if f"polynya_{name}" in samples}
        for part, names in PARTS.items()
    }
    return {
        "core": core,
        "groups": [group_state(engine, number) for number in sorted(engine.local.machines)],
        "streams": streams_state(engine.local.machines.values()),
        **parts,
    }


def group_state(engine: CoreRuntime, number: int) -> dict[str, Any]:
    """Return the state of the replica of a group on this core. Alone it is its own leader."""
    group = engine.storage.core_replicas.groups[number]
    machine, replicated = group.machine, engine.replicated
    found = _alone(group) if replicated is None else _member(replicated, number)
    return {
        "group": number,
        **found,
        "streams": machine.directory.count,
        "hot_bytes": machine.directory.hot_bytes,
        "outbox": len(machine.outbox.messages),
    }


def streams_state(machines: Iterable[Machine]) -> dict[str, Any]:
    """Return the streams by their profile. Of very many only `looked_at` are counted by profile."""
    directories = [machine.directory for machine in machines]
    streams = chain.from_iterable(each.streams.values() for each in directories)
    counts = Counter(map(_profile, islice(streams, LOOKED_AT_MAX)))
    return {
        "count": sum(each.count for each in directories),
        "evicted": sum(len(each.evicted) for each in directories),
        "looked_at": counts.total(),
        "by_profile": {name: counts[name] for name in PROFILES},
    }


def _profile(stream: Stream) -> str:
    if profile_of(stream) == Profile.DISKLESS:
        return DISKLESS
    is_leased = stream.extras is not None and stream.extras.segments is not None
    return LEASED if is_leased else REPLICATED


def _alone(group: Any) -> dict[str, Any]:
    return {
        "role": "leader",
        "term": group.term,
        "commit": group.applied_index,
        "applied": group.applied_index,
        "last": group.last_index,
    }


def _member(engine: ReplicatedEngine, number: int) -> dict[str, Any]:
    member = engine.members.get(number)
    if member is None:  # it leaves this core
        return {"role": "none"}
    raft = member.raft
    return {
        "role": raft.role.name.lower(),
        "term": raft.term,
        "leader": raft.leader,
        "commit": raft.commit,
        "applied": raft.applied,
        "last": raft.log.last,
    }
