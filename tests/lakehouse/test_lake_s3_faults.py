"""An S3 server that refuses, is slow, or answers after a completed write. Each record is in both
formats once, whatever response a driver got."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from long_tests import every_nth
from s3_server import S3Server
from worlds.lakehouse import Lake, quiet
from worlds.s3_faults import Faults, S3FaultProxy

from polynya.base.errors import PolynyaError
from polynya.lakehouse.jobs.worker import compact, merge
from polynya.objectstore import StoreSettings

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

JOBS = 4
TRIES = 20
NONE = Faults()
KINDS = {
    "refuses": Faults(refuse=0.15),
    "is slow": Faults(slow=0.3),
    "answers late": Faults(lose=0.25),
    "all of it": Faults(refuse=0.08, slow=0.1, lose=0.12),
}


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[S3FaultProxy]:
    made = S3FaultProxy(s3_server.endpoint, NONE, seed=17)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def settings(
    s3_server: S3Server, proxy: S3FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> StoreSettings:
    found = StoreSettings(**{**s3_server.settings(), "s3_endpoint": proxy.endpoint})
    monkeypatch.setenv("POLYNYA_COLD_S3_ACCESS_KEY_ID", found.s3_access_key_id)
    monkeypatch.setenv("POLYNYA_COLD_S3_SECRET_ACCESS_KEY", found.s3_secret_access_key)
    return found


def insist(work: Any) -> int:
    """Run it until it succeeds, as a worker does. Return how often it failed."""
    for failures in range(TRIES):
        try:
            work()
        except (PolynyaError, OSError):
            continue
        return failures
    raise AssertionError(f"it failed {TRIES} times")


@pytest.mark.parametrize("kind", every_nth(KINDS, 4))
def test_a_store_with_faults_loses_and_doubles_nothing(
    settings: StoreSettings, proxy: S3FaultProxy, kind: str
) -> None:
    lake = Lake(s3=settings)
    faults = KINDS[kind]
    for number in range(JOBS):
        lake.source.append(
            "s", [b'{"n":%d,"c%d":{"x":[1]}}' % (n, number) for n in range(50)], [b"7"]
        )
        proxy.faults = faults
        insist(lambda: compact(lake.coordinator, [], lambda: lake.runner, quiet))
        proxy.faults = NONE
        lake.check_exactly_once()
    proxy.faults = faults
    insist(lambda: merge(lake.coordinator, "flights", lambda: lake.runner, quiet))
    proxy.faults = NONE
    compact(lake.coordinator, [], lambda: lake.runner, quiet)  # completes Delta
    lake.check_exactly_once()
    for name, share in msgspec.structs.asdict(faults).items():
        assert proxy.counts[name] > 0 if share else not proxy.counts[name], proxy.counts
