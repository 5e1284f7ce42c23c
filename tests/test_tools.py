"""Measuring and debugging tools start from a shell: no other module imports them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    f"{path.parent.name}.{path.stem}"
    for folder in ("bench", "chaos")
    for path in (ROOT / folder).glob("*.py")
)


def test_every_module_of_bench_and_chaos_is_there() -> None:
    assert {"bench.failover", "bench.nats", "chaos.evidence"} <= set(MODULES)


@pytest.mark.process
@pytest.mark.parametrize("folder", ["bench", "chaos"])
def test_they_can_be_imported(folder: str) -> None:
    modules = [
        module
        for module in MODULES
        if module.startswith(folder)
        and not module.endswith(("__main__", "_fast_node", "_soak_node"))
    ]
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", program, *modules],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
