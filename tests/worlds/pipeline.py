"""A node, streams and drivers as processes of their own, and the expected tables. Shared by the
tests of the pipeline."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import psutil
from deltalake import DeltaTable
from free_ports import two_free_ports
from polling import wait_until
from product import TAG, Ran, RunningNode, environment, polynya, processes_with
from pyiceberg.table import StaticTable
from worlds.lakehouse import InlineRunner, quiet

from polynya.lakehouse.jobs.commit import JobOutcome
from polynya.lakehouse.jobs.plan import TableRef, store_settings
from polynya.lakehouse.jobs.worker import compact, replay
from polynya.lakehouse.reading.blobs import open_blobs
from polynya.lakehouse.server.coordinator import HttpCoordinator
from polynya.lakehouse.sql.query import query

COMPACT_SECONDS = 400.0
Row = tuple[str, int, bytes]  # stream, record number, its bytes


class Driver:
    """A `polynya` command beside the test; `lines` is its stderr."""

    def __init__(self, arguments: tuple[str, ...], **variables: str) -> None:
        command = [sys.executable, "-m", "polynya", *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(**variables),
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._begin = time.monotonic()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_said(self, word: str, seconds: float = 400.0) -> str:
        """Wait for the first line with `word`, and return it."""

        def look() -> str | None:
            ended = self.process.poll() is not None
            found = [line for line in self.lines if word in line]
            assert found or not ended, (
                f"the driver ended with {self.process.returncode} before '{word}':\n"
                f"{''.join(self.lines)}"
            )
            return found[0] if found else None

        return wait_until(look, what=f"the driver to say {word}", seconds=seconds, pause=0.002)

    def wait(self, seconds: float = COMPACT_SECONDS) -> int:
        code = self.process.wait(seconds)
        self._reader.join(60)
        return code

    def kill(self, *, group: bool = False) -> None:
        """Send SIGKILL to the driver alone, or to all in its process group."""
        if group:
            with contextlib.suppress(ProcessLookupError):  # it had ended
                os.killpg(self.process.pid, signal.SIGKILL)
        else:
            self.process.kill()
        self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill(group=True)
        self._reader.join(60)
        # a stray process has it open, and a close would wait for that
        if self.process.stderr is not None and not self._reader.is_alive():
            self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(f"{time.monotonic() - self._begin:6.2f} s  {line}")


class PipeWorld:
    """One data folder, at most one node on it, and a record of all that was acknowledged.
    `variables` are of all its processes."""

    def __init__(self, data: Path, **variables: str) -> None:
        self.data = data
        self.tag = secrets.token_hex(8)
        self.variables = {TAG: self.tag, **variables}
        self.rows: Counter[Row] = Counter()
        self.tails: dict[str, int] = {}
        self._drivers: list[Driver] = []
        self._nodes: list[RunningNode] = []
        self._port = 0
        self.http = httpx.Client(timeout=60.0)

    # --- processes --------------------------------------------------------------------------------

    @property
    def node(self) -> RunningNode:
        return self._nodes[-1]

    def start(self, *flags: str) -> None:
        """Start a node; a later one takes over the ports, so that drivers find it again."""
        self._port = self._port or two_free_ports()
        self._nodes.append(
            RunningNode(
                self.data,
                ("--kafka-listen", "127.0.0.1:0", *flags, "--listen", f"127.0.0.1:{self._port}"),
                **self.variables,
            )
        )

    def run(
        self, *arguments: str, stdin: bytes | None = None, seconds: float = COMPACT_SECONDS
    ) -> Ran:
        """Run a command to its end."""
        return polynya(
            *arguments, server=self.node.url, stdin=stdin, seconds=seconds, **self.variables
        )

    def spawn(self, *arguments: str) -> Driver:
        """Start a command beside the test."""
        driver = Driver(arguments, **{"POLYNYA_SERVER": self.node.url, **self.variables})
        self._drivers.append(driver)
        return driver

    def processes(self) -> list[psutil.Process]:
        """Return every living process of this world but those of the node itself: drivers, JVMs,
        Python workers."""
        own = {node.process.pid for node in self._nodes}
        return [
            process
            for process in processes_with(TAG, self.tag)
            if not own & {process.pid, *(parent.pid for parent in _parents(process))}
        ]

    def wait_no_strays(self, seconds: float = 60.0) -> None:
        """Wait until no process of a driver is left."""
        wait_until(
            lambda: not self.processes(),
            what=f"the driver's processes to end; left: {self.processes()}",
            seconds=seconds,
        )

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()
        for node in self._nodes:
            node.close()
        self.http.close()
        strays = []
        try:
            self.wait_no_strays()
        except AssertionError:
            strays = self.processes()
            raise
        finally:
            for process in strays:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    # --- streams ----------------------------------------------------------------------------------

    def create(
        self, stream: str, content_type: str = "application/json", **headers: str
    ) -> httpx.Response:
        named = {"content-type": content_type} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        answer = self.http.put(f"{self.node.url}/v1/stream/{stream}", headers=named)
        assert answer.status_code in (200, 201), answer.text
        if answer.status_code == 201:
            self.tails[stream] = 0
        return answer

    def append(self, stream: str, *values: Any, content_type: str = "application/json") -> None:
        """Send one append: values become one JSON array, or, with another content type, one body of
        bytes. Noted once acknowledged."""
        if stream not in self.tails:
            self.create(stream, content_type)
        records = (
            [json.dumps(value).encode() for value in values]
            if content_type == "application/json"
            else list(values)
        )
        body = (
            b"[" + b",".join(records) + b"]" if content_type == "application/json" else records[0]
        )
        answer = self.http.post(
            f"{self.node.url}/v1/stream/{stream}",
            content=body,
            headers={"content-type": content_type},
        )
        assert answer.status_code in (200, 204), answer.text
        self.note(stream, records)

    def delete(self, stream: str) -> None:
        answer = self.http.delete(f"{self.node.url}/v1/stream/{stream}")
        assert answer.status_code == 204, answer.text
        del self.tails[stream]

    def note(self, stream: str, records: list[bytes]) -> None:
        """Record acknowledged records as the stream's next ones."""
        first = self.tails[stream]
        self.rows.update((stream, first + number, record) for number, record in enumerate(records))
        self.tails[stream] = first + len(records)

    # --- tables -----------------------------------------------------------------------------------

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the tables of `GET /v1/tables`, by name."""
        return {
            table["name"]: table
            for table in self.http.get(f"{self.node.url}/v1/tables").json()["tables"]
        }

    def table(self, name: str) -> TableRef:
        listed = HttpCoordinator("", self.node.url, self.http).tables()
        return {table.name: table for table in listed}[name]

    def compact_here(self, *names: str) -> list[JobOutcome]:
        """Sync tables as `polynya table sync` does, in this process and without Spark."""
        coordinator = HttpCoordinator(self.node.admin, self.node.url, self.http)
        store = coordinator.tables()[0].store
        assert store is not None
        with mock.patch.dict(os.environ, self.variables):
            return compact(
                coordinator,
                names,
                lambda: InlineRunner(open_blobs(store_settings(store), self.variables)),
                quiet,
            )

    def replay_here(self, name: str) -> JobOutcome | None:
        """Replay dead letters as `polynya table replay-dlq` does, in this process and without
        Spark."""
        coordinator = HttpCoordinator(self.node.admin, self.node.url, self.http)
        store = self.table(name).store
        assert store is not None
        blobs = open_blobs(store_settings(store), self.variables)
        return replay(coordinator, name, lambda: InlineRunner(blobs), quiet)

    def iceberg(self, name: str, part: str = "main") -> list[dict[str, Any]]:
        table = self.table(name)
        options = {}
        if table.store is not None and table.store.kind == "s3":
            options = {
                "s3.endpoint": table.store.endpoint,
                "s3.region": table.store.region,
                "s3.access-key-id": self.variables["POLYNYA_COLD_S3_ACCESS_KEY_ID"],
                "s3.secret-access-key": self.variables["POLYNYA_COLD_S3_SECRET_ACCESS_KEY"],
            }
        pointer = table.iceberg if part == "main" else table.iceberg_dlq
        return StaticTable.from_metadata(pointer, options).scan().to_arrow().to_pylist()

    def delta(self, name: str, part: str = "main") -> list[dict[str, Any]]:
        table = self.table(name)
        assert table.store is not None
        blobs = open_blobs(store_settings(table.store), self.variables)
        path = blobs.uri(f"{table.location}/{part}").removeprefix("file://")
        return (
            DeltaTable(path, storage_options=blobs.storage_options()).to_pyarrow_table().to_pylist()
        )

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Return DuckDB's answer, in this process."""
        tables = HttpCoordinator("", self.node.url, self.http).tables()
        return query(tables, statement, self.variables).rows

    def check_exactly_once(self, name: str, rows: Counter[Row] | None = None) -> None:
        """Assert that every acknowledged record is one row for each of three readers, in both
        formats, and that there are no others."""
        wanted = self.rows if rows is None else rows
        readers = {
            "pyiceberg": [
                (row["stream"], row["offset"], row["value"]) for row in self.iceberg(name)
            ],
            "deltalake": [(row["stream"], row["offset"], row["value"]) for row in self.delta(name)],
            "DuckDB": self.sql(f'select stream, "offset", value from {name}'),  # noqa: S608
        }
        for reader, found in readers.items():
            seen = Counter(found)
            assert seen == wanted, (
                f"{reader}: missing {list((wanted - seen).items())[:5]}, too many "
                f"{list((seen - wanted).items())[:5]}"
            )
        dead = [
            Counter((row["incarnation"], row["offset"]) for row in found)
            for found in (self.iceberg(name, "dlq"), self.delta(name, "dlq"))
        ]
        assert dead[0] == dead[1] and all(count == 1 for count in dead[0].values())


def _parents(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.parents()
    except psutil.Error:
        return []
