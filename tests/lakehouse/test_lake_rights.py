"""The files of tables are private unless their root is shared, whichever library writes them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from worlds.lakehouse import Lake

from polynya.lakehouse.jobs.worker import compact
from polynya.objectstore import StoreSettings


@pytest.mark.parametrize("shared", [False, True])
def test_tables_are_private_unless_their_root_is_shared(tmp_path: Path, shared: bool) -> None:
    before = os.umask(0o077)
    try:
        root = tmp_path / "root"
        root.mkdir()
        root.chmod(0o755)
        lake = Lake(s3=StoreSettings(root=str(root), shared=shared))
        for number in range(2):
            lake.source.append("s", [b'{"n":%d}' % number])
            compact(lake.coordinator, [], lambda: lake.runner, lambda step, message: None)
        lake.check_exactly_once()
    finally:
        os.umask(before)
    found = {
        str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode)
        for path in root.glob("tables/**/*")
    }
    for part in ("/_delta_log/", ".metadata.json", ".avro", ".parquet"):
        assert any(part in name for name in found), part
    assert set(found.values()) == ({0o755, 0o644} if shared else {0o700, 0o600}), found
