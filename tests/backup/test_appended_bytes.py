"""`polynya verify` compares the length of every file of a backup, and not only its first bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from worlds.backup import BackedUp, FakeSource, restored, taken

from polynya.backup.repository import chosen
from polynya.backup.verifying import BackupVerifier
from polynya.base.errors import CorruptData
from polynya.objectstore import MemoryStore, ObjectStore
from polynya.objectstore.local import LocalStore


def test_verify_notices_bytes_that_were_appended(tmp_path: Path) -> None:
    """Append bytes to any file of a folder: verify reports it, and a restore refuses such an
    object."""
    asyncio.run(look_at_each_file(tmp_path))


async def verified(location: ObjectStore) -> list[str]:
    return [
        f"{each.name}: {each.what}"
        for each in (await BackupVerifier(location, await chosen(location)).run()).damages
    ]


async def look_at_each_file(tmp_path: Path) -> None:
    tier, location = BackedUp(), LocalStore(str(tmp_path / "place"))
    tier.fill(5, 4)
    await tier.flusher.flush_now()
    tier.fill(5, 3)
    await taken(FakeSource(tier), location)
    files = [
        path
        for path in sorted((tmp_path / "place").rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    ]
    assert [path for path in files if "/packs/" in str(path)]
    for path in files:
        data = path.read_bytes()
        for more in (b"\0", data):
            path.write_bytes(data + more)
            if path.name == "manifest.json":
                with pytest.raises(CorruptData, match="checksum of the manifest"):
                    await verified(location)
            else:
                name, damages = str(path.relative_to(tmp_path / "place")), await verified(location)
                assert any(name.startswith(each.split(":")[0]) for each in damages), (name, damages)
                if "/packs/" in name:
                    (damage,) = damages
                    assert damage.endswith(
                        f"the object is {len(more):,} bytes longer than the {len(data):,} that "
                        "were written"
                    ), damage
                    with pytest.raises(CorruptData, match="is damaged: its checksum is wrong"):
                        await restored(
                            tmp_path / "node", location, await chosen(location), MemoryStore()
                        )
        path.write_bytes(data)
    assert await verified(location) == []
    await location.close()
