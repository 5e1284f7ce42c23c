"""The mapping of counters to metric names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from polynya.engine.replicated import ReplicatedEngine
from polynya.engine.standalone import StandaloneEngine
from polynya.front.http.server import HttpFront
from polynya.front.kafka.telemetry.instances import ClientInstances
from polynya.front.text.protocol import COMMANDS
from polynya.front.text.server import TextFront
from polynya.local.local import LocalGroups
from polynya.objectstore import REQUESTS, StoreUsage
from polynya.observability.metrics import Registry, Samples, label
from polynya.service.consumer_groups.lag import GroupLags
from polynya.service.transactions.appends import AppendCounters
from polynya.service.transactions.jobs import TransactionJobs
from polynya.wire.http.http2_floods import REASONS

TURNS = {
    "polynya_turns_total": "turns",
    "polynya_entries_total": "entries",
    "polynya_journal_write_seconds_total": "write_seconds",
    "polynya_journal_full_total": "disk_full",
    "polynya_overloaded_total": "overloaded",
}
FLUSHER = {
    "polynya_flush_packs_total": "packs",
    "polynya_flush_slices_total": "slices",
    "polynya_flush_bytes_total": "bytes",
    "polynya_flush_stored_bytes_total": "stored_bytes",
    "polynya_flush_failures_total": "failures",
    "polynya_flush_refused_total": "refused",
}
MERGER = {
    "polynya_merge_packs_total": "packs",
    "polynya_merge_slices_total": "slices",
    "polynya_merge_bytes_total": "bytes",
    "polynya_merge_stored_bytes_total": "stored_bytes",
    "polynya_merge_failures_total": "failures",
    "polynya_merge_refused_total": "refused",
}
DECIDER = {"polynya_transaction_undecided_entries": "most"}
COMPACTOR = {
    "polynya_compaction_passes_total": "passes",
    "polynya_compaction_held_passes_total": "held_passes",
    "polynya_compaction_read_bytes_total": "read_bytes",
    "polynya_compaction_dropped_records_total": "dropped_records",
    "polynya_compaction_dropped_bytes_total": "dropped_bytes",
    "polynya_compaction_refused_total": "refused",
    "polynya_compaction_failures_total": "failures",
    "polynya_compaction_damaged_slices_total": "damaged",
}
PAGER = {"polynya_pages_total": "pages", "polynya_paged_slices_total": "entries"}
DISKLESS_WRITER = {
    "polynya_diskless_appends_total": "appends",
    "polynya_diskless_appends_waiting": "waiting_now",
    "polynya_diskless_bytes_waiting": "bytes_now",
    "polynya_diskless_packs_total": "packs",
    "polynya_diskless_pack_bytes_total": "bytes",
    "polynya_diskless_payload_bytes_total": "payload_bytes",
    "polynya_diskless_put_seconds_total": "put_seconds",
    "polynya_diskless_puts_in_flight": "puts_now",
    "polynya_diskless_failures_total": "failures",
    "polynya_diskless_refused_total": "refused",
}
DISKLESS_COMMITS = {
    "polynya_diskless_commits_total": "commits",
    "polynya_diskless_commit_seconds_total": "seconds",
    "polynya_diskless_commit_repeats_total": "repeats",
    "polynya_diskless_commits_abandoned_total": "abandoned",
}
EVICTOR = {
    "polynya_evict_streams_total": "streams",
    "polynya_evict_blocks_total": "blocks",
    "polynya_evict_bytes_total": "bytes",
    "polynya_evict_refused_total": "refused",
    "polynya_evict_failures_total": "failures",
}
STATES = {
    "polynya_state_loads_total": "loads",
    "polynya_state_load_seconds_total": "seconds",
    "polynya_state_load_failures_total": "failures",
}
RECALLS = {
    "polynya_recalled_streams_total": "returned",
    "polynya_rehydration_copies_total": "copies",
    "polynya_recall_refused_total": "refused",
}
COLLECTOR = {
    "polynya_collect_deleted_total": "deleted",
    "polynya_collect_orphans_total": "orphans",
    "polynya_collect_failures_total": "failures",
}
COPIER = {
    "polynya_state_copies_total": "stored",
    "polynya_state_copy_bytes_total": "bytes",
    "polynya_state_copy_failures_total": "failures",
}
COPY_DELTAS = {
    "polynya_state_copy_deltas_total": "stored",
    "polynya_state_copy_delta_bytes_total": "bytes",
    "polynya_state_copy_delta_failures_total": "failures",
}
TRIMS = {
    "polynya_trims_total": "trims",
    "polynya_trimmed_records_total": "records",
    "polynya_trimmed_bytes_total": "bytes",
}
SEGMENTS = {
    "polynya_segment_rollovers_total": "rollovers",
    "polynya_segment_takeovers_total": "takeovers",
    "polynya_segment_waits_refused_total": "refused",
}
SNAPSHOTS = {
    "polynya_snapshots_total": "count",
    "polynya_snapshot_bytes_total": "bytes",
    "polynya_snapshots_merged_total": "folded",
}
RETENTION = {
    "polynya_retention_failures_total": "failures",
    "polynya_retention_round_seconds": "round_seconds",
}
KAFKA = {
    "polynya_kafka_requests_total": "requests",
    "polynya_kafka_malformed_total": "malformed",
    "polynya_kafka_batches_total": "batches",
    "polynya_kafka_batch_bytes_total": "bytes_in",
    "polynya_kafka_connections": "connections",
    "polynya_kafka_connections_total": "connections_opened",
    "polynya_kafka_connections_refused_total": "connections_refused",
    "polynya_kafka_connections_dropped_total": "connections_dropped",
    "polynya_kafka_connections_unauthenticated": "unauthenticated",
}
KAFKA_CLIENTS = {
    "polynya_kafka_client_pushes_total": "pushes",
    "polynya_kafka_client_pushes_refused_total": "refused",
    "polynya_kafka_client_points_dropped_total": "dropped_points",
}
KAFKA_FETCH_SESSIONS = {
    "polynya_kafka_fetch_sessions": "sessions",
    "polynya_kafka_fetch_session_partitions": "partitions",
    "polynya_kafka_fetch_session_evictions_total": "evictions",
    "polynya_kafka_fetch_sessions_declined_total": "declined",
}
SUBSCRIPTIONS = {
    "polynya_wakes_total": "woken",
    "polynya_wakes_delivered_total": "delivered",
    "polynya_wakes_announced_total": "announced",
    "polynya_wakes_failed_total": "failed",
    "polynya_leases_expired_total": "expired",
    "polynya_subscription_faults_total": "faults",
}
WORK = {
    "lag_records": "lag",
    "lanes": "lanes",
    "leased_lanes": "leased",
    "attempts": "attempts",
}
# by the question if it is a counter
_OF_CLIENTS = ("polynya_kafka_client_gauge", "polynya_kafka_client_counter_total")
CACHE = {
    "polynya_cache_hits_total": "hits",
    "polynya_cache_misses_total": "misses",
    "polynya_cache_fetched_bytes_total": "fetched_bytes",
}
HTTP = {
    "polynya_http_appends_total": "appends",
    "polynya_http_append_bytes_total": "bytes_in",
    "polynya_http_connections_total": "connections_opened",
    "polynya_http_connections_refused_total": "connections_refused",
    "polynya_http_timeouts_total": "timeouts",
    "polynya_http_stalled_total": "stalled",
    "polynya_http2_connections_total": "http2_connections",
    "polynya_http2_streams_total": "http2_streams",
    "polynya_http_long_polls_total": "long_polls",
    "polynya_http_sse_total": "live_opened",
    "polynya_http_sse_cut_total": "live_cut",
}


class FoundFigures(Protocol):
    """Figures as measured last, by name: objects with the attributes of `WORK`."""

    @property
    def found(self) -> Mapping[str, object]: ...


def counted(counters: object, names: Mapping[str, str]) -> Callable[[], Samples]:
    """Return a source that reads attributes; `names` maps metric to attribute, as in the tables
    above."""

    def read() -> Samples:
        return {metric: getattr(counters, attribute) for metric, attribute in names.items()}

    return read


def add_store_times(registry: Registry, usage: StoreUsage) -> None:
    """Add the histograms of requests to the object store."""
    for request, histogram in usage.seconds.items():
        registry.add_histogram("polynya_store_request_seconds", histogram, request=request)


def of_group_lags(lags: GroupLags) -> Callable[[], Samples]:
    """The lags of the consumer groups that this core coordinates."""

    def read() -> Samples:
        return {
            label("polynya_group_lag", group=group, topic=topic): lag
            for (group, topic), lag in lags.found.items()
        }

    return read


def of_kafka_clients(clients: ClientInstances, now: Callable[[], float]) -> Callable[[], Samples]:
    """The metrics that Kafka's clients pushed to this core."""
    counters = counted(clients, KAFKA_CLIENTS)

    def read() -> Samples:
        present = clients.present(now())
        pushed = {
            label(_OF_CLIENTS[series.is_counter], **series.labels): series.value
            for each in present
            for series in each.shown()
        }
        return counters() | {"polynya_kafka_client_instances": len(present)} | pushed

    return read


