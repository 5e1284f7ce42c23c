"""Tables on a real server: damaged slices, trimmed and expired records, what a prefix covers, and
tables without rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from polling import wait_until
from worlds.pipeline import PipeWorld

from polynya.lakehouse.jobs.worker import TablesFailed

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def make(world: PipeWorld, name: str, prefix: str, **options: Any) -> dict[str, Any]:
    answer = world.http.put(
        f"{world.node.url}/v1/tables/{name}", json={"prefix": prefix, **options}
    )
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def values(world: PipeWorld, name: str) -> list[bytes]:
    return sorted(row["value"] for row in world.iceberg(name))


def flushed(world: PipeWorld) -> set[Path]:
    """Flush everything and return the packs."""
    world.http.post(f"{world.node.admin}/v1/admin/flush").raise_for_status()
    return {
        path
        for path in (world.data / "objects").rglob("*")
        if path.is_file() and "packs" in path.parts
    }


def test_a_damaged_slice_delays_no_table_and_is_retried_when_mended(
    world: PipeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.lakehouse.jobs.worker.RETRY_SECONDS", 0.0)
    world.start()
    make(world, "apples", "apples/")
    make(world, "pears", "pears/")
    before = flushed(world)
    world.append("apples/a", {"n": 1}, {"n": 2})
    (pack,) = flushed(world) - before
    world.append("apples/a", {"n": 3})
    world.append("pears/a", {"n": 4})
    pack.chmod(0o600)
    whole = pack.read_bytes()
    pack.write_bytes(whole.replace(b'{"n": 2}', b'{"n": 9}'))
    with pytest.raises(TablesFailed) as failed:
        world.compact_here()
    for word in (
        "table 'apples'",
        "stream 'apples/a'",
        "records 0 to 1",
        "offset",
        pack.name,
        "checksum",
    ):
        assert word in str(failed.value)
    assert values(world, "apples") == [b'{"n": 3}'] and values(world, "pears") == [b'{"n": 4}']
    (failure,) = json.loads(world.run("table", "failures", "apples", "--json").out)
    assert (failure["state"], failure["stream"], failure["record"], failure["records"]) == (
        "aside",
        "apples/a",
        0,
        2,
    )
    listed = world.tables()["apples"]
    assert (listed["ranges_aside"], listed["records_aside"], listed["records_behind"]) == (1, 2, 0)
    assert "table failures apples" in world.run("table", "ls").err
    counted = world.run("sql", "select count(*) from apples").err
    assert "apples is up to date, without 2 records set aside" in counted
    assert world.compact_here() == [], "what is set aside fails no later run"
    assert "1 range again" in world.run("table", "retry", "apples").err
    with pytest.raises(TablesFailed):
        world.compact_here("apples")
    world.run("table", "retry", "apples")
    pack.write_bytes(whole)
    world.append("apples/a", {"n": 5})
    world.compact_here()
    assert values(world, "apples") == [b'{"n": %d}' % number for number in (1, 2, 3, 5)]
    assert json.loads(world.run("table", "failures", "apples", "--json").out) == []
    assert world.compact_here() == []


def test_what_was_trimmed_or_ended_enters_no_table_and_is_counted(world: PipeWorld) -> None:
    world.start()
    make(world, "things", "things/")
    world.append("things/a", {"secret": 1}, {"secret": 2})
    behind = world.http.head(f"{world.node.url}/v1/stream/things/a").headers["stream-next-offset"]
    world.append("things/a", {"open": 3})
    flushed(world)
    ran = world.run("trim", "things/a", "--before", behind)
    assert ran.code == 0, ran
    world.append("things/gone", {"n": 1}, {"n": 2}, {"n": 3})
    world.delete("things/gone")
    world.compact_here()
    assert values(world, "things") == [b'{"open": 3}']
    assert [row[0] for row in world.sql("select value_text from things")] == ['{"open": 3}']
    listed = world.tables()["things"]
    assert (listed["records_trimmed"], listed["records_ended"], listed["records_behind"]) == (
        2,
        3,
        0,
    )


def test_a_table_that_holds_gets_what_has_expired(world: PipeWorld) -> None:
    world.start()
    make(world, "held", "held/", hold=True)
    make(world, "loose", "loose/")
    for name in ("held/a", "loose/a"):
        world.create(name, stream_ttl="5")  # longer than a disk may take until the append
        world.append(name, {"n": 1}, {"n": 2})
    wait_until(
        lambda: world.tables()["loose"]["records_ended"] == 2,
        what="the expiry of the other stream",
        seconds=60,
    )
    assert world.http.get(f"{world.node.url}/v1/stream/held/a").status_code == 404
    world.compact_here()
    assert values(world, "held") == [b'{"n": 1}', b'{"n": 2}']
    assert world.tables()["held"]["records_ended"] == 0


def test_a_prefix_means_what_was_typed(world: PipeWorld) -> None:
    world.start()
    assert (
        world.run("table", "create", "none", "--prefix", "nothing").err.count(
            "warning: no stream name starts with 'nothing'"
        )
        == 1
    )
    for name in ("trust", "trust/big", "trust/b/c", "default/trust/x", "other/trust", "Caps/a"):
        world.append(name, {"name": name})
    created = make(world, "trust", "trust")
    assert (created["table"]["prefix"], created["table"]["streams"]) == ("trust", 4)
    assert set(created["covered"]) == {"trust", "trust/big", "trust/b/c", "default/trust/x"}
    inner = world.run("table", "create", "big", "--prefix", "trust/big")
    assert (
        "covers 1 stream now: trust/big" in inner.err
        and "from table trust (prefix 'trust')" in inner.err
    )
    again = world.http.put(f"{world.node.url}/v1/tables/same", json={"prefix": "trust/"})
    assert again.status_code == 409 and "'trust'" in again.text
    make(world, "caps", "Caps/")
    world.compact_here()
    covered = {
        name: {row["stream"] for row in world.iceberg(name)} for name in ("trust", "big", "caps")
    }
    assert covered == {
        "trust": {"trust", "trust/b/c", "default/trust/x"},
        "big": {"trust/big"},
        "caps": {"Caps/a"},
    }
    assert [table["records_behind"] for table in world.tables().values()] == [0, 0, 0, 0]
    assert world.sql("select count(*), count(value_text) from none") == [(0, 0)]
    assert world.run("sql", "select reason from none__dlq").code == 0


def test_what_a_table_lacks_is_seen_everywhere(
    world: PipeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.lakehouse.schema.types.LEAVES_MAX", 3)
    world.start()
    make(world, "wide", "wide/")
    world.append("wide/a", {"a": 1, "b": 2, "c": 3, "d": {"e": 4}}, {"b": "odd"}, 5)
    fresh = json.loads(world.run("table", "describe", "wide", "--json").out)
    assert (
        fresh["files"],
        fresh["job_seconds"],
        fresh["fields_without_column"],
        fresh["records_behind"],
    ) == (0, 0, [], 3)
    world.compact_here()
    listed = world.tables()["wide"]
    assert (listed["rows"], listed["dead_rows"], listed["files"], listed["ranges_aside"]) == (
        3,
        1,
        1,
        0,
    )
    assert (
        listed["fields_without_column"] == ["c", "d.e"]
        and listed["job_seconds"] > 0
        and listed["bytes"] > 500
    )
    output = world.run("table", "describe", "wide").out
    assert "fields without a column  2: c, d.e" in output and "up to date" in output

    def metrics() -> dict[str, float]:
        lines = world.http.get(f"{world.node.admin}/metrics").text.splitlines()
        return {
            line.split()[0]: float(line.split()[1])
            for line in lines
            if line.startswith("polynya_table_")
        }

    seen = wait_until(
        lambda: (
            found if (found := metrics()).get('polynya_table_rows{table="wide"}') == 3 else None
        ),
        what="the metrics",
        seconds=60,
    )
    assert (
        seen['polynya_table_files{table="wide"}'] == 1
        and seen['polynya_table_fields_without_column{table="wide"}'] == 2
    )
    assert (
        seen['polynya_table_dead_rows{table="wide"}'] == 1
        and seen['polynya_table_behind_seconds{table="wide"}'] == 0
    )
