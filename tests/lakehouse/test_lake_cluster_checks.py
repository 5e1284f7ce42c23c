"""Missing requirements of a Spark cluster are named within seconds, before Spark starts."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from polynya.base.errors import ConfigError, Unavailable
from polynya.cli.app import cli
from polynya.cli.terminal import exits
from polynya.lakehouse.jobs import executors
from polynya.lakehouse.jobs.executors import PACKAGES, Shipment
from polynya.lakehouse.jobs.plan import Range
from polynya.lakehouse.machine import store as store_check
from polynya.lakehouse.machine.master import check_master, default_settings, is_local
from polynya.lakehouse.machine.store import check_credentials, check_store
from polynya.objectstore import StoreSettings, StoreUnavailable
from polynya.spark.options import Connection
from polynya.spark.planning import Split
from polynya.spark.reading import batches
from polynya.wire.tables import StoreRef

PACKAGE = "org.example:reader_2.13:1.2.3"


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nothing listens, and that no other process gets meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def repository() -> Iterator[tuple[str, list[str]]]:
    """A Maven repository that has only PACKAGE, and the paths that were requested."""
    paths: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            paths.append(self.path)
            self.send_response(200 if "reader_2.13-1.2.3" in self.path else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *said: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/m2", paths
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return an environment without credentials, Hadoop or a repository."""
    bare = {"HOME": str(tmp_path), "SPARK_CONF_DIR": str(tmp_path)}
    for name in [*store_check.ROLES, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return bare


@pytest.mark.parametrize(
    ("master", "settings", "message"),
    [
        ("mesos://127.0.0.1:5050", {}, "is no Spark master; expected local"),
        ("spark://127.0.0.1", {}, "names no host and port"),
        ("spark://127.0.0.1:99999", {}, "names no host and port"),
        ("yarn", {}, "set HADOOP_CONF_DIR"),
        ("k8s://https://127.0.0.1:1", {}, "spark.kubernetes.container.image"),
        ("k8s://", {"spark.kubernetes.container.image": "i"}, "names no API server"),
        ("local", {"spark.jars": "/no/such.jar"}, "spark.jars: there is no file /no/such.jar"),
        ("local", {"spark.archives": "/no/env.tar.gz#env"}, "spark.archives: .* /no/env.tar.gz"),
        ("local", {"spark.jars.packages": "reader"}, "expected GROUP:NAME:VERSION"),
    ],
)
def test_a_master_or_setting_that_cannot_work_is_named(
    bare: dict[str, str], master: str, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_master(master, settings, bare)


def test_yarn_needs_a_folder_that_exists(bare: dict[str, str], tmp_path: Path) -> None:
    check_master("yarn", {}, {**bare, "HADOOP_CONF_DIR": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"there is no folder /nowhere"):
        check_master("yarn", {}, {**bare, "YARN_CONF_DIR": "/nowhere"})


def test_a_master_that_does_not_listen_is_reported_at_once(
    bare: dict[str, str], closed_port: int, silent_port: int
) -> None:
    gone = f"127.0.0.1:{closed_port}"
    with pytest.raises(Unavailable, match=rf"no Spark master answers at {gone}: .*refused"):
        check_master(f"spark://{gone}", {}, bare)
    image = {"spark.kubernetes.container.image": "image"}
    with pytest.raises(Unavailable, match=rf"no Kubernetes API server answers at {gone}"):
        check_master(f"k8s://https://{gone}", image, bare)
    check_master(f"spark://{gone},127.0.0.1:{silent_port}", {}, bare)  # the standby answers


def test_the_settings_that_spark_reads_itself_count_too(
    bare: dict[str, str], tmp_path: Path
) -> None:
    lines = "# a comment\nspark.jars /no/such.jar\nspark.executor.memory=2g\n\nother.key 1\n"
    (tmp_path / "spark-defaults.conf").write_text(lines)
    assert default_settings(bare) == {"spark.jars": "/no/such.jar", "spark.executor.memory": "2g"}
    with pytest.raises(ConfigError, match=r"there is no file /no/such.jar"):
        check_master("local", {}, bare)
    check_master("local", {"spark.jars": "hdfs://host/x.jar,local:/opt/y.jar"}, bare)


def test_a_package_that_no_repository_has_is_named(
    bare: dict[str, str], repository: tuple[str, list[str]], closed_port: int, tmp_path: Path
) -> None:
    url, paths = repository
    known = {**bare, "DEFAULT_ARTIFACT_REPOSITORY": url}
    check_master("local", {"spark.jars.packages": PACKAGE}, known)
    assert paths == ["/m2/org/example/reader_2.13/1.2.3/reader_2.13-1.2.3.pom"]
    wanted = f"{PACKAGE}, org.example:reader_2.13:9"
    with pytest.raises(ConfigError, match=r"'org.example:reader_2.13:9' was not found .* 404"):
        check_master("local", {"spark.jars.packages": wanted}, known)
    away = {**bare, "DEFAULT_ARTIFACT_REPOSITORY": f"http://127.0.0.1:{closed_port}/"}
    with pytest.raises(ConfigError, match=rf"'{PACKAGE}' was not found .*{closed_port}"):
        check_master("local", {"spark.jars.packages": PACKAGE}, away)
    check_master("local", {"spark.jars.packages": PACKAGE, "spark.jars.repositories": url}, away)
    stored = tmp_path / ".m2/repository/org/example/reader_2.13/1.2.3/reader_2.13-1.2.3.jar"
    stored.parent.mkdir(parents=True)
    stored.touch()
    check_master("local", {"spark.jars.packages": PACKAGE}, away)


def test_masters_on_this_machine() -> None:
    assert all(map(is_local, ("local", "local[2]", "local[*]", "local[2,3]")))
    assert not any(map(is_local, ("spark://local:7077", "yarn", "local-cluster[2,1,512]", "")))


def s3(port: int, key: str = "") -> StoreSettings:
    return StoreSettings(
        backend="s3",
        s3_bucket="trips",
        s3_endpoint=f"http://127.0.0.1:{port}",
        s3_access_key_id=key,
        s3_secret_access_key=key,
    )


def test_a_store_without_credentials_or_an_answer_is_named(
    bare: dict[str, str], silent_port: int, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as brief:
        brief.setattr(store_check, "STORE_SECONDS", 0.5)
        with pytest.raises(ConfigError, match=r"s3://trips at .*set POLYNYA_COLD_S3_ACCESS_KEY_ID"):
            check_store(s3(silent_port), bare)
        with pytest.raises(StoreUnavailable, match=r"did not answer|cannot be reached"):
            check_store(s3(silent_port, "key"), bare)
    monkeypatch.setattr(store_check, "STORE_SECONDS", 30.0)  # a closed port refuses at once
    with pytest.raises(StoreUnavailable, match=r"s3://trips at .* cannot be reached"):
        check_store(s3(closed_port, "key"), bare)
    with pytest.raises(ConfigError, match=r"which is not on this machine"):
        check_store(StoreSettings(root="/no/such/folder"), bare)


def test_a_task_without_credentials_ends_before_it_reads(
    bare: dict[str, str], silent_port: int, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_check, "METADATA_SERVICE", ("127.0.0.1", closed_port))
    for name, text in bare.items():
        monkeypatch.setenv(name, text)
    found = s3(silent_port)
    store = StoreRef("s3", "", found.s3_bucket, found.s3_region, found.s3_endpoint)
    ranges = [Range("s", 1, 1, "", 0, 0, 0, 1, 9, "packs/1", 0, 9, 0)]
    split = Split(Connection(""), True, store, ranges)
    with pytest.raises(ConfigError, match=r"s3://trips at .*set POLYNYA_COLD_S3_ACCESS_KEY_ID"):
        list(batches(split, ["value"]))
    check_credentials(s3(silent_port, "key"), bare)
    monkeypatch.setattr(store_check, "METADATA_SERVICE", ("127.0.0.1", silent_port))
    check_credentials(s3(silent_port), bare)  # the machine may have a role


def test_a_setting_that_is_none_is_refused_by_the_command() -> None:
    for wrong in ("memory", "executor.memory=2g"):
        done = CliRunner().invoke(cli, ["table", "sync", "--conf", wrong])
        assert done.exit_code == exits.USAGE
        assert f"'{wrong}' is no Spark setting; expected KEY=VALUE" in done.stderr


def test_an_executor_names_the_packages_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    gone = ("obstore", "pyarrow")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in gone else real(name)
    )
    assert "obstore, pyarrow not installed for" in executors._probe(None)(0)
    monkeypatch.undo()
    assert executors._probe(None)(0) == ""
    assert "/no/such" in executors._probe(StoreSettings(root="/no/such"))(0)


IMPORTED = """
import sys
sys.path.insert(0, sys.argv[1])
import polynya.lakehouse.jobs.spark_tasks as tasks
assert tasks.__file__.startswith(sys.argv[1]), tasks.__file__
names = {name.partition(".")[0] for name in sys.modules}
print(*sorted(names & set(sys.argv[2:])))
"""


@pytest.mark.process
def test_executors_import_tasks_from_the_code_that_is_sent() -> None:
    """Import task code without Delta, Spark or any package beside the checked ones."""
    shipment = Shipment()
    try:
        others = ("deltalake", "duckdb", "httpx", "pyspark", "pandas", *PACKAGES)
        done = subprocess.run(
            [sys.executable, "-I", "-c", IMPORTED, shipment.path, *others],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert set(done.stdout.split()) <= set(PACKAGES)
    finally:
        shipment.close()
    assert not Path(shipment.path).exists()
