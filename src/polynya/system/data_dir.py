"""The data folder's own files: its lock, the pid file, and the directory of the sockets between
cores."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import shutil
import tempfile
import time
from pathlib import Path

from polynya.base.errors import ConfigError
from polynya.files import is_full, make_folder

LOCK_WAIT_SECONDS = 5.0  # the cores of a killed node need a moment to exit
SOCKET_PATH_BYTES_MAX = 100  # a Unix socket's path has at most 107 (Linux) or 103 (macOS) bytes


def _owner_of(folder: str) -> str:
    """Return the owner of the folder, for an error message, if it is another user."""
    with contextlib.suppress(OSError):
        owner = os.stat(folder).st_uid
        if owner != os.geteuid():
            return f" (it belongs to {_user(owner)}, and this runs as {_user(os.geteuid())})"
    return ""


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def lock_folder(data: str, held: contextlib.ExitStack) -> int:
    """Create the folder if it is missing, lock it for this node, and return the lock's descriptor.
    Raises ConfigError."""
    try:
        make_folder(Path(data))
        descriptor = os.open(Path(data) / "node.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if is_full(error) or error.errno == errno.EIO:
            raise  # a disk error, not a wrong setting
        why = f"{error.strerror}{_owner_of(data) if isinstance(error, PermissionError) else ''}"
        raise ConfigError(
            f"data: {data} cannot be used: {why}; choose another folder with --data"
        ) from None
    held.callback(os.close, descriptor)
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"data: {data} is in use by another node{_owner(data)}; stop it, or choose "
                    "another folder"
                ) from None
            time.sleep(0.05)


def write_pid(data: str, held: contextlib.ExitStack) -> None:
    """Write the supervisor's pid to `node.pid`, which is removed at exit."""
    path = Path(data) / "node.pid"
    path.write_text(f"{os.getpid()}\n")
    held.callback(_remove, path)


def make_run_directory(data: str, held: contextlib.ExitStack) -> str:
    """Create an empty directory that only this user may enter, with a path short enough for
    sockets. It is removed at exit."""
    wanted = Path(data) / "run"
    if len(os.fsencode(wanted / "core-99.sock")) > SOCKET_PATH_BYTES_MAX:
        wanted = Path(tempfile.mkdtemp(prefix="polynya-"))
    else:
        shutil.rmtree(wanted, ignore_errors=True)
        wanted.mkdir(mode=0o700)
    held.callback(shutil.rmtree, wanted, ignore_errors=True)
    return str(wanted)


def _remove(path: Path) -> None:
    """Remove the file, if a failing disk still allows that."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _owner(data: str) -> str:
    with contextlib.suppress(OSError):
        return f" (pid {(Path(data) / 'node.pid').read_text().strip()})"
    return ""
