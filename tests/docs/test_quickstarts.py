"""The quickstarts: their blocks run as they stand, in order, against a node of this test."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Browser, browser
from free_ports import free_ports
from missing import missing
from polling import wait_until
from product import environment, running_node
from spark_jars import jars

from polynya.lakehouse.sql.query import _extension

__all__ = ["browser", "jars"]  # fixtures

ROOT = Path(__file__).parent.parent.parent
PAGE, README = ROOT / "docs" / "quickstarts.md", ROOT / "README.md"
SECTIONS = dict(
    re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
)
# Spark's own numbers are for large tables: 50 tasks read a log, and 200 an answer
LEAN_SPARK = """
spark.databricks.delta.snapshotPartitions 1
spark.sql.shuffle.partitions 1
spark.ui.enabled false
"""
ORDERS = '[{"item": "ice", "price": 2.5},{"item": "salt", "price": 1}'

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


class Reader:
    """A reader of the page: `run` executes the blocks of a section and returns their output."""

    def __init__(self, folder: Path, url: str, kafka: str) -> None:
        self.url, self.kafka = url, kafka
        self.folder = folder
        self._environment = environment(POLYNYA_SERVER=url)
        tools = folder / "bin"
        tools.mkdir()
        (tools / "polynya").write_text(f'#!/bin/sh\nexec {sys.executable} -m polynya "$@"\n')
        (tools / "polynya").chmod(0o755)
        self._environment["PATH"] = f"{tools}:{self._environment['PATH']}"

    def blocks(self, section: str, kind: str) -> list[str]:
        found = re.findall(rf"```{kind}\n(.*?)```", SECTIONS[section], re.DOTALL)
        assert found, f"{section} has no block of {kind}"
        return [self.here(block) for block in found]

    def here(self, text: str) -> str:
        """Replace the addresses in a text by those of this node."""
        found = text.replace("http://127.0.0.1:4437", self.url).replace(
            "max-time 2 ", "max-time 8 "
        )
        return found.replace("127.0.0.1:9092", self.kafka)

    def run(self, *command: str, codes: tuple[int, ...] = (0,)) -> str:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=self._environment,
            timeout=600,
            check=False,
            cwd=self.folder,
        )
        assert ran.returncode in codes, f"{command}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    def shell(self, section: str) -> list[str]:
        """Run each block and return its output. 28 is curl's own exit code at the end of a
        followed stream."""
        return [
            self.run("bash", "-ec", block, codes=(0, 28)) for block in self.blocks(section, "sh")
        ]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    with running_node(folder / "data") as node:
        reader = Reader(folder, node.url, node.kafka)
        reader.first = reader.shell("curl")  # type: ignore[attr-defined]
        yield reader


def test_curl(reader: Reader) -> None:
    read, followed, repeatable = reader.first  # type: ignore[attr-defined]
    assert read == ORDERS + "]"
    assert "event: data" in followed and "event: control" in followed
    assert repeatable == ""
    (again,) = [block for block in reader.blocks("curl", "sh") if "Producer-Seq" in block]
    reader.run("bash", "-ec", again)
    assert (
        reader.run("curl", "-sS", f"{reader.url}/v1/stream/shop/orders")
        == ORDERS + ',{"item": "ice", "price": 2.5}]'
    )


def test_browser(reader: Reader, browser: Browser) -> None:
    (html,) = reader.blocks("Browser", "html")
    (reader.folder / "orders.html").write_text(html)
    (serving,) = reader.blocks("Browser", "sh")
    (port,) = free_ports(1)
    command = serving.replace("8000", str(port)).replace("python3", sys.executable).split()
    server = subprocess.Popen(command, cwd=reader.folder, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: connects(port), what="the server of the page to listen")
        page = browser.open(f"http://localhost:{port}/orders.html")
        page.wait("document.querySelectorAll('#orders li').length >= 3")
    finally:
        server.terminate()
        server.wait()
    assert page.run(
        "[...document.querySelectorAll('#orders li')].map((line) => line.textContent)"
    ) == ["ice: 2.5", "salt: 1", "ice: 2.5"]


def connects(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def first_screen() -> list[str]:
    """The commands of the README's first block, without those that start the node."""
    block = re.search(r"```sh\n(python3 -m venv .*?)```", README.read_text("utf-8"), re.DOTALL)
    assert block is not None
    return [re.sub(r" +# .*", "", line) for line in block[1].splitlines()[3:]]


@pytest.mark.spark
def test_sql_duckdb_and_spark(reader: Reader, jars: tuple[str, str]) -> None:
    write, follow, create, sync, query = first_screen()
    for command in (write, create):
        reader.run("bash", "-ec", reader.here(command))
    assert reader.run("bash", "-ec", reader.here(follow)) == '{"item": "ice", "price": 2.5}'
    assert f"\n{sync}\n" in SECTIONS["SQL"]
    (output,) = reader.shell("SQL")
    assert re.search(r"ice\s+2\.5\s+0\n", reader.run("bash", "-ec", reader.here(query)))
    assert re.search(r"ice\s+5\.0\n.*salt\s+1\.0", output), output
    (duck,) = reader.blocks("DuckDB", "python")
    (spark,) = reader.blocks("Spark", "python")
    paths, why = jars
    if not paths:
        missing(why)
    package = '"spark.jars.packages", "io.delta:delta-spark_4.1_2.13:4.4.0"'
    assert package in spark
    script = reader.folder / "read.py"
    install = 'duckdb.sql("install iceberg; load iceberg")'
    assert install in duck
    # nothing is fetched in tests
    loads = "; ".join(f"load '{_extension(name)}'" for name in ("avro", "iceberg"))
    script.write_text(
        duck.replace(install, f'duckdb.sql("{loads}")')
        + spark.replace(package, f'"spark.jars", "{paths}"')
    )
    (reader.folder / "spark-defaults.conf").write_text(LEAN_SPARK)
    printed = reader.run("env", f"SPARK_CONF_DIR={reader.folder}", sys.executable, str(script))
    assert re.search(r"ice\s+│\s+2 │\n│ salt\s+│\s+1 │", printed), printed
    assert re.search(r"\|\s*ice\|\s*5\.0\|\n\|\s*salt\|\s*1\.0\|", printed), printed
