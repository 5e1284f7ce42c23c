"""Importing the client brings nothing of the server, and nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from product import environment

pytestmark = pytest.mark.process

HEAVY = {
    "uvloop",
    "obstore",
    "pyarrow",
    "pandas",
    "numpy",
    "duckdb",
    "pyiceberg",
    "deltalake",
    "pyspark",
    "google_crc32c",
    "cryptography",
    "httpx",
}
LEAN = {"polynya", "polynya.base", "polynya.client"}


def test_the_import_is_lean() -> None:
    code = "import json, sys, polynya.client; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment(), check=True
    )
    modules = json.loads(done.stdout)
    assert not HEAVY.intersection(module.split(".")[0] for module in modules)
    rooms = {
        ".".join(module.split(".")[:2]) for module in modules if module.split(".")[0] == "polynya"
    }
    assert rooms == LEAN
