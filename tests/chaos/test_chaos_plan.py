"""The plan of a chaos run: with `--once` a machine that lacks something gets each of its other
faults exactly once."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos import run  # noqa: E402  (not a part of the package)
from chaos.faults import FAULTS, Fault  # noqa: E402

NOTHING = {"namespaces": "", "power": "", "shim": "", "the same disk": ""}
BARE = NOTHING | {
    "namespaces": "not installed: iptables",
    "power": "mounting a file system needs root",
}


class Rehearsal(run.Run):
    """A run whose episodes inflict nothing."""

    async def _episode(self, cluster: object, fault: Fault, number: int) -> run.Episode:
        return run.Episode(number, fault.name, "", 0.0)


@pytest.mark.parametrize("acts", [0.0, 0.09])
@pytest.mark.parametrize("lacking", [NOTHING, BARE], ids=["full", "bare"])
def test_each_available_fault_is_met_once(
    lacking: dict[str, str],
    acts: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run, "REST_SECONDS", (0.0, 0.0))
    rehearsal = Rehearsal(run.Options(once=True, seconds=1e-9, acts=acts), tmp_path, "pch0")
    outcome = run.Outcome(seed=0, network="loopback")
    faults = rehearsal._available(lacking, outcome)
    clients = SimpleNamespace(pauses=[], hasty=set())
    asyncio.run(rehearsal._episodes(SimpleNamespace(nodes={}), clients, faults, outcome))  # type: ignore[arg-type]
    met = [episode.fault for episode in outcome.episodes]
    assert sorted([*met, *outcome.skipped]) == sorted(fault.name for fault in FAULTS)
    printed = capsys.readouterr().out
    assert all(f"skipped: {name}: {why}" in printed for name, why in outcome.skipped.items())
    assert bool(outcome.skipped) == (lacking is BARE)
