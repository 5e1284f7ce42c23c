"""Health of a node of two cores in one loop: one answer speaks for both."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from polling import turns
from sim.loop import run_simulated

from polynya.admin import health
from polynya.admin.health import Health
from polynya.config.core_start import Address, CoreStart
from polynya.config.model import Config
from polynya.config.node_identity import NodeIdentity
from polynya.transport import Transport


def start_of(
    core: int, directory: str, *, cores: int = 2, listen: str = "127.0.0.1:1"
) -> CoreStart:
    return CoreStart(
        config=Config(listen=listen, cores=cores, groups=4, unsafe_no_auth=True),
        identity=NodeIdentity(cluster_id="c" * 32, groups=4, cores=cores, created_ms=0),
        core=core,
        start_id="s",
        listeners={"http": Address("127.0.0.1", 1), "admin": Address("127.0.0.1", 2)},
        run_directory=directory,
        supervisor_pid=1,
        report_fd=-1,
    )


@asynccontextmanager
async def two_cores(directory) -> AsyncIterator[tuple[Health, Health, list[Transport]]]:
    transports = [Transport(core, 2, str(directory), start_id="s") for core in (0, 1)]
    cores = [Health(start_of(core, str(directory)), transports[core]) for core in (0, 1)]
    for transport in transports:
        await transport.start()
    for transport in transports:
        await transport.wait_connected()
    try:
        yield cores[0], cores[1], transports
    finally:
        for core, transport in zip(cores, transports, strict=True):
            core.heart.stop()
            await transport.close()


def test_ready_means_all_cores_and_every_reason_is_told(tmp_path):
    async def story():
        async with two_cores(tmp_path) as (zero, one, _):
            reason: list[str | None] = [None]
            zero.add("journal", lambda: None)
            one.add("store", lambda: reason[0])
            assert (await zero.readyz(verbose=False)).body == b"ready\n"
            everything = await one.readyz(verbose=True)
            assert everything.status == 200
            assert everything.body.decode().splitlines() == [
                "[+] core 0 loop: ok",
                "[+] core 0 journal: ok",
                "[+] core 1 loop: ok",
                "[+] core 1 store: ok",
                "ready",
            ]
            reason[0] = "no bucket"
            answer = await zero.readyz(verbose=False)
            assert (answer.status, answer.body) == (
                503,
                b"[-] core 1 store: no bucket\nnot ready\n",
            )
            answer = await zero.health()
            assert answer.status == 503
            assert msgspec.json.decode(answer.body)["failed"] == [
                {"core": 1, "check": "store", "reason": "no bucket"}
            ]

    asyncio.run(story())


def test_a_core_that_is_away_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "GATHER_SECONDS", 0.05)

    async def story():
        async with two_cores(tmp_path) as (zero, _, transports):
            await transports[1].close()
            answer = await zero.readyz(verbose=False)
            assert answer.status == 503
            assert answer.body.startswith(b"[-] core 1 answers: ")
            assert b"polynya_cores_up 1\n" in (await zero.metrics()).body

    asyncio.run(story())


def test_one_scrape_shows_both_cores(tmp_path):
    async def story():
        async with two_cores(tmp_path) as (zero, one, _):
            turns = [5, 7]
            zero.registry.add(lambda: {"polynya_turns_total": turns[0]})
            one.registry.add(lambda: {"polynya_turns_total": turns[1]})
            for core in (zero, one):
                lines = (await core.metrics()).body.decode().splitlines()
                assert "polynya_turns_total 12" in lines
                assert "polynya_cores 2" in lines and "polynya_cores_up 2" in lines
                assert "polynya_transport_connected 2" in lines

    asyncio.run(story())


def test_a_node_of_one_core_needs_no_transport():
    async def story():
        alone = Health(start_of(0, "", cores=1), None)
        assert (await alone.readyz(verbose=False)).status == 200
        assert alone.livez().body == b"ok\n"
        assert msgspec.json.decode(alone.node().body)["ports"] == {"http": 1, "admin": 2}
        alone.heart.stop()

    asyncio.run(story())


def test_a_node_names_the_ports_of_all_its_listeners():
    """Name `admin_listen` to remote callers."""

    async def story():
        start = start_of(0, "", cores=1)
        addresses = {"remote_admin": Address("10.0.0.1", 3), "kafka": Address("10.0.0.1", 4)}
        alone = Health(
            msgspec.structs.replace(start, listeners={**start.listeners, **addresses}), None
        )
        shown = [msgspec.json.decode(alone.node(near=near).body) for near in (False, True)]
        assert [each["ports"] for each in shown] == [
            {"http": 1, "admin": 3, "kafka": 4},
            {"http": 1, "admin": 2, "kafka": 4},
        ]
        assert [each["admin_near"] for each in shown] == [False, True]
        alone.heart.stop()

    asyncio.run(story())


def test_what_is_unsafe_is_shown():
    async def story():
        alone = Health(start_of(0, "", cores=1, listen="0.0.0.0:1"), None)
        assert b"[!] unsafe-no-auth" in (await alone.readyz(verbose=True)).body
        assert msgspec.json.decode((await alone.health()).body)["unsafe"]
        alone.heart.stop()

    asyncio.run(story())


@pytest.mark.parametrize(("late", "status"), [(5.0, 200), (11.0, 503)])
def test_a_loop_that_stood_still_is_not_live(monkeypatch, late, status):
    async def story():
        alone = Health(start_of(0, "", cores=1), None)
        monkeypatch.setattr(alone.heart, "_due", asyncio.get_running_loop().time() - late)
        assert alone.livez().status == status
        assert (await alone.readyz(verbose=False)).status == status
        alone.heart.stop()

    asyncio.run(story())


def test_the_heart_measures_a_stall():
    async def story():
        heart = health.LoopMonitor()
        await asyncio.sleep(0)
        asyncio.get_running_loop().now += health.BEAT_SECONDS + 0.05  # the stall itself
        await turns(2)
        assert heart.samples()["polynya_loop_lag_max_seconds"] == pytest.approx(0.05)
        heart.stop()

    run_simulated(story())


def test_a_check_with_something_to_say_is_a_metric():
    async def story():
        alone = Health(start_of(0, "", cores=1), None)
        reason: list[str | None] = [None]
        alone.warn("disk", lambda: reason[0])
        assert b'polynya_check_failing{check="disk"} 0\n' in (await alone.metrics()).body
        reason[0] = "it is slow"
        assert b'polynya_check_failing{check="disk"} 1\n' in (await alone.metrics()).body
        alone.heart.stop()

    asyncio.run(story())


def test_the_only_core_of_a_cluster_s_node_waits_for_no_other(tmp_path):
    async def story():
        transport = Transport(0, 1, str(tmp_path), start_id="s")  # it has one for the other nodes
        health = Health(start_of(0, str(tmp_path), cores=1), transport)
        asked = asyncio.get_running_loop().time()
        try:
            answers = [
                await health.readyz(verbose=False),
                await health.metrics(),
                await health.health(),
            ]
        finally:
            health.heart.stop()
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert asyncio.get_running_loop().time() == asked, "no time passes in this loop"

    run_simulated(story())


def test_a_turn_counts_in_its_own_cpu_time(monkeypatch):
    async def story():
        cpu = [1.0]
        monkeypatch.setattr(health.time, "thread_time", lambda: cpu[0])
        heart = health.LoopMonitor()
        for late, spent, longest in ((5.0, 0.0, 0.0), (5.0, 0.75, 0.75), (0.0, 9.0, 0.75)):
            heart._due = asyncio.get_running_loop().time() - late if late else float("inf")
            cpu[0] += spent
            heart._timer.cancel()
            heart._beat()
            assert heart.samples()["polynya_loop_turn_max_seconds"] == longest
        heart.stop()

    asyncio.run(story())