def of_work(lags: FoundFigures) -> Callable[[], Samples]:
    """The figures of the subscriptions that a group of this core owns, by group or id."""

    def read() -> Samples:
        return {
            label(f"polynya_work_{metric}", subscription=name): getattr(figures, attribute)
            for name, figures in lags.found.items()
            for metric, attribute in WORK.items()
        }

    return read


def of_transactions(jobs: TransactionJobs) -> Callable[[], Samples]:
    """Return the metrics of the transactions that this core coordinates, or has open."""

    def read() -> Samples:
        counters = jobs.counters
        return {
            "polynya_transactions_open": jobs.open,
            "polynya_stable_end_lag_seconds": jobs.stable_end_lag_seconds,
            "polynya_transactions_expired_total": counters.expired,
            label("polynya_transaction_orphans_total", known="yes"): counters.orphans
            - counters.unknown,
            label("polynya_transaction_orphans_total", known="no"): counters.unknown,
        }

    return read


def of_appends_across(counters: AppendCounters) -> Callable[[], Samples]:
    """Return the metrics of appends to several groups that this core got."""
    outcomes = counters.__struct_fields__
    name = "polynya_append_all_transactions_total"
    return lambda: {label(name, outcome=each): getattr(counters, each) for each in outcomes}


def of_core(core: StandaloneEngine | ReplicatedEngine) -> Callable[[], Samples]:
    """Return the metrics of the turn loop and its journal."""
    turns = counted(core.counters, TURNS)

    def read() -> Samples:
        segments = core.journal.segments.sizes()
        return turns() | {
            "polynya_inflight_bytes": core.inflight_bytes,
            "polynya_journal_segments": len(segments),
            "polynya_journal_disk_bytes": sum(size for _, size in segments),
        }

    return read


