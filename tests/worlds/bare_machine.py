"""A machine that has less than this one: programs are not on its `PATH`, the user is not root, and
there is one CPU or there are eight.

Its home folder is read-only, its umask is 077, its locale is C and its time zone is neither whole
hours from UTC nor this machine's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LACKING = (
    "iptables", "iptables-nft", "iptables-legacy", "ip", "fusermount", "fusermount3", "chromium", "chromium-browser", "chrome-headless-shell",
    "google-chrome", "google-chrome-stable", "node", "nodejs", "npm", "npx", "java", "javac", "uv", "uvx",
)  # fmt: skip
NOBODY = 65534
READ_ALL = (
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=-all,+dac_read_search",
    "--bounding-set=-all,+dac_read_search",
)
PROBE = (
    "import subprocess, sys; open(sys.argv[1]); subprocess.run([sys.executable, '-c', 'import "
    "pytest'], check=True)"
)
SECONDS = 280.0


class Unavailable(Exception):
    """The reason why this machine cannot stand in for another."""


class BareMachine:
    """A machine whose folders lie below `shared`, which all users can reach; its programs serve
    several machines."""

    def __init__(self, shared: Path, *, as_root: bool, cpus: int) -> None:
        self.folder = folder = Path(tempfile.mkdtemp(dir=shared))
        folder.chmod(0o755)
        self.as_root, self.cpus = as_root, cpus
        if as_root and os.geteuid():
            raise Unavailable("these tests do not run as root")
        self._user = [] if as_root or os.geteuid() else ordinary_user()
        for name in ("home", "cache", "tmp"):
            (folder / name).mkdir()
            if self._user:
                os.chown(folder / name, NOBODY, NOBODY)
        (folder / "home").chmod(0o555)
        self.environment = {
            "PATH": str(poor_path(shared / "bin")),
            "HOME": str(folder / "home"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TMPDIR": str(folder / "tmp"),
            "LC_ALL": "C",
            "TZ": "Asia/Kathmandu",
            "LD_PRELOAD": str(cpus_library(shared)),
            "TEST_CPUS": str(cpus),
        }

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command until it ends; it uses one CPU where the machine has one."""
        return subprocess.run(
            [*self._user, *command], cwd=ROOT, env=self.environment | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=SECONDS, check=False, umask=0o077, preexec_fn=one_cpu if self.cpus == 1 else None,
        )  # fmt: skip

    def python(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, *arguments, **variables)


def poor_path(folder: Path) -> Path:
    """Return a folder with links to all programs of `PATH` and of the system's default, without
    those in `LACKING`."""
    if folder.exists():
        return folder
    folder.mkdir()
    folder.chmod(0o755)  # the umask may be that of a node, which keeps other users out
    for directory in dict.fromkeys(
        [*os.environ.get("PATH", "").split(os.pathsep), "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    ):
        for program in Path(directory).iterdir() if directory and Path(directory).is_dir() else ():
            if program.name not in LACKING and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


def cpus_library(folder: Path) -> Path:
    """Compile the library that is preloaded. Raises Unavailable."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if not sys.platform.startswith("linux") or compiler is None:
        raise Unavailable("another number of CPUs takes Linux and a C compiler")
    library = folder / "cpus.so"
    source = ROOT / "tests" / "cpus_shim" / "cpus.c"
    done = subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Unavailable(
            f"the library that changes the number of CPUs cannot be built: {done.stderr.strip()}"
        )
    library.chmod(0o755)
    return library


def ordinary_user() -> list[str]:
    """Return the command prefix that drops root's privileges. The user may read everything if
    Python or the tests lie in a private folder of root. Raises Unavailable."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise Unavailable("not installed: setpriv, with which root becomes another user")
    said = ""
    tries: list[tuple[str, ...]] = [(), READ_ALL]
    for privileges in tries:
        prefix = [setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *privileges]
        probe = [*prefix, sys.executable, "-c", PROBE, __file__]
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return prefix
        said = done.stderr.strip()
    raise Unavailable(f"another user cannot start {sys.executable} here: {said}")


def one_cpu() -> None:
    """Pin the child to its first permitted CPU."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
