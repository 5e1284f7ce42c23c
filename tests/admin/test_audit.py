"""The audit log: one JSON line per administrative action, in files of bounded size, across all
writers."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from worlds.several_writers import write_at_once

from polynya.admin.audit import AuditFile, AuditLog, act


def lines(folder: Path) -> list[dict[str, str]]:
    found = sorted((folder / "access").glob("audit*.jsonl"))
    return [json.loads(line) for path in found for line in path.read_text().splitlines()]


def test_a_line_says_who_did_what_from_where_and_how_it_ended(tmp_path: Path) -> None:
    log = AuditLog(AuditFile(tmp_path))
    log.record("stream.delete", "orders/a\n\x1b[31m", "1 root", "192.0.2.1", "204", "r-1")
    log.close()
    [line] = lines(tmp_path)
    assert line.pop("time").endswith("Z")
    assert line == {
        "act": "stream.delete",
        "target": "orders/a\n\x1b[31m",
        "who": "1 root",
        "from": "192.0.2.1",
        "outcome": "204",
        "request_id": "r-1",
    }
    path = tmp_path / "access" / "audit.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and len(path.read_bytes().splitlines()) == 1
    assert (log.written, log.lost) == (1, 0)


def test_its_files_are_bounded(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, bytes_max=1000, files_max=3)
    for number in range(100):
        file.write(act("flush", str(number), "somebody"))
    found = sorted(path.name for path in (tmp_path / "access").glob("*.jsonl"))
    assert found == ["audit.1.jsonl", "audit.2.jsonl", "audit.3.jsonl", "audit.jsonl"]
    assert all((tmp_path / "access" / name).stat().st_size <= 1000 for name in found)
    assert (
        json.loads((tmp_path / "access" / "audit.jsonl").read_text().splitlines()[-1])["target"]
        == "99"
    )
    kept = sorted(int(line["target"]) for line in lines(tmp_path))
    assert kept == list(range(kept[0], 100)), "the newest, without a gap"


def _write(folder: str, process: int) -> None:
    for number in range(50):
        AuditFile(folder, bytes_max=4000, files_max=50).write(
            act("flush", f"{process}-{number}", "x" * 50)
        )


@pytest.mark.process
def test_writers_of_several_processes_lose_nothing(tmp_path: Path) -> None:
    write_at_once(_write, tmp_path)
    assert len({line["target"] for line in lines(tmp_path)}) == 150


def test_a_disk_that_fails_is_counted_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AuditFile(tmp_path)
    log = AuditLog(file)

    def full(*acts: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file, "write", full)
    for number in range(3):
        log.record("flush", str(number), "x", "", "ok", "")
    log.close()
    assert (log.written, log.lost) == (0, 3)


def test_the_last_entries_are_read_newest_first_over_the_files(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, bytes_max=400, files_max=3)
    assert file.last(10) == []
    for number in range(8):
        file.write(act("token.create", f"/{number}", "root"))
    with file.path.open("ab") as opened:
        opened.write(b'{"time": "cut')
    assert [each.target for each in file.last(5)] == ["/7", "/6", "/5", "/4", "/3"]
    assert len(file.last(100)) < 9