def of_groups(local: LocalGroups) -> Callable[[], Samples]:
    """Return the metrics of this core's machines and live readers."""

    def read() -> Samples:
        machines = local.machines.values()
        return {
            "polynya_streams": sum(machine.directory.public_count for machine in machines),
            "polynya_streams_evicted": sum(len(machine.directory.evicted) for machine in machines),
            "polynya_leased_streams": sum(
                len(machine.directory.leased) for machine in local.led.values()
            ),
            "polynya_hot_bytes": sum(machine.directory.hot_bytes for machine in machines),
            "polynya_outbox": sum(len(machine.outbox.messages) for machine in machines),
            "polynya_packs": sum(len(machine.packs.owned) for machine in machines),
            "polynya_index_slices": sum(machine.packs.held.slices for machine in machines),
            "polynya_live_readers": len(local.feeds),
            "polynya_hot_refused_total": local.memory.refused,
            "polynya_streams_faulted": len(local.faulted),
            **{label("polynya_stream_faulted", stream=name): 1 for name in local.faulted.names},
        }

    return read


def of_store(usage: StoreUsage) -> Callable[[], Samples]:
    """Return the requests to the object store and their bytes, by kind of work."""

    def read() -> Samples:
        return {
            label("polynya_store_requests_total", work=work, request=name)
            if name in REQUESTS
            else label("polynya_store_bytes_total", work=work, direction=name): count
            for (work, name), count in usage.counts().items()
        }

    return read


def of_front(front: HttpFront) -> Callable[[], Samples]:
    """Return the metrics of a front's requests and connections."""
    requests = counted(front.counters, HTTP)

    def read() -> Samples:
        classes = {
            label("polynya_http_responses_total", **{"class": f"{number}xx"}): 0.0
            for number in (2, 3, 4, 5)
        }
        for status, count in front.counters.statuses.items():
            classes[label("polynya_http_responses_total", **{"class": f"{status // 100}xx"})] += (
                count
            )
        refused = {
            label("polynya_http2_refused_total", reason=reason): front.counters.http2_refused.get(
                reason, 0
            )
            for reason in REASONS
        }
        now = {"polynya_http_connections": len(front.connections)}
        return requests() | classes | refused | now

    return read


def of_text(front: TextFront) -> Callable[[], Samples]:
    """Return the metrics of the text protocol."""

    def read() -> Samples:
        counters = front.counters
        return {
            "polynya_text_connections": len(front.connections),
            "polynya_text_connections_refused_total": counters.refused,
            "polynya_text_connections_dropped_total": counters.dropped,
            "polynya_text_connections_unauthenticated": len(front.unauthenticated),
            "polynya_text_errors_total": counters.errors,
            "polynya_text_malformed_total": counters.malformed,
            "polynya_text_timeouts_total": counters.timeouts,
            **{
                label("polynya_text_commands_total", command=verb): counters.commands[verb]
                for verb in sorted(COMMANDS)
            },
        }

    return read
