"""Settings of a cluster of two, as flags."""

from __future__ import annotations

from pathlib import Path

from polynya.config.loading import Loaded, load

ID = "00112233445566778899aabbccddeeff"
TWO = "1=127.0.0.1:5002=http://127.0.0.1:5000,2=127.0.0.1:5012=http://127.0.0.1:5010"


def loaded(tmp_path: Path, **flags: str) -> Loaded:
    """Load the settings with more flags; "-" leaves one out."""
    named = {
        "cluster-id": ID,
        "cluster-node": "1",
        "cluster-nodes": TWO,
        "cold-backend": "none",
        "data": str(tmp_path / "data"),
    }
    named |= {name.replace("_", "-"): text for name, text in flags.items()}
    return load(
        {f"--{name}": text for name, text in named.items() if text != "-"},
        environ={},
        folder="/nonexistent",
    )
