"""Random bounds of slices, chunks, batches and passes, drawn from the seed in most simulated
worlds.

With the default bounds a simulated group is encoded in one slice, sent in one chunk and read in
one page, so nothing ever happens in between. The knobs patch module constants and settings for
an episode, and make pauses between slices take time. Every knob has a random stream of its own,
so a further knob does not change the others. The stream is drawn from the knob's key, which
survives the renaming of its target."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from types import ModuleType
from typing import Any, TypeVar
from unittest import mock

import msgspec

from polynya.cold import (
    CollectorSettings,
    EvictSettings,
    FlushSettings,
    MergeSettings,
    collector,
    evictor,
    flusher,
    groups,
    planner,
    reader,
    requests,
    steps,
)
from polynya.cold.rewriting import merge_planner, merger
from polynya.engine.snapshots import (
    capture as capturing,
)
from polynya.engine.snapshots import (
    catch_up,
    snapshotter,
    transfer,
)
from polynya.engine.snapshots import (
    encode as encoding,
)
from polynya.engine.snapshots import (
    receive as arriving,
)
from polynya.local import local_streams, rehydration
from polynya.local.reads import local_reads
from polynya.raft import Settings
from polynya.replica import member
from polynya.routing import answers, bundles, in_flight
from polynya.service import retention_job
from polynya.stream.state import chunked, pack_tables, sorted_rows

Settled = TypeVar("Settled", bound=msgspec.Struct)
CALM_SHARE = 0.35  # of the seeds have no knob turned
TURNED_SHARE = 0.35  # of the knobs of each other seed are
Choices = tuple[Any, ...]
CONSTANTS: dict[
    str, tuple[tuple[ModuleType, ...], str, Choices]
] = {  # bounds that modules have as constants: where, and what they may be
    "SLICE_BYTES": ((encoding, capturing), "SLICE_BYTES", (1, 200)),
    "PASSES": ((encoding,), "PASSES", (1, 2)),
    "BATCHES": ((encoding,), "BATCHES", (0, 20)),
    "AT_ONCE": ((capturing,), "AT_ONCE", (0,)),
    "COPY_BYTES": ((snapshotter,), "COPY_BYTES", (1, 200)),
    "PATIENCE": ((snapshotter,), "SKIPS_AFTER_FAILURE", (1,)),
    "PIECE_BYTES": ((transfer,), "PIECE_BYTES", (7, 100)),
    "PACKED_MAX": ((catch_up,), "PACKED_MAX", (1,)),
    "PACKED_SECONDS": ((catch_up,), "PACKED_SECONDS", (0.3,)),
    "IDLE_SECONDS": ((catch_up, arriving), "IDLE_SECONDS", (0.05, 0.5)),
    "LOADED_MAX": ((catch_up,), "LOADED_MAX", (1, 5)),
    "ARRIVING_MAX": ((arriving,), "ARRIVING_MAX", (1,)),
    "STALE_SECONDS": ((arriving,), "STALE_SECONDS", (2.0,)),
    "BUNDLE_COMMANDS_MAX": ((member,), "BUNDLE_COMMANDS_MAX", (1, 2)),
    "BUNDLE_BYTES": ((member,), "BUNDLE_BYTES", (1, 150)),
    "BUNDLE_BYTES_MAX": ((bundles,), "BUNDLE_BYTES_MAX", (1, 100)),
    "HOPS_MAX": ((in_flight,), "HOPS_MAX", (1,)),
    "COPIES_MAX": ((local_reads,), "COPIES_MAX", (1,)),
    "LOADS_AT_ONCE": ((rehydration,), "LOADS_AT_ONCE", (1,)),
    "RECALL_STREAMS": ((rehydration, retention_job), "RECALL_STREAMS", (1,)),
    "RECALL_BYTES_MAX": ((rehydration,), "RECALL_BYTES_MAX", (600, 1200)),
    "SURVEY_STREAMS": ((groups, flusher), "SURVEY_STREAMS", (1,)),
    "STREAMS_MAX": ((planner, flusher), "STREAMS_MAX", (1, 2)),
    "SLICES_MAX": ((planner, merge_planner), "SLICES_MAX", (1, 2)),
    "THREAD_FROM_BYTES": ((flusher,), "THREAD_FROM_BYTES", (0,)),
    "YIELD_BATCHES": ((flusher,), "YIELD_BATCHES", (1,)),
    "FAN_IN": ((merge_planner, merger), "FAN_IN", (2,)),
    "GROWTH": ((merge_planner,), "GROWTH", (1, 3)),
    "OPEN_ENTRIES_MAX": ((merge_planner,), "OPEN_ENTRIES_MAX", (2, 5)),
    "LINE_ENTRIES_MIN": ((merge_planner,), "LINE_ENTRIES_MIN", (2,)),
    "SOURCES_MAX": ((merge_planner,), "SOURCES_MAX", (3,)),
    "SETTLED_MIN": ((merger,), "SETTLED_MIN", (1,)),
    "RUNS_MAX": ((merger,), "RUNS_MAX", (1,)),
    "GATHER_SECONDS": ((merger,), "GATHER_SECONDS", (0.5,)),
    "GAP_BYTES_MAX": ((requests,), "GAP_BYTES_MAX", (0,)),
    "REQUEST_BYTES_MAX": ((requests,), "REQUEST_BYTES_MAX", (1, 200)),
    "CHUNK": ((chunked,), "CHUNK", (1, 2)),
    "RECENT_MAX": ((pack_tables,), "RECENT_MAX", (2, 5)),
    "LEAF_ROWS": ((sorted_rows,), "LEAF_ROWS", (2,)),
    "LOOK_MAX": ((collector,), "LOOK_MAX", (1,)),
    "RUN_BYTES": ((reader,), "RUN_BYTES", (1, 50)),
    "ENCODED_AT_ONCE": ((evictor,), "ENCODED_AT_ONCE", (1,)),
    "SLOTS_MAX": ((evictor,), "SLOTS_MAX", (1,)),
    "SETTLE_MAX": ((collector,), "SETTLE_MAX", (1,)),
    "DELETE_MAX": ((collector,), "DELETE_MAX", (1, 2)),
    "ORPHANS_MAX": ((collector,), "ORPHANS_MAX", (1,)),
    "TRIES": ((steps,), "TRIES", (1, 2)),
}
SETTINGS: dict[
    str, tuple[type[msgspec.Struct], str, Choices]
] = {  # fields of what is given to the parts of a node
    "Settings.message_bytes_max": (Settings, "message_bytes_max", (1, 300)),
    "Settings.inflight_messages_max": (Settings, "inflight_messages_max", (1, 2)),
    "Settings.inflight_bytes_max": (Settings, "inflight_bytes_max", (1, 600)),
    "Settings.uncommitted_bytes_max": (Settings, "uncommitted_bytes_max", (300, 3000)),
    "Settings.log_bytes_max": (Settings, "log_bytes_max", (0, 500)),
    "Settings.reads_max": (Settings, "reads_max", (2, 5)),
    "Settings.rounds_max": (Settings, "rounds_max", (1, 2)),
    "Settings.chunk_bytes": (Settings, "chunk_bytes", (300,)),
    "Settings.chunk_window_bytes": (Settings, "chunk_window_bytes", (1024, 1 << 16)),
    "Settings.caught_up_entries": (Settings, "caught_up_entries", (0, 10)),
    "FlushSettings.from_bytes": (FlushSettings, "from_bytes", (1, 2000)),
    "FlushSettings.pack_bytes_max": (FlushSettings, "pack_bytes_max", (1, 60, 8000)),
    "FlushSettings.slice_bytes_max": (FlushSettings, "slice_bytes_max", (1, 50, 8000)),
    "FlushSettings.age_ms_max": (FlushSettings, "age_ms_max", (200,)),
    "FlushSettings.interval_ms": (FlushSettings, "interval_ms", (40,)),
    "FlushSettings.concurrency": (FlushSettings, "concurrency", (1,)),
    "MergeSettings.slice_bytes_max": (MergeSettings, "slice_bytes_max", (60, 800)),
    "MergeSettings.pack_bytes_max": (MergeSettings, "pack_bytes_max", (60, 800)),
    "MergeSettings.packs_spare": (MergeSettings, "packs_spare", (1, 8)),
    "MergeSettings.interval_ms": (MergeSettings, "interval_ms", (100,)),
    "MergeSettings.bytes_per_second": (MergeSettings, "bytes_per_second", (3000,)),
    "MergeSettings.page_entries": (MergeSettings, "page_entries", (2, 3, 8)),
    "EvictSettings.block_streams": (EvictSettings, "block_streams", (1, 16)),
    "EvictSettings.block_bytes": (EvictSettings, "block_bytes", (1, 300)),
    "EvictSettings.state_bytes_max": (EvictSettings, "state_bytes_max", (300,)),
    "EvictSettings.few": (EvictSettings, "few", (3,)),
    "CollectorSettings.interval_ms": (CollectorSettings, "interval_ms", (100,)),
    "CollectorSettings.sweep_every_ms": (CollectorSettings, "sweep_every_ms", (700,)),
    "CollectorSettings.settle_after_ms": (CollectorSettings, "settle_after_ms", (500,)),
}
WORLD: dict[str, Choices] = {  # attributes of the world
    "segment_bytes": (1 << 12, 1 << 16),
    "keep_bytes": (1 << 12, 1 << 30),
    "snapshot_bytes": (1 << 10, 1 << 16),
    "small_streams": (2, 256),
    "hot_bytes_max": (6000,),
    "page_bytes": (300, 2000),
    "cache_bytes": (1, 200, 1 << 16),
    "states_bytes": (1, 1 << 16),
    "round_pace": (0.02, 0.2),
    "fold_seconds": (0.3,),
    "slice_seconds": (0.001, 0.02, 0.1),
    "thread_seconds": (0.001, 0.02, 0.05),
    "turn_seconds": (0.00001, 0.0002),
    "streams": (8,),
    "diskless": (1, 2, 3),
    "switches": (0.5, 2.0),
    "capacity": (2, 5, 20),
    "waits": (True,),
    "replays": (0.05, 0.3),
    "drift": (0.1, 0.3),
    "faults": (0.2, 0.5),
}
SHARES = {"faults": 0.8}  # of what is turned more often than others
# they let others go on between two slices
SLICED = (
    encoding,
    capturing,
    snapshotter,
    flusher,
    groups,
    merger,
    evictor,
    answers,
    local_streams,
    retention_job,
)


class Knobs(msgspec.Struct, frozen=True):
    """Values that differ from the defaults, by name."""

    seed: int
    constants: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    world: dict[str, Any] = {}

    @classmethod
    def draw(cls, seed: int) -> Knobs:
        """Draw the knobs of a seed; many seeds change nothing."""
        if Random(f"calm {seed}").random() < CALM_SHARE:
            return cls(seed)
        return cls(
            seed,
            _drawn(seed, {name: choices for name, (_, _, choices) in CONSTANTS.items()}),
            _drawn(seed, {name: choices for name, (_, _, choices) in SETTINGS.items()}),
            _drawn(seed, WORLD),
        )

    def names(self) -> list[str]:
        """List the names of the changed values."""
        return [*self.constants, *self.settings, *self.world]

    def without(self, names: Sequence[str]) -> Knobs:
        """Return the knobs with these names reset."""
        left = (
            {name: value for name, value in part.items() if name not in names}
            for part in (self.constants, self.settings, self.world)
        )
        return Knobs(self.seed, *left)

    def turn(self, settings: Settled) -> Settled:
        """Return the settings of a part, with this world's changes."""
        fields = {
            SETTINGS[name][1]: value
            for name, value in self.settings.items()
            if SETTINGS[name][0] is type(settings)
        }
        return msgspec.structs.replace(settings, **fields)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Apply the knobs during an episode and restore the defaults after it."""
        with ExitStack() as stack:
            for name, value in self.constants.items():
                modules, constant, _ = CONSTANTS[name]
                for module in modules:
                    stack.enter_context(mock.patch.object(module, constant, value))
            if seconds := self.world.get("slice_seconds"):
                paused = Paused(Random(f"slices {self.seed}"), seconds)
                for module in SLICED:
                    stack.enter_context(mock.patch.object(module, "asyncio", paused))
            yield


def _drawn(seed: int, knobs: Mapping[str, Choices]) -> dict[str, Any]:
    turned = {}
    for name, choices in knobs.items():
        random = Random(f"knob {name} {seed}")
        if random.random() < SHARES.get(name, TURNED_SHARE):
            turned[name] = random.choice(choices)
    return turned


class Paused:
    """asyncio, where letting the loop go on for a moment takes a while: what others do then happens
    between two slices."""

    def __init__(self, random: Random, seconds: float) -> None:
        self._random, self._seconds = random, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds or self._random.uniform(0.0, self._seconds))
