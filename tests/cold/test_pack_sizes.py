"""The size of packs of real JSON."""

from __future__ import annotations

import pytest
from google_crc32c import value as crc32c
from worlds.real_sets import OF_NPM, OF_PYTHON, Records, records_of

from polynya.cold.flusher import build_pack
from polynya.cold.planner import Candidate, plan_packs
from polynya.cold.settings import ZSTD_LEVEL, FlushSettings
from polynya.stream.parts import Encoding
from polynya.stream.state.model import HotBatch
from polynya.tiering.tier import DISKLESS_ZSTD_LEVEL

BYTES = 8 << 20  # of each set
RECORDS = 100  # of an append


def batches_of(records: list[bytes]) -> list[HotBatch]:
    """Appends of some records each, as a stream has them in memory."""
    found: list[HotBatch] = []
    byte = 0
    for at in range(0, len(records), RECORDS):
        bodies = [record + b"," for record in records[at : at + RECORDS]]
        payload = b"".join(bodies)
        lengths = b"".join(len(body).to_bytes(4, "little") for body in bodies)
        found.append(
            HotBatch(
                at,
                byte,
                len(bodies),
                payload,
                lengths if len(bodies) > 1 else b"",
                crc32c(payload),
                1000,
                0,
                Encoding.JSON,
                0,
            )
        )
        byte += len(payload)
    return found


@pytest.mark.parametrize("package", OF_PYTHON)
def test_a_pack_takes_at_most_three_tenths_of_real_json(package: str) -> None:
    assert_small(OF_PYTHON[package]())


@pytest.mark.process
@pytest.mark.parametrize("package", OF_NPM)
def test_a_pack_takes_at_most_three_tenths_of_json_from_npm(package: str) -> None:
    assert_small(OF_NPM[package]())


def assert_small(whole: Records) -> None:
    records = records_of(whole, BYTES)
    candidate = Candidate(
        1, 1, "docs/a", "application/json", first=True, batches=batches_of(records)
    )
    (plan,) = plan_packs([candidate], FlushSettings(pack_bytes_max=4 * BYTES))
    json = sum(map(len, records))
    for level in (ZSTD_LEVEL, DISKLESS_ZSTD_LEVEL):
        built = build_pack(plan, "pack", 0, {1: level})
        assert not built.faults
        assert sum(map(len, built.parts)) <= 0.3 * json
    raw = build_pack(plan, "pack", 0)
    assert sum(map(len, raw.parts)) > json
