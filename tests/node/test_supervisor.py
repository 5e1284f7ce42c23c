"""Stories of the supervisor, with core processes that serve nothing (`worlds.fake_node`), in forks of a
warm process."""

import contextlib
import errno
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from free_ports import free_ports, ports_in_a_row
from polling import wait_until
from warm_commands import go_on
from worlds import fake_node
from worlds.cluster_peer import cluster_peer

from polynya.node.supervisor import how_it_ended


class Node:
    """A supervisor under test; `out` and `err` are its lines so far."""

    def __init__(
        self, data: Path, orders: str = "", patch: dict[str, float] | None = None, **flags: str
    ) -> None:
        settings = {
            "--listen": "127.0.0.1:0",
            "--data": str(data),
            "--cores": "2",
            "--log-format": "json",
        }
        settings |= {"--" + name.replace("_", "-"): value for name, value in flags.items()}
        self.data = data
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("POLYNYA_")
        }
        arguments = (json.dumps(settings), json.dumps(patch or {}))
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        with open(os.devnull) as nothing:
            streams = (nothing.fileno(), to_out, to_err)
            self.process = go_on(
                arguments, environ | {"FAKE_CORE": orders}, streams, module=fake_node.__name__
            )
        os.close(to_out)
        os.close(to_err)
        self.out: list[str] = []
        self.err: list[str] = []
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((os.fdopen(out), self.out), (os.fdopen(err), self.err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe, lines: list[str]) -> None:
        with pipe:
            for line in pipe:
                lines.append(line.rstrip("\n"))
                self._news.put(None)
        self._news.put(None)

    def until(self, word: str) -> str:
        """Wait for the first line with `word` in it, and return it."""
        deadline = time.monotonic() + 60
        while True:
            for line in self.out + self.err:
                if word in line:
                    return line
            try:
                self._news.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {word!r} in {self.out + self.err}") from None

    def ends(self) -> list[str]:
        """Return the exit reason that the process prints."""
        rows = [json.loads(line) for line in self.err]
        return [row["msg"] for row in rows if row["logger"] == "end"]

    def wait(self) -> int:
        code = self.process.wait(60)
        for reader in self._readers:
            reader.join(10)
        return code

    def lives(self, core: int) -> list[int]:
        """Pids of all processes that a core ever had."""
        path = self.data / f"lives-{core}"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def url(self) -> str:
        self.until("tail ")
        return next(line for line in self.out if line.startswith("listening on ")).removeprefix(
            "listening on "
        )


@contextlib.contextmanager
def running(*arguments, **options) -> Iterator[Node]:
    node = Node(*arguments, **options)
    try:
        yield node
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(node.process.pid).children(recursive=True):
                child.kill()
        node.process.kill()
        node.wait()


def gone(pids: list[int]) -> bool:
    """Wait for the processes to end and report whether all did."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not any(map(lives_on, pids)):
            return True
        time.sleep(0.01)
    return False


def lives_on(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.process
def test_a_node_says_what_it_listens_on_and_stops_cleanly_on_sigterm(tmp_path):
    data = tmp_path / "data"
    with running(data) as node:
        url = node.url()
        assert (
            "  append  curl -H 'Content-Type: application/json' -d '{\"hello\": \"world\"}' "
            f"{url}/v1/stream/hello" in node.out
        )
        admin = next(line for line in node.out if line.startswith("admin on http://127.0.0.1:"))
        assert admin.rsplit(":")[-1] != url.rsplit(":")[-1]
        assert int((data / "node.pid").read_text()) == node.process.pid
        assert (data / "run").stat().st_mode & 0o777 == 0o700
        node.process.send_signal(signal.SIGTERM)
        assert node.wait() == 0
        assert not (data / "node.pid").exists() and not (data / "run").exists()
        assert gone(node.lives(0) + node.lives(1))


@pytest.mark.process
@pytest.mark.long
def test_sigint_stops_it_too(tmp_path):
    with running(tmp_path) as node:
        node.url()
        node.process.send_signal(signal.SIGINT)
        assert node.wait() == 0


@pytest.mark.process
def test_kill_9_of_the_supervisor_leaves_no_core_and_the_node_starts_again(tmp_path):
    with running(tmp_path, orders="1:stubborn") as node:
        node.url()
        pids = node.lives(0) + node.lives(1)
        assert len(pids) == 2 and all(psutil.pid_exists(pid) for pid in pids)
        node.process.kill()
        node.process.wait()
        with running(tmp_path) as again:  # waits for the lock until the last core has gone
            again.url()
            assert gone(pids)


@pytest.mark.process
def test_a_core_that_dies_is_started_again(tmp_path):
    with running(tmp_path) as node:
        node.url()
        (first,) = node.lives(1)
        os.kill(first, signal.SIGKILL)
        line = json.loads(node.until("a core died: restarting it"))
        assert line["died"] == 1 and line["how"].startswith("killed by SIGKILL")
        deadline = time.monotonic() + 30
        while len(node.lives(1)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(node.lives(1)) == 2 and len(node.lives(0)) == 1
        node.process.send_signal(signal.SIGTERM)
        assert node.wait() == 0
        assert sum("listening on" in line for line in node.out) == 1


@pytest.mark.process
def test_a_core_that_keeps_dying_stops_the_node(tmp_path):
    with running(tmp_path, orders="1:exit7") as node:
        assert node.wait() == 1
        assert (
            "core 1 died 3 times in a row (exit code 7); see the lines above for the reason"
            in node.ends()
        )
        assert len(node.lives(1)) == 3
        assert node.out == []
        assert gone(node.lives(0))


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "word"), [(65, "damaged"), (74, "the disk failed"), (78, "settings are unusable")]
)
def test_a_core_that_cannot_be_helped_stops_the_node_at_once(tmp_path, code, word):
    with running(tmp_path, orders=f"0:exit{code}") as node:
        assert node.wait() == code
        assert any(line.startswith("core 0 stopped: ") and word in line for line in node.ends())
        assert len(node.lives(0)) == 1


@pytest.mark.process
def test_a_core_that_does_not_stop_is_killed_in_bounded_time(tmp_path):
    with running(tmp_path, orders="0:stubborn", patch={"STOP_SECONDS": 0.2}) as node:
        node.url()
        node.process.send_signal(signal.SIGTERM)
        assert node.wait() == 1
        assert gone(node.lives(0) + node.lives(1))
        assert any("killed" in line for line in node.err)


@pytest.mark.process
def test_a_core_that_ends_badly_when_it_is_told_to_is_part_of_the_exit_code(tmp_path):
    with running(tmp_path, orders="1:bad") as node:
        node.url()
        node.process.send_signal(signal.SIGTERM)
        assert node.wait() == 1
        line = json.loads(node.until("a core did not end cleanly"))
        assert (line["ended"], line["how"]) == (1, "exit code 70")


@pytest.mark.process
def test_what_cannot_even_be_killed_is_not_waited_for(tmp_path, monkeypatch):
    """A process that hangs in the kernel, simulated by one that is never killed."""
    monkeypatch.setenv("NO_KILL", "1")
    with running(
        tmp_path, orders="0:stubborn,1:stubborn", patch={"STOP_SECONDS": 0.2, "KILL_SECONDS": 0.2}
    ) as node:
        node.url()
        node.process.send_signal(signal.SIGTERM)
        assert node.wait() == 1
        assert (
            json.loads(node.until("killed processes have not exited"))["processes"]
            == "core 0, core 1"
        )
        assert not (tmp_path / "node.pid").exists()


@pytest.mark.process
def test_a_second_signal_stops_at_once(tmp_path):
    with running(tmp_path, orders="0:stubborn") as node:
        node.url()
        node.process.send_signal(signal.SIGTERM)
        node.until('"stopping"')
        node.process.send_signal(signal.SIGTERM)
        node.wait()
        assert gone(node.lives(0) + node.lives(1))


@pytest.mark.process
@pytest.mark.parametrize("shared", [False, True])
def test_a_port_held_by_a_stranger_refuses_the_start(tmp_path, shared):
    with socket.socket() as stranger:
        if shared:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        with running(tmp_path, listen=f"127.0.0.1:{port}") as node:
            assert node.wait() == 78
            assert len(node.err) == 1 and node.ends() == [
                f"listen: port {port} of 127.0.0.1 is in use by another process; stop it, or "
                "choose another port with --listen"
            ]
            assert node.lives(0) == []


@pytest.mark.process
def test_a_default_kafka_port_that_is_taken_is_a_warning(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as stranger, ports_in_a_row(2) as port:
        taken = stranger.getsockname()[1]
        with running(tmp_path, listen=f"127.0.0.1:{port}", patch={"KAFKA_PORT": taken}) as node:
            node.url()
            assert f"kafka.listen: port {taken} of 127.0.0.1 is in use" in node.until(
                "serving without Kafka"
            )
            assert not [line for line in node.out if line.startswith("Kafka on")]


@pytest.mark.process
def test_a_configured_kafka_port_that_is_taken_refuses_the_start(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        with running(tmp_path, kafka_listen=address) as node:
            assert node.wait() == 78
            assert [
                line for line in node.ends() if "choose another port with --kafka-listen" in line
            ]


@pytest.mark.process
def test_kafka_is_where_it_is_said_and_off_when_that_is_said(tmp_path):
    with running(
        tmp_path / "on", kafka_listen="127.0.0.1:0", kafka_advertised="broker.example:19092"
    ) as node:
        node.url()
        assert "Kafka on broker.example:19092" in node.out
    with running(tmp_path / "guarded", auth_required="true") as node:
        node.url()
        assert [line for line in node.out if line.startswith("Kafka on")]
    with running(tmp_path / "off", kafka_listen="off") as node:
        node.url()
        assert not [line for line in node.out if line.startswith("Kafka on")]


@pytest.mark.process
def test_each_core_has_a_kafka_port_of_its_own_unless_the_node_is_one_broker(tmp_path):
    with ports_in_a_row(3) as port:
        flags = {"cores": "2", "kafka_listen": f"127.0.0.1:{port}"}
        direct = {"kafka_direct": str(port + 1)}
        with running(tmp_path / "cores", **flags, **direct) as node:
            node.url()
            line = f"Kafka brokers, one for each core, on ports {port + 1} to {port + 2}"
            assert line in node.out
        with running(tmp_path / "node", kafka_brokers="node", **flags, **direct) as node:
            node.url()
            assert not [line for line in node.out if line.startswith("Kafka brokers")]


@pytest.mark.process
def test_a_port_of_a_core_that_is_taken_folds_a_default_and_refuses_a_configured_one(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as stranger, ports_in_a_row(1) as port:
        taken = stranger.getsockname()[1]
        flags = {"cores": "2", "kafka_listen": f"127.0.0.1:{port}"}
        with running(tmp_path / "own", patch={"DIRECT_STEP": taken - port}, **flags) as node:
            node.url()
            assert f"kafka.direct: port {taken}" in node.until("the node is one Kafka broker")
            assert f"Kafka on 127.0.0.1:{port}" in node.out
        with running(tmp_path / "set", kafka_direct=str(taken), **flags) as node:
            assert node.wait() == 78
            assert [line for line in node.ends() if "another port with --kafka-direct" in line]


@pytest.mark.process
def test_a_second_node_on_the_same_data_is_refused(tmp_path):
    with running(tmp_path) as node:
        node.url()
        with running(tmp_path, patch={"LOCK_WAIT_SECONDS": 0.1}) as second:
            assert second.wait() == 78
            assert f"is in use by another node (pid {node.process.pid})" in second.err[0]
        assert node.process.poll() is None


@pytest.mark.process
def test_what_was_fixed_at_birth_stays(tmp_path):
    with running(tmp_path, groups="4") as node:
        node.url()
        node.process.send_signal(signal.SIGTERM)
        node.wait()
    born = json.loads((tmp_path / "node.json").read_text())
    assert (born["groups"], born["cores"], born["history"], len(born["cluster_id"])) == (
        4,
        2,
        1,
        32,
    )
    for flags, word in (
        ({"cores": "5"}, "more than the 4 groups"),
        ({"groups": "5"}, "has 4 groups"),
    ):
        with running(tmp_path, **flags) as node:
            assert node.wait() == 78
            assert word in node.err[0]
    for damage in (
        b"{",
        (tmp_path / "node.json").read_bytes().replace(born["cluster_id"].encode(), b"\xff"),
    ):
        (tmp_path / "node.json").write_bytes(damage)
        with running(tmp_path) as node:
            assert node.wait() == 65
            assert "restore it from a copy" in node.err[0]


@pytest.mark.process
def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.doc").write_text("x")
    with running(tmp_path) as node:
        assert node.wait() == 78
        assert "is not empty (thesis.doc) and has no node.json" in node.err[0]


WORKER = """
import os, time
print("worker", os.getpid(), os.environ["POLYNYA_SERVER"], os.environ["POLYNYA_COLD_ROOT"], "POLYNYA_GROUPS" in os.environ, flush=True)
time.sleep(60)
"""


@pytest.mark.process
def test_the_lake_worker_runs_once_the_node_serves_and_dies_with_it(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_LAKE", WORKER)
    with running(tmp_path, lake_interval="30s", cold_root="elsewhere") as node:
        _, pid, url, root, leaked = node.until("worker ").split()
        assert (root, leaked) == ("elsewhere", "False")
        assert urlsplit(url).hostname == "127.0.0.1"
        assert url != node.url(), (
            "the worker talks to the admin port, where this machine's processes need no token"
        )
        node.process.kill()
        assert gone([int(pid)])


@pytest.mark.process
def test_a_lake_worker_that_dies_is_started_again_and_stops_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_LAKE", "import sys; print('worker', flush=True); sys.exit(3)")
    with running(tmp_path, lake_interval="30s", patch={"LAKE_RESTART_SECONDS": 0.01}) as node:
        line = json.loads(node.until("the lake worker ended"))
        assert line["how"] == "exit code 3"
        node.process.send_signal(signal.SIGTERM)
        assert node.wait() == 0


@pytest.mark.process
def test_a_lake_worker_that_is_just_being_started_does_not_hold_up_a_stop(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_LAKE", "import time; time.sleep(600)")
    monkeypatch.setenv("STOP_AT_LAKE", "1")
    with running(tmp_path, lake_interval="30s") as node:
        assert node.wait() == 0
        assert not [line for line in node.err if "killed" in line]


@pytest.mark.process
@pytest.mark.long
def test_a_data_path_too_long_for_sockets_is_no_obstacle(tmp_path):
    data = tmp_path / ("x" * 100)
    with running(data) as node:
        node.url()
        assert not (data / "run").exists()
        node.process.send_signal(signal.SIGTERM)
        assert node.wait() == 0


@pytest.mark.process
def test_a_node_without_data_begins_in_the_history_that_it_hears_of_later(tmp_path):
    data, cluster = tmp_path / "data", "00112233445566778899aabbccddeeff"
    own, other = free_ports(2)
    nodes = f"1=127.0.0.1:{own}=http://127.0.0.1:1,2=127.0.0.1:{other}=http://127.0.0.1:2"
    flags = {
        "cluster_id": cluster,
        "cluster_node": "1",
        "cluster_nodes": nodes,
        "cold_backend": "none",
    }
    with running(data, **flags) as node:
        node.until("listening on")
        born = json.loads((data / "node.json").read_bytes())
        assert (born["history"], born["provisional"]) == (1, True)
        with cluster_peer(tmp_path / "peer", other, cluster=cluster, history=9, groups=6):
            node.until("starting over: the cluster has another history")
            wait_until(lambda: not settled(data)["provisional"], what="the node to have heard all")
        assert (settled(data)["history"], settled(data)["groups"]) == (9, 6)
        wait_until(lambda: len(node.lives(0)) == 2, what="its core to live again")
        node.process.send_signal(signal.SIGTERM)
        assert node.wait() == 0


@pytest.mark.process
@pytest.mark.parametrize(
    ("error", "code", "said"), [(errno.EIO, 74, "told so"), (errno.ENOSPC, 78, "has no room")]
)
def test_a_disk_that_fails_at_the_first_start_is_said(tmp_path, monkeypatch, error, code, said):
    (tmp_path / "error").write_text(str(error))
    monkeypatch.setenv("SYNC_FAILS", str(tmp_path / "error"))
    with running(tmp_path / "data") as node:
        assert node.wait() == code
        assert said in node.until('"msg":"data: ') and not any(
            "Traceback" in line for line in node.err
        )


@pytest.mark.process
def test_a_disk_that_fails_once_all_were_heard_ends_the_node_and_a_full_one_does_not(
    tmp_path, monkeypatch
):
    fails, cluster = tmp_path / "error", "00112233445566778899aabbccddeeff"
    monkeypatch.setenv("SYNC_FAILS", str(fails))
    own, other = free_ports(2)
    nodes = f"1=127.0.0.1:{own}=http://127.0.0.1:1,2=127.0.0.1:{other}=http://127.0.0.1:2"
    flags = {
        "cluster_id": cluster,
        "cluster_node": "1",
        "cluster_nodes": nodes,
        "cold_backend": "none",
    }
    for error in (errno.ENOSPC, errno.EIO):
        data = tmp_path / f"data-{error}"
        with running(data, **flags) as node:
            node.until("listening on")
            fails.write_text(str(error))
            identity = settled(data)
            with cluster_peer(
                tmp_path / f"peer-{error}",
                other,
                cluster=cluster,
                history=1,
                groups=identity["groups"],
            ):
                if error == errno.EIO:
                    assert node.wait() == 74
                    assert "told so" in node.until("node.json cannot be written") and not any(
                        "Traceback" in line for line in node.err
                    )
                else:
                    wait_until((tmp_path / "error.met").exists, what="it to be tried")
                    fails.unlink()
                    wait_until(
                        lambda at=data: not settled(at)["provisional"],
                        what="the node to have heard all",
                    )
        fails.unlink(missing_ok=True)


def settled(data: Path) -> dict[str, object]:
    return json.loads((data / "node.json").read_bytes())


@pytest.mark.parametrize(
    ("code", "said"),
    [(70, "exit code 70"), (-15, "killed by SIGTERM"), (-9, "OOM killer: see dmesg")],
)
def test_how_a_process_ended_is_said_and_what_may_have_killed_it(code: int, said: str) -> None:
    assert said in how_it_ended(code)


@pytest.mark.process
def test_a_supervisor_imports_nothing_that_serves() -> None:
    code = "import polynya.node.supervisor, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms = {name.split(".")[1] for name in done.stdout.split() if name.startswith("polynya.")}
    assert "system" in rooms
    assert not rooms & {"engine", "front", "replica", "service", "stream", "transport", "wal"}
