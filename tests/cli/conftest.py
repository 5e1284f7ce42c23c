"""Isolation of the command-line tests from the contexts of the user."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_contexts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder of this test's contexts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("POLYNYA_SERVER", "POLYNYA_CONTEXT", "POLYNYA_TOKEN", "POLYNYA_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "polynya"
