"""Drivers beside each other, beside appends, and beside a server that is killed and started again;
and how `compact` ends."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import pytest
from worlds.pipeline import PipeWorld

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def keep_appending(world: PipeWorld, stop: threading.Event) -> None:
    """Appends by an idempotent producer, each repeated until it is acknowledged."""
    world.create("busy/a")
    with httpx.Client(timeout=10.0) as http:
        number = 0
        while not stop.is_set():
            records = [b'{"n": %d, "part": %d}' % (number, part) for part in range(20)]
            headers = {
                "content-type": "application/json",
                "producer-id": "p",
                "producer-epoch": "0",
                "producer-seq": str(number),
            }
            while True:
                try:
                    answer = http.post(
                        f"{world.node.url}/v1/stream/busy/a",
                        content=b"[" + b",".join(records) + b"]",
                        headers=headers,
                    )
                except httpx.TransportError:
                    stop.wait(0.05)
                    continue
                if answer.status_code in (200, 204):
                    break
                assert answer.status_code >= 500, answer.text
                stop.wait(0.05)
            world.note("busy/a", records)
            number += 1
            stop.wait(0.01)


@pytest.mark.long
@pytest.mark.spark
def test_two_drivers_and_appends_while_the_server_is_killed(world: PipeWorld) -> None:
    world.start("--cores", "2")
    assert world.run("table", "create", "busy", "--prefix", "busy/").code == 0
    stop = threading.Event()
    writer = threading.Thread(target=keep_appending, args=(world, stop))
    writer.start()
    try:
        drivers = [world.spawn("table", "sync", "-v", "busy") for _ in range(2)]
        for driver in drivers:
            # from here on they ask the server only to commit, and that they repeat
            driver.wait_said("planned")
        drivers[0].wait_said("plan-object")
        world.node.kill()
        world.start("--cores", "2")
        codes = [driver.wait() for driver in drivers]
        assert codes == [0, 0], [driver.lines for driver in drivers]
    finally:
        stop.set()
        writer.join(60)
    done = world.run("compact", "busy")
    assert done.code == 0, done
    world.check_exactly_once("busy")


@pytest.mark.spark
def test_streams_deleted_while_a_job_waits_fall_out_of_it(world: PipeWorld) -> None:
    world.start()
    assert world.run("table", "create", "short", "--prefix", "short/").code == 0
    world.append("short/goes", *({"n": number} for number in range(100)))
    assert world.http.post(f"{world.node.admin}/v1/admin/flush").is_success
    lost = list((world.data / "objects").rglob("packs/*/*"))
    world.append("short/stays", *({"n": number} for number in range(100)))
    driver = world.spawn("table", "sync", "-v", "short")
    driver.wait_said("starting Spark")  # the plan is made, and nothing of it is read yet
    world.delete("short/goes")
    for key in [key for key in world.rows if key[0] == "short/goes"]:
        del world.rows[key]
    assert lost
    for pack in lost:  # as the server itself does after a grace
        pack.unlink()
    assert driver.wait() == 0, driver.lines
    assert any("abandoned" in line and "no longer exists" in line for line in driver.lines), (
        driver.lines
    )
    world.check_exactly_once("short")


@pytest.mark.long
def test_compact_says_how_it_ends(world: PipeWorld, tmp_path: Path) -> None:
    world.start()
    nothing = world.run("compact")
    assert nothing.code == 0 and "nothing new" in nothing.err, nothing
    assert world.run("table", "create", "t", "--prefix", "some/").code == 0
    again = world.run("table", "create", "t", "--prefix", "some/")
    assert again.code == 0 and "already exists" in again.err, again
    other = world.run("table", "create", "t", "--prefix", "others/")
    assert other.code == 1 and "with the prefix 'some/' exists" in other.err, other
    still = world.run("compact", "t")
    assert still.code == 0 and "nothing new" in still.err and "Spark" not in still.err, still
    unknown = world.run("compact", "nope", "t")
    assert (
        unknown.code == 1
        and "there is no table 'nope'" in unknown.err
        and "The tables are: t" in unknown.err
    ), unknown
    for wrong in ("1st", "a-b", "x__dlq", "é"):
        refused = world.run("table", "create", wrong, "--prefix", "x/")
        assert refused.code == 1 and "is not a valid table name" in refused.err, refused
    world.node.stop()
    down = world.run("compact", "t")
    assert down.code == 3 and world.node.url in down.err and "Traceback" not in down.err, down
