"""Names of a driver's output files appear only when these are complete."""

from __future__ import annotations

from pathlib import Path

from polynya.lakehouse.reading.blobs import LocalBlobs


def test_a_file_that_is_being_written_is_not_there_yet(tmp_path: Path) -> None:
    """A backup that saw a part of it would keep that under the name of the whole."""
    blobs = LocalBlobs(str(tmp_path))
    upload = blobs.open_upload("tables/7/main/data/1.parquet")
    upload.write(b"x" * (2 << 20))
    assert blobs.list_keys("tables") == []
    upload.close()
    assert blobs.list_keys("tables") == ["tables/7/main/data/1.parquet"]
    assert blobs.get("tables/7/main/data/1.parquet") == b"x" * (2 << 20)
    given_up = blobs.open_upload("tables/7/main/data/2.parquet")
    given_up.write(b"y" * (2 << 20))
    given_up.abort()
    given_up.abort()
    assert len(blobs.list_keys("")) == 1 and list((tmp_path / ".tmp").iterdir()) == []
